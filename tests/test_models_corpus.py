"""The corpus: real text, built the same twice, disjoint parts, refused when damaged."""

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest

import models.corpus as corpus_module
from ladder.errors import InputError
from models.cache import SPLITS, read_manifest
from models.corpus import MIN_PARAGRAPH_BYTES, build_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return build_corpus()


def paragraphs(corpus: Path, split: str) -> list[str]:
    text = (corpus / f"{split}.bin").read_bytes().decode("utf-8", "replace").replace("\0", "\n\n")
    return [" ".join(part.split()) for part in text.split("\n\n") if len(part) >= MIN_PARAGRAPH_BYTES]


def test_corpus_is_large_enough_and_text(corpus: Path) -> None:
    manifest = read_manifest(corpus)
    assert 10e6 < manifest.splits["train"].bytes < 25e6
    for split in ("validation", "test"):
        assert manifest.splits[split].bytes > 300_000
    data = np.fromfile(corpus / "test.bin", np.uint8)
    shares = np.bincount(data, minlength=256) / len(data)
    entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    assert 2.9 < entropy < 3.6  # English with code in it; random bytes have 5.5 nats
    assert int((data == 0).sum()) == manifest.splits["test"].documents


def test_parts_share_no_paragraph(corpus: Path) -> None:
    held = set(paragraphs(corpus, "test")) | set(paragraphs(corpus, "validation"))
    train = paragraphs(corpus, "train")
    assert len(set(train)) > 0.99 * len(train)
    assert len(held & set(train)) < 0.001 * len(held)


def test_corpus_is_built_the_same_twice(corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    counts: list[int] = []
    assert read_manifest(build_corpus(lambda done, total: counts.append(done))) == read_manifest(corpus)
    assert counts == sorted(counts)
    assert counts


def test_docstrings_equal_those_of_the_parser() -> None:
    path = Path(corpus_module.__file__)
    tree = ast.parse(path.read_text())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    parsed = {ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)} - {None}
    assert set(corpus_module._docstrings(path).split("\n\n")) == {
        part for text in parsed for part in text.split("\n\n")
    }


def test_missing_or_damaged_corpus_is_refused(corpus: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_manifest(tmp_path / "nothing")
    copy = tmp_path / "copy"
    shutil.copytree(corpus, copy)
    (copy / f"{SPLITS[0]}.bin").write_bytes(b"short")
    with pytest.raises(InputError, match=r"train\.bin is missing or has not"):
        read_manifest(copy)
    (copy / "manifest.json").write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        read_manifest(copy)
