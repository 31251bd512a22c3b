"""Token caches: what is written is read back, tokens stand for the bytes of the text, bad input is one sentence."""

import errno
import gzip
import json
import sys
import tempfile
from pathlib import Path

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ladder.errors import InputError
from ladder.records import to_plain
from models.cache import (
    FILES,
    check_digests,
    parse_manifest,
    read_documents,
    read_manifest,
    read_token_bytes,
    read_tokens,
    token_dtype,
)
from models.cache_writer import CacheWriter, _Part
from models.cli import app
from models.corpus import split_of
from models.documents import documents_of, find_sources
from models.fetch import local_cache
from models.mixture import read_mixture
from models.tokenize_corpus import tokenize
from models.tokenize_reader import Request
from models.tokenizer import read_tokenizer, train_bpe
from tests.models_small import random_documents


def write_lines(path: Path, documents: list[str], field: str = "text") -> Path:
    lines = "".join(json.dumps({field: text, "id": number}) + "\n" for number, text in enumerate(documents))
    path.write_bytes(gzip.compress(lines.encode()) if path.suffix == ".gz" else lines.encode())
    return path


def request(*paths: Path, **changes: object) -> Request:
    return Request(find_sources([str(path) for path in paths]), **changes)


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return random_documents(0, 120)


@pytest.fixture(scope="module")
def bpe(documents, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    source = write_lines(folder / "docs.jsonl.gz", [*documents, "", documents[3]])
    manifest, built = tokenize(request(source, tokenizer="bpe", vocab_size=300), folder / "cache")
    assert built
    assert manifest.left_out == 2
    return folder / "cache"


def test_every_document_is_decoded_from_its_tokens_and_stands_where_its_hash_says(documents, bpe: Path) -> None:
    import tokenizers

    engine = tokenizers.Tokenizer.from_file(str(bpe / "tokenizer.json"))
    manifest, table = read_manifest(bpe), read_token_bytes(bpe, read_manifest(bpe))
    assert table.sum() > 300  # some tokens are merges
    for split, part in manifest.splits.items():
        tokens, starts = read_tokens(bpe, manifest, split), read_documents(bpe, split)
        assert tokens.dtype == np.uint16
        assert (len(starts), starts[0], starts[-1]) == (part.documents + 1, 0, len(tokens))
        found = []
        for start, end in zip(starts[:-1].astype(int), starts[1:].astype(int), strict=True):
            assert tokens[end - 1] == manifest.separator
            assert manifest.separator not in tokens[start : end - 1]
            found.append(engine.decode(tokens[start : end - 1].tolist(), skip_special_tokens=False))
            # Bytes by re-decoding, without the table.
            assert table[tokens[start:end]].sum() == len(found[-1].encode())
        assert found == [text for text in documents if split_of(text.encode()) == split]
        assert part.bytes == sum(len(text.encode()) for text in found)
    assert (bpe / "train.bin").stat().st_size == 2 * manifest.splits["train"].tokens


def test_bytes_are_their_own_tokens_and_zero_ends_documents(documents, tmp_path: Path) -> None:
    held = [
        write_lines(tmp_path / name, random_documents(seed, 9), "body")
        for seed, name in ((5, "v.jsonl"), (6, "t.jsonl"))
    ]
    train = write_lines(tmp_path / "train.jsonl", [*documents, random_documents(6, 9)[4]], "body")
    asked = request(train, validation=find_sources([str(held[0])]), test=find_sources([str(held[1])]), field="body")
    manifest, _ = tokenize(asked, tmp_path / "cache")
    data = (tmp_path / "cache" / "train.bin").read_bytes()
    assert data == b"".join(text.replace("\0", "").encode() + b"\0" for text in documents)
    assert manifest.left_out == 1  # stands in the test text already
    assert manifest.splits["train"].bytes == manifest.splits["train"].tokens == len(data)
    assert (manifest.splits["validation"].documents, manifest.splits["test"].documents) == (9, 9)


def test_a_cache_is_built_once_again_when_damaged_and_never_over_another(documents, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "docs.jsonl", documents)
    first, _ = tokenize(request(source), tmp_path / "cache")
    assert tokenize(request(source), tmp_path / "cache") == (first, False)
    data = bytearray((tmp_path / "cache" / "test.bin").read_bytes())
    data[10] ^= 1
    (tmp_path / "cache" / "test.bin").write_bytes(bytes(data))
    with pytest.raises(InputError, match=r"test\.bin is damaged"):
        check_digests(tmp_path / "cache", first)
    assert tokenize(request(source), tmp_path / "cache") == (first, True)
    check_digests(tmp_path / "cache", first)
    (tmp_path / "cache" / "manifest.json").write_text("{")
    assert tokenize(request(source), tmp_path / "cache") == (first, True)
    with pytest.raises(InputError, match="other sources"):
        tokenize(request(source, tokenizer="bpe", vocab_size=300), tmp_path / "cache")
    (tmp_path / "cache" / "report.html").write_text("")
    with pytest.raises(InputError, match="something else than a token cache"):
        tokenize(request(source), tmp_path / "cache")
    assert {path.name for path in tmp_path.iterdir()} == {"docs.jsonl", "cache"}  # nothing half-made is left


def test_sources_and_caches_are_read_from_urls(documents, bpe: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    memory = fsspec.filesystem("memory")
    for number in range(3):
        part = write_lines(tmp_path / "part.jsonl", documents[40 * number : 40 * number + 40])
        memory.pipe(f"/texts/part-{number}.jsonl.gz", gzip.compress(part.read_bytes()))
    sources = find_sources(["memory://texts/part-*.jsonl.gz"])
    assert [source.url for source in sources] == [f"memory:///texts/part-{number}.jsonl.gz" for number in range(3)]
    manifest, _ = tokenize(Request(sources, tokenizer=str(bpe / "tokenizer.json")), tmp_path / "cache")
    assert manifest.sha256 == read_manifest(bpe).sha256

    memory.put(str(tmp_path / "cache"), "/caches/docs", recursive=True)
    copy = local_cache("memory://caches/docs")
    check_digests(copy, read_manifest(copy))
    stamp = (copy / "train.bin").stat().st_mtime_ns
    assert local_cache("memory://caches/docs") == copy
    assert (copy / "train.bin").stat().st_mtime_ns == stamp  # copied once
    (copy / "train.bin").write_bytes(b"short")
    check_digests(local_cache("memory://caches/docs"), manifest)
    memory.pipe("/caches/docs/train.bin", b"x" * len(memory.cat("/caches/docs/train.bin")))
    (copy / "train.bin").write_bytes(b"short")
    with pytest.raises(InputError, match="did not arrive as its manifest says"):
        local_cache("memory://caches/docs")
    with pytest.raises(InputError, match="cannot be copied"):
        local_cache("memory://caches/nothing")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "good"}\n{"body": "x"}\n', r"a\.jsonl line 2 has no text in the field 'text' .*body"),
        ("a.jsonl", b'{"text": "good"}\n\n{"text": 3}\n', r"a\.jsonl line 3 has no text"),
        ("a.jsonl", b'{"text": "good"}\n{"text"', r"a\.jsonl line 2 is not valid JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl line 1 is not valid JSON"),
        ("a.jsonl", b'{"text": "\xff"}\n', r"a\.jsonl line 1 is not UTF-8 at byte 11"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', r"a\.jsonl line 1 is not UTF-8: .*surrogate"),
        ("a.txt", b"caf\xe9", r"a\.txt is not UTF-8 at byte 4"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "good"}\n' * 99)[:-20], r"a\.jsonl\.gz is damaged or cut off"),
        ("a.jsonl.gz", b"plain", r"a\.jsonl\.gz is damaged or cut off"),
        ("a.csv", b"text\n", r"a\.csv is no kind of text"),
        ("a.txt", b"one", "no document of .* is for (validation|test)"),
        ("a.jsonl", b"", "no document of .* is for train"),
    ],
    ids=range(12),
)
def test_bad_sources_are_named_with_their_line(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        tokenize(request(tmp_path / name), tmp_path / "cache")
    assert [path.name for path in tmp_path.iterdir()] == [name]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=5))
