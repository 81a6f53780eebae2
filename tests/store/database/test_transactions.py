"""Operations and questions against real LMDB, without sockets."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import lmdb
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed.core.errors import (
    FilesLost,
    MalformedMessage,
    RunMismatch,
    StoreDamaged,
    StoreError,
    StoreFull,
    UnknownSample,
)
from rhymed.core.messages import (
    EVAL,
    ForgetLogprobs,
    GetHistory,
    GetJournal,
    GetLengths,
    GetSamples,
    MarkSamples,
    OpenRun,
    PromptRow,
    PutPrompts,
    PutScores,
    SampleId,
    Score,
)
from rhymed_store.browse import Browse
from rhymed_store.client import NewSample, StoreClient
from rhymed_store.database.stream import Stream
from rhymed_store.database.tables import Reader
from rhymed_store.database.transactions import Batch
from tests.store.stores import OTHER, PROMPT, LocalStore, new_sample


def earlier(local: LocalStore, before_step: int, limit: int = 16) -> list[tuple[int, int]]:
    found, _ = local.reads.history(GetHistory(prompt=PROMPT, before_step=before_step, limit=limit))
    return [(info.id.step, info.id.index) for info in found.samples]


def states(local: LocalStore, from_step: int = 0) -> dict[str, str]:
    return {str(entry.id): entry.state for entry in local.reads.journal(GetJournal(from_step=from_step)).entries}


def test_history_is_newest_first_and_of_one_prompt(local: LocalStore) -> None:
    for step in (-3, 0, 2, 1):
        local.put(*(new_sample(step, index, length=step + 10) for index in (1, 0)))
        local.put(new_sample(step, 0, prompt=OTHER), new_sample(step, 0, prompt="00000000000000a9"))
    assert earlier(local, 2) == [(1, 0), (1, 1), (0, 0), (0, 1), (-3, 0), (-3, 1)]
    assert earlier(local, 100, limit=3) == [(2, 0), (2, 1), (1, 0)]
    assert earlier(local, -3) == []
    assert earlier(local, 2**31) == earlier(local, 3)
    found = local.reads.lengths(GetLengths(prompts=[PROMPT, "f" * 16], before_step=2))
    assert found.rows[0].lengths == [(-3, 7), (-3, 7), (0, 10), (0, 10), (1, 11), (1, 11)]
    assert found.rows[1].lengths == []


def test_the_last_prompt_of_all_has_a_history(local: LocalStore) -> None:
    local.put(new_sample(0, prompt="f" * 16), new_sample(5, prompt="f" * 16))
    found, _ = local.reads.history(GetHistory(prompt="f" * 16, before_step=2**31 - 1))
    assert [info.id.step for info in found.samples] == [5, 0]


def test_samples_come_back_as_they_were_put(local: LocalStore) -> None:
    put = [new_sample(0, index, length=length) for index, length in enumerate((0, 1, 37, 3000, 9000, 70_000))]
    local.put(*put[:3])
    local.put(*put[3:])
    asked = [put[index] for index in (4, 0, 5, 1, 3, 2, 4)]
    ids = [sample.info.id for sample in asked]
    found, arrays = local.reads.samples(GetSamples(samples=ids, logprobs=True, prompt_tokens=True))
    assert list(found.samples) == [sample.info for sample in asked]
    tokens, logprobs, contexts = (bytes(array) for array in arrays)
    assert tokens == b"".join(np.asarray(sample.tokens).tobytes() for sample in asked)
    assert logprobs == b"".join(np.asarray(sample.logprobs).tobytes() for sample in asked)
    assert contexts == b"".join(np.asarray(sample.prompt_tokens).tobytes() for sample in asked)


def test_accepted_drafts_come_back_as_they_were_put(local: LocalStore) -> None:
    lengths = (0, 1, 8, 37, 3000, 9000, 70_000)
    put = [new_sample(0, index, length=length) for index, length in enumerate(lengths)]
    local.put(*put[:4])
    local.put(*put[4:])
    ids = [sample.info.id for sample in put]
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=[Score(id=id, reward=1.0) for id in ids])))
    local.do(lambda b: local.writes.mark(b, MarkSamples(samples=ids, state="trained")))
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=9)))
    browse = Browse(local.database)
    found = browse.headers(PROMPT)
    assert {response.state for response in browse.responses(PROMPT)} == {"trained"}
    read = [response.drafted for response in browse.responses(PROMPT)]
    for masks in (read, browse.drafted(found)):
        for sample, mask in zip(put, masks, strict=True):
            assert (mask is None) == (sample.drafted is None)
            if mask is not None:
                assert mask.dtype == np.bool_
                np.testing.assert_array_equal(mask, sample.drafted)
    assert sum(mask is None for mask in read) == 1


def test_a_sample_keeps_its_first_record(local: LocalStore) -> None:
    first, second = new_sample(0, 0, seed=1), new_sample(0, 0, seed=2, length=9)
    local.put(first, second)  # even within one message
    local.put(second, new_sample(0, 1))
    found, (tokens,) = local.reads.samples(GetSamples(samples=[first.info.id]))
    assert found.samples[0] == first.info
    assert tokens.tolist() == np.asarray(first.tokens).tolist()
    stats = local.database.stats()
    assert (stats.samples, stats.tokens) == (2, 100)


async def test_who_puts_another_record_hears_of_the_first(client: StoreClient) -> None:
    first, other = new_sample(0, 0), new_sample(0, 1)
    assert await client.put_samples([first, other]) == []
    assert await client.put_samples([other, first]) == [], "reported again, nothing is new"
    await client.put_scores([Score(id=first.info.id, reward=1.0)])
    assert await client.put_samples([first]) == [], "how far it came is no difference"
    changes = {
        "length": {"length": 9},
        "versions": {"versions": [(0, 49), (1, 1)]},
        "finish": {"finish_reason": "length"},
    }
    for change in changes.values():
        made = new_sample(0, 0, length=change.get("length", 50), seed=5)
        info = msgspec.structs.replace(made.info, **change)
        (kept,) = await client.put_samples([NewSample(info, made.prompt_tokens, made.tokens, made.logprobs), other])
        assert kept == msgspec.structs.replace(first.info, reward=1.0)
    (kept,) = await client.put_samples([new_sample(3, 0), new_sample(3, 0, length=4)])
    assert kept == new_sample(3, 0).info, "of two in one message the first counts"


def test_what_a_checkpoint_holds_was_trained_though_nobody_said_so(local: LocalStore) -> None:
    local.put(*(new_sample(step, index) for step in (0, 1, 2, EVAL) for index in range(3)))
    scores = [Score(id=SampleId(step, PROMPT, index), reward=0.5) for step in (0, 1, 2, EVAL) for index in (0, 1)]
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=scores)))
    dropped = MarkSamples(samples=[SampleId(0, PROMPT, 1)], state="dropped", reason="no")
    local.do(lambda b: local.writes.mark(b, dropped))
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=2)))
    found = {str(row.sample): row.record.state for row in Browse(local.database).headers(PROMPT)}
    assert [found[f"0/{PROMPT}/{index}"] for index in range(3)] == ["trained", "dropped", "generated"]
    assert [found[f"1/{PROMPT}/{index}"] for index in range(3)] == ["trained", "trained", "generated"]
    assert [found[f"2/{PROMPT}/{index}"] for index in range(3)] == ["scored", "scored", "generated"]
    assert [found[f"{EVAL}/{PROMPT}/{index}"] for index in range(3)] == ["scored", "scored", "generated"]
    stored, _ = local.reads.samples(GetSamples(samples=[SampleId(1, PROMPT, 0)]))
    assert stored.samples[0].reward == 0.5


def test_an_unknown_id_is_named_and_fails_its_operation_alone(local: LocalStore) -> None:
    local.put(new_sample(0, 0), new_sample(0, 1))
    known, other, unknown = SampleId(0, PROMPT, 0), SampleId(0, PROMPT, 1), SampleId(4, PROMPT, 9)
    bad = PutScores(scores=[Score(id=known, reward=1.0), Score(id=unknown, reward=1.0)])
    good = PutScores(scores=[Score(id=other, reward=0.1)])
    outcomes = local.database.commit(
        [lambda batch: local.writes.put_scores(batch, bad), lambda batch: local.writes.put_scores(batch, good)]
    )
    assert isinstance(outcomes[0], UnknownSample)
    assert str(unknown) in str(outcomes[0])
    assert outcomes[1] is None
    assert states(local) == {str(known): "generated", str(other): "scored"}
    with pytest.raises(UnknownSample, match=str(unknown)):
        local.reads.samples(GetSamples(samples=[known, unknown]))
    with pytest.raises(UnknownSample, match=str(unknown)):
        local.do(lambda batch: local.writes.mark(batch, MarkSamples(samples=[known, unknown], state="trained")))


def test_the_journal_tells_how_far_each_sample_came(local: LocalStore, tmp_path: Path) -> None:
    local.put(*(new_sample(step, index) for step in (1, 0) for index in range(3)))
    scored, trained, dropped = (SampleId(0, PROMPT, index) for index in range(3))
    never = SampleId(1, PROMPT, 7)
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=[Score(id=scored, reward=0.1)])))
    local.do(lambda b: local.writes.mark(b, MarkSamples(samples=[trained], state="trained")))
    local.do(lambda b: local.writes.mark(b, MarkSamples(samples=[dropped, never], state="dropped", reason="too old")))
    local.database.close()
    local.__init__(tmp_path / "store")  # type: ignore[misc]
    entries = local.reads.journal(GetJournal(from_step=0)).entries
    assert [(entry.id.index, entry.state, entry.reward, entry.reason) for entry in entries[:3]] == [
        (0, "scored", 0.1, ""),
        (1, "trained", None, ""),
        (2, "dropped", None, "too old"),
    ]
    assert [entry.state for entry in entries[3:]] == ["generated"] * 3 + ["dropped"]
    assert (entries[0].length, entries[4].oldest_version, entries[-1].id) == (50, 1, never)
    assert set(states(local, from_step=1)) == {f"1/{PROMPT}/{index}" for index in (0, 1, 2, 7)}
    local.put(new_sample(1, 7))  # late: it was dropped before it came
    assert states(local)[str(never)] == "dropped"


def test_forgetting_removes_logprobs_and_journal_but_no_history(local: LocalStore) -> None:
    for step in range(3):
        local.put(new_sample(step))
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=2)))
    assert set(states(local)) == {f"2/{PROMPT}/0"}
    local.reads.samples(GetSamples(samples=[SampleId(2, PROMPT, 0)], logprobs=True))
    with pytest.raises(UnknownSample, match="forgotten"):
        local.reads.samples(GetSamples(samples=[SampleId(1, PROMPT, 0)], logprobs=True))
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=0)))  # never backwards
    local.put(new_sample(0, 5))
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=[Score(id=SampleId(0, PROMPT, 5), reward=2.0)])))
    assert set(states(local, -5)) == {f"2/{PROMPT}/0"}
    assert earlier(local, 9) == [(2, 0), (1, 0), (0, 0), (0, 5)]


def fill(local: LocalStore) -> int:
    """How many steps of one sample went in."""
    for step in range(10_000):
        try:
            local.put(new_sample(step, length=4000))
        except StoreFull as error:
            assert re.search(r"raise store\.map_gib", str(error))  # noqa: PT017
            return step
    raise AssertionError("it was never full")


def test_a_full_map_refuses_data_keeps_what_is_there_and_can_make_room(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "store", map_bytes=2 << 20)
    steps = fill(local)
    assert steps > 20
    assert len(earlier(local, 10_000, limit=10_000)) == steps
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=[Score(id=SampleId(0, PROMPT, 0), reward=1.0)])))
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=steps)))
    local.put(new_sample(steps, length=4000))  # in the room that the log-probs left
    local.database.close()
    local = LocalStore(tmp_path / "store", map_bytes=16 << 20)
    for step in range(steps + 1, steps + 100):
        local.put(new_sample(step, length=4000))
    assert len(earlier(local, 10_000, limit=10_000)) == steps + 100
    local.database.close()


def test_a_map_that_lmdb_finds_full_aborts_only_who_filled_it(tmp_path: Path) -> None:
    local = LocalStore(tmp_path / "store", map_bytes=1 << 20)
    meta = local.database.tables["meta"]

    def small(batch: Batch) -> None:
        batch.txn.put(b"small", b"1", db=meta)

    def huge(batch: Batch) -> None:
        batch.txn.put(b"huge", bytes(4 << 20), db=meta)

    outcomes = local.database.commit([small, huge, small])
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreFull, type(None)]
    with local.database.read() as txn:
        assert txn.get(b"small", db=meta) is not None
        assert txn.get(b"huge", db=meta) is None
    local.database.close()


def test_a_damaged_value_names_its_sample_and_the_rest_is_read(local: LocalStore, tmp_path: Path) -> None:
    local.put(new_sample(0))
    local.put(new_sample(1, length=5000))
    local.database.close()
    with lmdb.open(str(tmp_path / "store"), max_dbs=8) as env, env.begin(write=True) as txn:
        table = env.open_db(b"tokens", txn=txn)
        key, value = next(iter(txn.cursor(table)))
        txn.put(key, value[:40] + bytes([value[40] ^ 1]) + value[41:], db=table)
    local.__init__(tmp_path / "store")  # type: ignore[misc]
    with pytest.raises(StoreDamaged, match=f"0/{PROMPT}/0"):
        local.reads.samples(GetSamples(samples=[SampleId(1, PROMPT, 0), SampleId(0, PROMPT, 0)]))
    found, _ = local.reads.samples(GetSamples(samples=[SampleId(1, PROMPT, 0)]))
    assert found.samples[0].length == 5000


def test_the_folder_of_another_run_is_refused(local: LocalStore) -> None:
    local.do(lambda b: local.writes.open_run(b, OpenRun(run="first", fingerprint="f1")))
    local.do(lambda b: local.writes.open_run(b, OpenRun(run="first", fingerprint="f1")))
    with pytest.raises(RunMismatch, match=r"'first'.*f1.*'second'.*f1"):
        local.do(lambda b: local.writes.open_run(b, OpenRun(run="second", fingerprint="f1")))
    with pytest.raises(RunMismatch, match=r"f1.*f2"):
        local.do(lambda b: local.writes.open_run(b, OpenRun(run="first", fingerprint="f2")))


def test_a_run_whose_folder_was_renamed_keeps_its_store(local: LocalStore) -> None:
    for name, id in (("first", "a1"), ("renamed", "a1")):
        local.do(lambda b, name=name, id=id: local.writes.open_run(b, OpenRun(run=name, fingerprint="f1", id=id)))
    with pytest.raises(RunMismatch, match=r"'renamed'.*'other'"):
        local.do(lambda b: local.writes.open_run(b, OpenRun(run="other", fingerprint="f1", id="b2")))


def test_a_folder_has_one_store(local: LocalStore, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="another store process"):
        LocalStore(tmp_path / "store")


def test_a_folder_of_another_schema_is_refused(local: LocalStore, tmp_path: Path) -> None:
    local.do(lambda batch: local.database.put_number(batch.txn, "schema", 99))
    local.database.close()
    for opened in (LocalStore, Reader):
        with pytest.raises(StoreError, match="is of schema 99, this release reads and writes schema 4 only"):
            opened(tmp_path / "store")
    with lmdb.open(str(tmp_path / "store"), max_dbs=16) as env, env.begin(write=True) as txn:
        txn.put(b"schema", b"4", db=env.open_db(b"meta", txn=txn))
    local.__init__(tmp_path / "store")  # type: ignore[misc]


def test_a_row_that_is_no_object_is_refused(local: LocalStore) -> None:
    for row in ("[1]", "{", ""):
        message = PutPrompts(rows=[PromptRow(prompt=PROMPT, row=row)])
        with pytest.raises(MalformedMessage, match=PROMPT):
            local.do(lambda batch, message=message: local.writes.put_prompts(batch, message))


@settings(max_examples=20, deadline=None)
@given(sizes=st.lists(st.integers(0, 90_000), min_size=1, max_size=12), seed=st.integers(0, 9))
def test_any_span_of_a_stream_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    env = lmdb.open(str(tmp_path_factory.mktemp("stream")), max_dbs=1, map_size=16 << 20, sync=False)
    table = env.open_db(b"s")
    stream, whole = Stream(table, env.stat()["psize"]), b""
    with env.begin(write=True) as txn:
        for size in sizes:
            blob = rng.bytes(size)
            assert stream.append(txn, blob) == len(whole)
            whole += blob
        stat = txn.stat(table)
    with env.begin(buffers=True) as txn, txn.cursor(table) as cursor:
        for _ in range(20):
            start, end = sorted(rng.integers(0, len(whole) + 1, 2).tolist())
            assert bytes(stream.read(cursor, start, end - start, "span")) == whole[start:end]
        with pytest.raises(StoreDamaged, match="span"):
            stream.read(cursor, len(whole), 1, "span")
    if len(whole) > 200_000:
        pages = stat["leaf_pages"] + stat["overflow_pages"] + stat["branch_pages"]
        assert pages * stat["psize"] < 1.15 * len(whole)
    env.close()


def test_imported_history_has_rewards_and_neither_logprobs_nor_journal(local: LocalStore) -> None:
    local.put(new_sample(-2), new_sample(0), new_sample(-1))  # in one message, with log-probs of one of them
    imported, trained = SampleId(-1, PROMPT, 0), SampleId(0, PROMPT, 0)
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=[Score(id=imported, reward=0.5)])))
    local.do(lambda b: local.writes.mark(b, MarkSamples(samples=[imported], state="dropped", reason="no")))
    assert set(states(local, from_step=-(2**31))) == {str(trained)}
    _, (_, logprobs) = local.reads.samples(GetSamples(samples=[trained], logprobs=True))
    assert bytes(logprobs) == np.asarray(new_sample(0).logprobs).tobytes()
    earlier_ones, _ = local.reads.history(GetHistory(prompt=PROMPT, before_step=0))
    assert [info.reward for info in earlier_ones.samples] == [0.5, None]
    with pytest.raises(UnknownSample, match=f"{imported} is imported history: there are no log-probs"):
        local.reads.samples(GetSamples(samples=[trained, imported], logprobs=True))


def test_evaluations_are_journaled_kept_apart_and_forgotten_with_their_version(local: LocalStore) -> None:
    for version in (0, 1, 2):
        local.put(new_sample(EVAL + version), new_sample(version))
    held_out = SampleId(EVAL + 1, PROMPT, 0)
    local.do(lambda b: local.writes.put_scores(b, PutScores(scores=[Score(id=held_out, reward=1.0)])))
    assert states(local, EVAL) == {
        f"{EVAL + version}/{PROMPT}/0": "scored" if version == 1 else "generated" for version in (0, 1, 2)
    }
    with pytest.raises(UnknownSample, match=f"{held_out} is an evaluation"):
        local.reads.samples(GetSamples(samples=[held_out], logprobs=True))
    assert earlier(local, EVAL - 1) == [(2, 0), (1, 0), (0, 0)]
    assert earlier(local, EVAL + 2, limit=2) == [(EVAL + 1, 0), (EVAL, 0)]
    assert local.reads.lengths(GetLengths(prompts=[PROMPT], before_step=3)).rows[0].lengths == [
        (step, 50) for step in (0, 1, 2)
    ]
    local.do(lambda b: local.writes.forget_logprobs(b, ForgetLogprobs(below_step=2)))
    assert set(states(local)) == {f"2/{PROMPT}/0", f"{EVAL + 2}/{PROMPT}/0"}
    local.put(new_sample(EVAL + 1, 7))  # late
    assert set(states(local)) == {f"2/{PROMPT}/0", f"{EVAL + 2}/{PROMPT}/0"}


@pytest.mark.parametrize("accident", ["removed", "replaced", "moved with its folder"])
def test_nothing_is_acknowledged_that_is_written_to_a_file_without_a_name(tmp_path: Path, accident: str) -> None:
    folder = tmp_path / "store"
    local = LocalStore(folder)
    local.put(new_sample(0))
    file = folder / "data.mdb"
    if accident == "removed":
        file.unlink()
    elif accident == "replaced":
        shutil.copyfile(file, folder / "copy")
        (folder / "copy").replace(file)
    else:
        folder.rename(tmp_path / "elsewhere")
    with pytest.raises(FilesLost, match=r"data\.mdb was removed, moved or replaced.*nothing more is written"):
        local.put(new_sample(1))
    local.database.close()
