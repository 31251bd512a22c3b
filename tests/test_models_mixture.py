"""Mixtures: proportions kept at every prefix, batches from seed and step alone, epochs counted, domains evaluated."""

import itertools
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ladder.errors import InputError
from ladder.provenance import provenance
from ladder.rung import Ladder
from ladder.study import Study
from models.cache import read_documents
from models.cache_writer import CacheWriter
from models.cli import app
from models.data import EVAL_TOKENS, Batches, eval_windows, read_corpus, training_order
from models.evaluate import evaluate
from models.experts import dense
from models.interleave import Interleaving
from models.mixture import Mixture, read_mixture
from models.record import read_record
from models.run import train_run
from models.table import collect_runs
from models.tokenizer import train_bpe
from models.train import initial_state
from tests.models_small import SHAPE, random_documents, small_rung, write_corpus

SEQ = SHAPE.seq_len


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two BPE caches and a mixture file of them, 3 to 1."""
    folder = tmp_path_factory.mktemp("mixed")
    parts = {"code": random_documents(1, 150), "docs": random_documents(2, 90)}
    tokenizer = train_bpe(parts["code"], 300)
    for name, documents in parts.items():
        known = (tokenizer.vocab_size, tokenizer.separator, tokenizer.json, tokenizer.token_bytes)
        with CacheWriter(folder / name, *known) as writer:
            for number, encoded in enumerate(tokenizer.encode([(text, "") for text in documents])):
                writer.add(("test", "validation", "train", "train", "train")[number % 5], *encoded)
            writer.finish({"made": "here"})
    write_mixture(folder / "mix.toml", code=3, docs=1)
    return folder


def write_mixture(path: Path, **weights: object) -> Path:
    parts = [f'[domains.{name}]\ncache = "{name}"\nweight = {weight}\n' for name, weight in weights.items()]
    path.write_text('schema = "mixture/1"\n' + "".join(parts))
    return path


def bpe_rung(steps: int = 30, **changes: object):
    return small_rung(steps, shape=replace(SHAPE, vocab_size=300), **changes)


@given(st.lists(st.integers(1, 60), min_size=2, max_size=6))
def test_every_prefix_holds_the_proportions_to_within_one(weights: list[int]) -> None:
    total, count = sum(weights), len(weights)
    interleaving = Interleaving.of(weights, 3 * total)
    domains, ranks = interleaving.at(np.arange(3 * total))
    had = [0] * count
    for n, (domain, rank) in enumerate(zip(domains.tolist(), ranks.tolist(), strict=True), start=1):
        assert rank == had[domain]
        had[domain] += 1
        # Tijdeman's bound, in whole numbers: |had - n w / total| <= 1 - 1 / (2k - 2).
        worst = max(abs(total * each - n * weight) for each, weight in zip(had, weights, strict=True))
        assert (2 * count - 2) * worst <= (2 * count - 3) * total
        assert interleaving.counts(n) == tuple(had)
    assert had == [3 * weight for weight in weights]
    # Only so much of the period is made as is needed, and that is the same.
    needed = max(1, total // 2)
    short, _ = Interleaving.of(weights, needed).at(np.arange(needed))
    assert short.tolist() == domains[:needed].tolist()


def test_one_corpus_is_every_window_once_an_epoch_in_the_order_of_the_seed(tmp_path: Path) -> None:
    corpus = read_corpus(write_corpus(tmp_path / "corpus", 16 * 40 + 1))
    text = corpus.train[0]
    rung = small_rung(30)
    batches = Batches(corpus, rung, seed=3).at(0, 30)
    assert batches.shape == (30, 4, SEQ + 1)
    windows = [bytes(text[SEQ * i : SEQ * i + SEQ + 1]) for i in range(40)]
    rows = [bytes(row) for row in batches.reshape(-1, SEQ + 1)]
    for epoch in range(3):
        assert Counter(rows[40 * epoch : 40 * epoch + 40]) == Counter(windows)
        order = np.argsort(np.random.Philox(key=3, counter=[0, 0, 0, epoch]).random_raw(40))
        assert rows[40 * epoch : 40 * epoch + 40] == [windows[i] for i in order]
    assert rows[:40] != rows[40:80]
    other = Batches(corpus, rung, seed=4).at(0, 10).reshape(-1, SEQ + 1)
    assert [bytes(row) for row in other] != rows[:40]


def test_batches_depend_on_mixture_seed_and_step_alone(mixed: Path) -> None:
    corpus = read_corpus(read_mixture(str(mixed / "mix.toml"), epochs=9))
    rung = bpe_rung(400)
    whole = Batches(corpus, rung, seed=5).at(0, 400)
    for first, last in ((0, 1), (17, 60), (399, 400), (100, 101)):
        np.testing.assert_array_equal(Batches(corpus, rung, seed=5).at(first, last), whole[first:last])
    backwards = Batches(corpus, rung, seed=5)
    for step in range(399, -1, -57):
        np.testing.assert_array_equal(backwards.at(step, step + 1)[0], whole[step])

    # By brute force: the windows of each domain, in the orders of its epochs, dealt out three to one.
    streams = []
    for number, text in enumerate(corpus.train):
        windows = (len(text) - 1) // SEQ
        orders = np.concatenate([training_order(windows, 5, number, epoch) for epoch in range(9)])
        assert all(sorted(orders[windows * e : windows * e + windows]) == list(range(windows)) for e in range(9))
        streams.append(iter([text[SEQ * i : SEQ * i + SEQ + 1].tolist() for i in orders]))
    domains, _ = Interleaving.of((3, 1), 1600).at(np.arange(1600))
    assert whole.reshape(-1, SEQ + 1).tolist() == [next(streams[domain]) for domain in domains]


def test_epochs_are_counted_by_domain_and_refused_beyond_what_is_allowed(mixed: Path) -> None:
    mixture = read_mixture(str(mixed / "mix.toml"))
    code, docs = (domain.windows(SEQ) for domain in mixture.domains)
    most = min(code * 4 // 3, docs * 4) // 4  # steps of four sequences, three of them code
    mixture.check(bpe_rung(most))
    assert mixture.unique_tokens(bpe_rung(most)) == bpe_rung(most).tokens
    longer = bpe_rung(2 * most)
    scarce = "code" if code < 3 * docs else "docs"
    with pytest.raises(InputError, match=rf"training tokens of domain {scarce} but .* passes with --epochs"):
        mixture.check(longer)
    allowed = replace(mixture, epochs=2)
    allowed.check(longer)
    assert allowed.sha256 == mixture.sha256  # what is allowed decides no batch
    assert allowed.epochs_of(longer) == {"code": 6 * most / code, "docs": 2 * most / docs}
    seen = {bytes(row) for row in Batches(read_corpus(allowed), longer, 0).at(0, 2 * most).reshape(-1, SEQ + 1)[:, :-1]}
    assert len(seen) == pytest.approx(allowed.unique_tokens(longer) / SEQ, rel=0.01)  # windows can be equal by chance
    with pytest.raises(
        InputError, match=r"needs .* tokens of domain .*, [0-9]+ in 2 epochs; .* 3 passes with --epochs 3"
    ):
        allowed.check(bpe_rung(math.ceil(2.5 * most)))


def test_bits_per_byte_count_the_bytes_of_the_predicted_text(mixed: Path) -> None:
    import tokenizers

    engine = tokenizers.Tokenizer.from_file(str(mixed / "code" / "tokenizer.json"))
    corpus = read_corpus(mixed / "code")
    text = next(each for each in corpus.held_out if each.name == "test")
    windows = eval_windows(text.tokens, SEQ, EVAL_TOKENS["test"])
    by_table = int(corpus.token_bytes[windows[:, 1:]].sum())
    # All windows in a row predict every token but the first and a rest; the documents among them are decoded whole.
    predicted = text.tokens[1 : 1 + windows[:, 1:].size]
    starts = read_documents(mixed / "code", "test").astype(int)
    inside = [(a, b) for a, b in itertools.pairwise(starts) if a and b <= len(predicted)]
    decoded = sum(len(engine.decode(text.tokens[a:b].tolist()).encode()) for a, b in inside)
    edges = np.concatenate([text.tokens[1 : inside[0][0]], text.tokens[inside[-1][1] : 1 + len(predicted)]])
    table = corpus.token_bytes
    assert by_table == decoded + int(table[edges].sum())
    assert decoded > 10 * int(table[edges].sum())


def test_a_run_on_a_mixture_is_evaluated_by_domain(mixed: Path, tmp_path: Path) -> None:
    text = (mixed / "mix.toml").read_text()
    (mixed / "separate.toml").write_text(text.replace("[domains", 'documents = "separate"\n[domains', 1))
    mixture = read_mixture(str(mixed / "separate.toml"))
    packed = read_mixture(str(mixed / "mix.toml"))
    assert (mixture.separator, packed.separator) == (0, None)
    assert mixture.sha256 != packed.sha256
    rung, study = bpe_rung(30, capacity_factor=3.0), Study(tmp_path)  # nothing drops
    corpus = read_corpus(mixture)
    record = train_run(rung, 0, study.run(rung.run_id(0)), corpus)
    assert read_record(study.run(rung.run_id(0)) / "record.json") == record
    table = collect_runs(study, Ladder("one", (rung,), provenance())).frame.set_index("metric")
    names = [f"{split}{domain}" for split in ("validation", "test") for domain in ("", "/code", "/docs")]
    assert list(table.index) == [f"{name}/loss" for name in names]
    for split in ("validation", "test"):
        parts = [record.evaluations[f"{split}/{name}"] for name in ("code", "docs")]
        whole = record.evaluations[split]
        assert whole.nats_per_token == pytest.approx(np.mean([part.nats_per_token for part in parts]))
        assert whole.bits_per_byte == pytest.approx(np.mean([part.bits_per_byte for part in parts]))
        assert whole.standard_error == pytest.approx(np.hypot(*(part.standard_error for part in parts)) / 2)
    for text in corpus.held_out:
        predicted = eval_windows(text.tokens, SEQ, EVAL_TOKENS[text.split])[:, 1:]
        found = record.evaluations[text.name]
        bits = found.nats_per_token / np.log(2) * predicted.size / corpus.token_bytes[predicted].sum()
        assert found.bits_per_byte == pytest.approx(bits)
        assert 0 < found.nats_per_token < np.log(300)
    assert set(table["tokenizer"]) == {mixture.tokenizer}
    assert set(table["unique_tokens"]) == {rung.tokens}
    assert set(table["data_mix"]) == {mixture.sha256}
    assert table["eval_set"].nunique() == 6
    assert table.loc["test/code/loss", "eval_set"] == f"test:{mixture.domains[0].sha256}"
    assert record.data.epochs == mixture.epochs_of(rung)
    assert record.data.documents == "separate"

    # Documents that share a sequence are trained and evaluated on as if each stood alone.
    state = initial_state(rung.shape, jnp.int32(0))
    rows = Batches(corpus, rung, 0).at(0, 1)[0]
    assert (rows[:, : SEQ - 1] == 0).any()
    first = json.loads((study.run(rung.run_id(0)) / "metrics.jsonl").read_text().splitlines()[0])
    assert first["loss"] == pytest.approx(loss_of_documents_alone(state.params, state.bias, rows), rel=1e-5)
    tokens = corpus.held_out[0].tokens
    found = evaluate(state.params, state.bias, tokens, 20 * SEQ, corpus.token_bytes, jnp.int32(0))
    rows = eval_windows(tokens, SEQ, 20 * SEQ)
    assert found.nats_per_token == pytest.approx(loss_of_documents_alone(state.params, state.bias, rows), rel=1e-5)
    with pytest.raises(InputError, match=r"tokenizer has 300 tokens but rung .* a vocabulary of 256"):
        train_run(small_rung(30), 0, tmp_path / "small", corpus)
    assert not (tmp_path / "small").exists()


def loss_of_documents_alone(params, bias, rows: np.ndarray) -> float:
    """The mean loss over rows of S + 1 tokens, each document put at the start of a row of its own."""
    moved, at = np.zeros((64, SEQ), np.int32), []
    for row in rows.astype(np.int32):
        for a, b in itertools.pairwise([0, *(np.flatnonzero(row[: SEQ - 1] == 0) + 1), SEQ]):
            moved[len(at), : b - a] = row[a:b]
            at.append(row[a + 1 : b + 1])
    logits = jax.jit(lambda tokens: params(tokens, bias, dense)[0])(jnp.asarray(moved))
    chances = np.asarray(jax.nn.log_softmax(logits), np.float64)
    return -np.concatenate([chances[n, np.arange(len(next_)), next_] for n, next_ in enumerate(at)]).mean()


def test_losses_of_mixtures_with_other_weights_are_compared_on_one_text(mixed: Path) -> None:
    mine = read_corpus(read_mixture(str(mixed / "mix.toml")))
    theirs = read_corpus(read_mixture(str(write_mixture(mixed / "even.toml", docs=1, code=1))))
    assert mine.eval_sets == theirs.eval_sets
    assert mine.mixture.sha256 != theirs.mixture.sha256


def test_a_mixture_is_known_by_its_content(mixed: Path) -> None:
    here = read_mixture(str(mixed / "mix.toml"))
    same = {"schema": "mixture/1", "domains": {"code": {"cache": str(mixed / "code"), "weight": 0.3}}}
    same["domains"]["docs"] = {"cache": str(mixed / "docs"), "weight": 0.1}
    (mixed / "same.json").write_text(json.dumps(same))
    assert read_mixture(str(mixed / "same.json")) == here
    assert [domain.weight for domain in here.domains] == [3, 1]
    assert read_mixture(str(write_mixture(mixed / "six.toml", code=6, docs=2))).sha256 == here.sha256
    assert read_mixture(str(write_mixture(mixed / "two.toml", code=2, docs=1))).sha256 != here.sha256
    alone = read_mixture(str(mixed / "code"))
    assert alone.sha256 == alone.domains[0].sha256 == here.domains[0].sha256


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema =", r"mix\.toml is no valid TOML"),
        ("[domains]", r"its schema is None, expected 'mixture/1'"),
        ('schema = "mixture/1"', "has no domains"),
        ('schema = "mixture/1"\ndocuments = "mixed"\n[domains.code]', "documents 'mixed' must be packed or separate"),
        ('schema = "mixture/1"\nseed = 3\n[domains.code]\ncache = "code"\nweight = 1', "unknown field seed"),
        ('schema = "mixture/1"\n[domains.code]\ncache = "code"', "domain code must have cache and weight"),
        ('schema = "mixture/1"\n[domains."a/b"]\ncache = "code"\nweight = 1', "domain 'a/b' must be of lower-case"),
        ('schema = "mixture/1"\n[domains.code]\ncache = 3\nweight = 1', "cache 3 is no folder"),
        ('schema = "mixture/1"\n[domains.code]\ncache = "none"\nweight = 1', "none does not exist"),
        *(
            (f'schema = "mixture/1"\n[domains.code]\ncache = "code"\nweight = {weight}', words)
            for weight, words in (
                ("0", "code: weight 0 must be positive"),
                ("-0.5", "weight -0.5 must be positive"),
                ("inf", "weight Infinity is no number"),
                ("nan", "weight NaN is no number"),
                ("true", "weight True is no number"),
                ('"much"', "weight much is no number"),
                ("1\n[domains.docs]\ncache = 'docs'\nweight = 1e9", "a factor of 1000000 apart"),
                ("1\n[domains.again]\ncache = 'code'\nweight = 1", "code and again are one cache"),
                ("1\n[domains.raw]\ncache = 'bytes'\nweight = 1", "code and raw have different tokenizers"),
            )
        ),
    ],
    ids=range(18),
)
def test_bad_mixtures_are_named_with_their_domain(mixed: Path, text: str, words: str) -> None:
    if not (mixed / "bytes").exists():
        write_corpus(mixed / "bytes")
    (mixed / "bad").mkdir(exist_ok=True)
    (mixed / "bad" / "mix.toml").write_text(
        text.replace('cache = "', 'cache = "../').replace("cache = '", "cache = '../")
    )
    with pytest.raises(InputError, match=words):
        read_mixture(str(mixed / "bad" / "mix.toml"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
entries = st.fixed_dictionaries({"cache": st.just("code") | json_values, "weight": st.integers(1, 9) | json_values})
names = st.sampled_from(["code", "docs"]) | st.text(max_size=4)


@settings(max_examples=60)
@given(
    st.fixed_dictionaries(
        {"schema": st.just("mixture/1") | json_values, "domains": st.dictionaries(names, entries) | json_values}
    )
    | json_values
)
def test_whatever_a_mixture_file_says_it_is_read_or_refused(mixed: Path, data: object) -> None:
    (mixed / "any.json").write_text(json.dumps(data))
    try:
        read = read_mixture(str(mixed / "any.json"))
    except InputError:
        return
    assert [(domain.name, domain.weight) for domain in read.domains] == [(name, 1) for name in data["domains"]]


def test_a_domain_too_short_for_a_sequence_is_refused_before_training(tmp_path: Path) -> None:
    with CacheWriter(tmp_path / "tiny") as writer:
        for split in ("train", "validation", "test"):
            writer.add(split, np.full(20, 97, np.uint8), 20)
        writer.finish({})
    with pytest.raises(
        InputError, match="has 21 training tokens and a held-out text of 21, too few for sequences of 16"
    ):
        read_mixture(str(tmp_path / "tiny")).check(small_rung(1))


def test_train_run_refuses_data_that_does_not_do_before_any_run_starts(mixed: Path, tmp_path: Path) -> None:
    study = Study(tmp_path)
    Ladder("one", (small_rung(30),), provenance()).save(study.ladder)
    done = CliRunner().invoke(app, ["run", "--study", str(tmp_path), "--corpus", str(mixed / "mix.toml")])
    assert isinstance(done.exception, InputError)
    assert "tokenizer has 300 tokens" in str(done.exception)
    assert not (tmp_path / "runs").exists()


def test_a_cache_that_changed_since_it_was_resolved_is_refused(tmp_path: Path) -> None:
    mixture: Mixture = read_mixture(str(write_corpus(tmp_path / "corpus")))
    changed = replace(mixture, domains=(replace(mixture.domains[0], sha256="0" * 64),))
    with pytest.raises(InputError, match="holds another cache than when this command began"):
        read_corpus(changed)