def test_json_lines_come_back_as_written(documents: list[str]) -> None:
    memory = fsspec.filesystem("memory")
    lines = "".join(
        json.dumps({"text": text}, ensure_ascii=number % 2 == 0) + "\n" for number, text in enumerate(documents)
    )
    memory.pipe("/lines.jsonl", lines.encode())
    taken: list[bytes] = []
    (source,) = find_sources(["memory://lines.jsonl"])
    read = documents_of(source, "text", taken.append, lambda done: None)
    assert [text for text, _ in read] == documents
    assert b"".join(taken) == lines.encode()


@pytest.mark.parametrize("stop_at", [0, 1, 30, 117, 119, 240])
def test_a_build_stopped_at_any_document_goes_on(documents, tmp_path: Path, monkeypatch, stop_at: int) -> None:
    monkeypatch.setattr("models.tokenize_corpus.KEEP_SECONDS", 0.0)
    monkeypatch.setattr("models.tokenize_corpus.DOCUMENTS_AT_ONCE", 7)
    parts = [[*documents[30 * n : 30 * n + 30], documents[5 * n]] for n in range(4)]  # with repeats
    sources = [write_lines(tmp_path / f"{n}.jsonl", part) for n, part in enumerate(parts)]
    asked = request(*sources, tokenizer="bpe", vocab_size=300)
    whole, _ = tokenize(asked, tmp_path / "whole")
    added, error, add = [], KeyboardInterrupt() if stop_at % 2 else OSError(errno.ENOSPC, "No space left"), _Part.add

    def stopping(self, tokens, text_bytes: int) -> None:
        if len(added) == stop_at:
            self._files[0].write(b"half a document")
            raise error
        added.append(len(tokens))
        add(self, tokens, text_bytes)

    monkeypatch.setattr(_Part, "add", stopping)
    if stop_at < 120:
        with pytest.raises(
            (KeyboardInterrupt, InputError), match=None if stop_at % 2 else "cannot be written: No space"
        ):
            tokenize(asked, tmp_path / "cache")
        assert not (tmp_path / "cache").exists()
    read: list[tuple[str, int]] = []
    monkeypatch.setattr(_Part, "add", add)
    assert tokenize(asked, tmp_path / "cache", lambda label, done, total: read.append((label, done))) == (whole, True)
    assert whole.left_out == 4
    check_digests(tmp_path / "cache", whole)
    assert {path.name for path in (tmp_path / "cache").iterdir()} == FILES
    assert {label for label, _ in read} == (
        {"tokenizing"} if stop_at < 120 else {"training the tokenizer", "tokenizing"}
    )
    first = min(done for label, done in read if label == "tokenizing")
    assert (first == sources[0].stat().st_size) == (30 <= stop_at < 120)  # what was kept is not read again
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "cache", *(path.name for path in sources)}


def test_a_build_goes_on_once_a_source_can_be_read_again(documents, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("models.tokenize_corpus.KEEP_SECONDS", 0.0)
    memory = fsspec.filesystem("memory")
    for number in range(2):
        part = write_lines(tmp_path / "part.jsonl", documents[60 * number : 60 * number + 60])
        memory.pipe(f"/flaky/{number}.jsonl", part.read_bytes())
    asked = Request(find_sources(["memory://flaky/*.jsonl"]))
    second = memory.cat("/flaky/1.jsonl")
    memory.pipe("/flaky/1.jsonl", second[:-9] + b"\xff" * 9)  # as many bytes, so the same request
    with pytest.raises(InputError, match="not UTF-8"):
        tokenize(asked, tmp_path / "cache")
    memory.pipe("/flaky/1.jsonl", second)
    memory.pipe("/flaky/0.jsonl", b"not read again")
    manifest, _ = tokenize(asked, tmp_path / "cache")
    assert sum(split.documents for split in manifest.splits.values()) == 120
    assert {path.name for path in tmp_path.iterdir()} == {"part.jsonl", "cache"}


def test_whatever_a_store_raises_is_one_sentence(tmp_path: Path, monkeypatch) -> None:
    class NoCredentialsError(Exception):
        """As the clients of object stores have them, no OSError."""

    def refuse(*_, **__):
        raise NoCredentialsError("no credentials")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "exists", refuse)
    monkeypatch.setattr(type(fsspec.filesystem("memory")), "_open", refuse)
    for read in (
        lambda: find_sources(["memory://texts/a.jsonl"]),
        lambda: local_cache("memory://caches/a"),
        lambda: read_mixture("memory://mix.toml"),
    ):
        with pytest.raises(InputError, match=r"memory://.* cannot be .*: no credentials"):
            read()
    with pytest.raises(InputError, match=r"foo://x cannot be opened: Protocol not known"):
        find_sources(["foo://x"])


def test_two_builds_of_one_cache_do_not_mix(documents, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "docs.jsonl", documents)

    def meddle(label: str, done: int, total: int) -> None:
        with pytest.raises(InputError, match="another process is building"):
            tokenize(request(source), tmp_path / "cache")

    assert tokenize(request(source), tmp_path / "cache", meddle)[1]


def test_a_stopped_build_of_what_has_changed_is_dropped(documents, tmp_path: Path, monkeypatch) -> None:
    source = write_lines(tmp_path / "docs.jsonl", documents)

    def stop(label: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize(request(source), tmp_path / "cache", stop)
    assert len(list(tmp_path.glob(".cache-*.partial"))) == 1
    write_lines(source, documents[:100])
    assert tokenize(request(source), tmp_path / "cache")[1]
    assert {path.name for path in tmp_path.iterdir()} == {"docs.jsonl", "cache"}


def test_requests_that_make_no_sense_are_refused(documents, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "docs.jsonl", documents)
    with pytest.raises(InputError, match="both --validation and --test"):
        request(source, test=find_sources([str(write_lines(tmp_path / "t.jsonl", documents))]))
    with pytest.raises(InputError, match="given twice"):
        request(source, source)
    with pytest.raises(InputError, match="--vocab-size belongs to"):
        request(source, vocab_size=300)
    with pytest.raises(InputError, match="--vocab-size belongs to"):
        request(source, tokenizer="bpe")
    with pytest.raises(InputError, match="--separator belongs to"):
        request(source, separator="</s>")
    with pytest.raises(InputError, match="at least 257"):
        tokenize(request(source, tokenizer="bpe", vocab_size=100), tmp_path / "cache")
    with pytest.raises(InputError, match="gives a vocabulary of"):
        tokenize(request(source, tokenizer="bpe", vocab_size=100_000), tmp_path / "cache")
    with pytest.raises(InputError, match="cannot be read"):
        tokenize(request(source, tokenizer=str(tmp_path / "none.json")), tmp_path / "cache")
    with pytest.raises(InputError, match=r"nothing\.jsonl does not exist"):
        find_sources([str(tmp_path / "nothing.jsonl")])
    with pytest.raises(InputError, match="no Levanter cache"):
        find_sources([str(tmp_path)])
    # Found while the tokenizer is trained, inside the library.
    (tmp_path / "bad.jsonl").write_bytes(source.read_bytes() + b"{}\n")
    with pytest.raises(InputError, match=r"bad\.jsonl line 121 has no text"):
        tokenize(request(tmp_path / "bad.jsonl", tokenizer="bpe", vocab_size=300), tmp_path / "cache")


def test_tokenizers_built_like_those_of_llama_3_and_neox_keep_their_bytes(documents) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers, processors

    engine = Tokenizer.from_str(train_bpe(documents, 300).json.decode())
    splits = pre_tokenizers.Split(Regex(r"\p{N}{1,3}| ?\p{L}+|\s+"), "isolated")
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    engine.pre_tokenizer = pre_tokenizers.Sequence([splits, bytes_of])
    engine.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    engine.add_tokens([AddedToken("    ", normalized=False), AddedToken("ﬁ", normalized=False)])
    start = engine.token_to_id("<|begin_of_text|>")
    engine.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", start)]
    )
    tokenizer = read_tokenizer(engine.to_str().encode(), "llama.json", "<|end_of_text|>")
    assert (tokenizer.vocab_size, tokenizer.separator) == (304, start + 1)
    texts = [*documents[:20], "a<|begin_of_text|>b<|end_of_text|>", "      1234567 ﬁ"]
    for text, (tokens, stands_for) in zip(texts, tokenizer.encode([(text, "") for text in texts]), strict=True):
        assert engine.decode(tokens.tolist(), skip_special_tokens=False) == text
        assert stands_for == len(text.encode())
        assert not {0, start, start + 1} & set(tokens.tolist())
    assert {302, 303} <= set(tokens.tolist())  # added tokens that are text


def test_tokenizers_that_lose_bytes_or_end_no_documents_are_refused(documents) -> None:
    from tokenizers import Tokenizer, decoders, normalizers

    good = train_bpe(documents, 300)
    assert good.json == train_bpe(documents, 300).json
    engine = Tokenizer.from_str(good.json.decode())
    engine.normalizer = normalizers.NFKC()
    normalizing = read_tokenizer(engine.to_str().encode(), "nfkc.json")
    ((tokens, stands_for),) = normalizing.encode([("ﬁ ﬁ", "here")])
    assert stands_for == len("fi fi") == normalizing.token_bytes[tokens].sum()

    plain = json.loads(good.json)
    plain["pre_tokenizer"]["add_prefix_space"] = True
    spaced = read_tokenizer(json.dumps(plain).encode(), "spaced.json")
    with pytest.raises(InputError, match="here: the document's tokens stand for 2 bytes, but it has 1"):
        spaced.encode([("a", "here")])
    with pytest.raises(InputError, match=r"none\.json has no token <\|x\|> to end"):
        read_tokenizer(good.json, "none.json", "<|x|>")
    with pytest.raises(InputError, match="stands for text"):
        read_tokenizer(good.json, "text.json", "a")
    engine.decoder = decoders.Metaspace()
    with pytest.raises(InputError, match=r"meta\.json is no byte-level BPE"):
        read_tokenizer(engine.to_str().encode(), "meta.json")
    with pytest.raises(InputError, match=r"bad\.json is no tokenizer\.json"):
        read_tokenizer(b"{}", "bad.json")


@given(st.data())
def test_whatever_a_manifest_says_it_is_read_or_refused(bpe: Path, data: st.DataObject) -> None:
    path = bpe / "manifest.json"
    whole = json.loads(path.read_text())
    place = data.draw(st.sampled_from([whole, whole["splits"], whole["splits"]["train"]]))
    key = data.draw(st.sampled_from(sorted(place)))
    before = place[key]
    place[key] = data.draw(
        st.none() | st.integers() | st.text(max_size=3) | st.just(before) | st.dictionaries(st.text(), st.none())
    )
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / "manifest.json"
        changed.write_text(json.dumps(whole))
        try:
            manifest = parse_manifest(changed)
        except InputError:
            assert place[key] != before
        else:
            assert to_plain(manifest) == {name: value for name, value in whole.items() if name != "schema"}


def test_levanter_is_asked_for_where_its_cache_is_given(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "shard_ledger.json").write_text("{}")
    for module in ("levanter", "levanter.store", "levanter.store.cache"):
        monkeypatch.setitem(sys.modules, module, None)
    (source,) = find_sources([str(tmp_path)])
    with pytest.raises(InputError, match="needs Levanter; install foretell with the extra levanter"):
        next(documents_of(source, "text", lambda data: None, lambda done: None))


def test_a_cache_without_training_text_is_refused(tmp_path: Path) -> None:
    with CacheWriter(tmp_path / "cache") as writer:
        writer.add("test", np.full(99, 97, np.uint8), 99)
        writer.add("validation", np.full(99, 97, np.uint8), 99)
        writer.finish({})
    with pytest.raises(InputError, match="there is no train text"):
        read_manifest(tmp_path / "cache")


def test_the_smallest_type_that_holds_the_vocabulary() -> None:
    assert [token_dtype(size).itemsize for size in (256, 257, 65_536, 65_537, 128_256)] == [1, 2, 2, 4, 4]


def test_the_command_says_what_it_built(documents, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "docs.jsonl", documents)
    arguments = ["tokenize", str(source), "-o", str(tmp_path / "cache")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert f"Built {tmp_path / 'cache'}" in done.stdout
    assert "tokenizing: 100 %" in done.stderr
    again = CliRunner().invoke(app, [*arguments, "--json", "--quiet"])
    assert not again.stderr
    found = json.loads(again.stdout)
    assert found["built"] is False
    assert found["sha256"] == read_manifest(tmp_path / "cache").sha256


@pytest.mark.slow
def test_a_levanter_cache_becomes_the_cache_of_the_same_documents(documents, bpe: Path, tmp_path: Path) -> None:
    store = pytest.importorskip("levanter.store.cache")
    tokenizer = read_tokenizer((bpe / "tokenizer.json").read_bytes(), "tokenizer.json")
    encoded = tokenizer.encode([(text, "") for text in documents])
    rows = [{"input_ids": np.append(tokens, tokenizer.separator).astype(np.int32)} for tokens, _ in encoded]
    with store.SerialCacheWriter(str(tmp_path / "levanter"), {"input_ids": np.zeros(0, np.int32)}) as writer:
        writer.write_batch(rows)
    asked = {"tokenizer": str(bpe / "tokenizer.json")}
    manifest, _ = tokenize(request(tmp_path / "levanter", **asked), tmp_path / "cache")
    there = read_manifest(bpe)
    assert sum(split.documents for split in manifest.splits.values()) == len(documents)
    assert sum(split.bytes for split in manifest.splits.values()) == sum(split.bytes for split in there.splits.values())
    with pytest.raises(InputError, match="numbered already"):
        request(tmp_path / "levanter")
    small = tmp_path / "small.json"
    small.write_bytes(train_bpe(documents, 260).json)
    with pytest.raises(InputError, match="document 1 has tokens from"):
        tokenize(request(tmp_path / "levanter", tokenizer=str(small)), tmp_path / "other")
