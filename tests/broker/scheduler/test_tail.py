"""Engines reserved for stragglers, and what slower engines get: by expected finish."""

from __future__ import annotations

import pytest

from rhymed.core.messages import SampleId
from rhymed_broker.scheduler.flow import Engines, most_within, pull, reserve, shift, split_off
from rhymed_broker.scheduler.pace import Pace
from rhymed_broker.scheduler.policy import Running, Snapshot, StepQueue
from rhymed_broker.states import Sample
from tests.broker.ledger.stories import FakeWorker


class Paces(Pace):
    """A token takes 10 s and 1 s for each sample, times the engine's slowness."""

    known = True  # type: ignore[assignment]

    def __init__(self, **times: float) -> None:
        super().__init__()
        self.times = times

    def __call__(self, worker: str, running: int) -> float:
        return self.times.get(worker, 1.0) * (10.0 + running)

    def slower(self, worker: str) -> float:
        return self.times.get(worker, 1.0)


def running(pace: Paces, waiting: int, queued: float, **held: dict[str, int]) -> Running:
    """By worker: sample -> tokens left. Each has 1,000."""
    workers, samples, left = {}, [], {}
    for name, row in held.items():
        workers[name] = FakeWorker(name, slots=10)
        for prompt, tokens in row.items():
            sample = Sample(SampleId(0, prompt, 0))
            sample.worker, sample.tokens = name, 1000
            samples.append(sample)
            left[sample] = float(tokens)
            workers[name].held[sample.id] = sample
    total = {sample: tokens + 1000 for sample, tokens in left.items()}
    return Running(samples, 100, workers, left.__getitem__, total.__getitem__, pace, waiting, 0.1, queued)


def test_most_samples_among_which_a_token_is_fast_enough() -> None:
    pace = Paces()
    assert most_within(lambda count: pace("a", count), 15.0, 10) == 5
    assert most_within(lambda count: pace("a", count), 3.0, 10) == 1
    assert most_within(lambda count: pace("a", count), 99.0, 10) == 10


def test_the_engine_of_the_straggler_gets_fewer_samples_so_that_it_ends_with_the_step() -> None:
    """Three engines of 10 slots at 20 s per token: 1.5 tokens per second."""
    engines = Engines({name: FakeWorker(name, slots=10) for name in "abc"}, Paces())
    assert engines.rate == pytest.approx(1.5)
    limits = engines.limits({"a": 1000.0, "b": 100.0, "c": 100.0}, 20_000)
    assert list(limits) == ["a"]
    end_s = 1000.0 * (10 + limits["a"])
    rate = 2 * 0.5 + limits["a"] / (10 + limits["a"])
    assert 20_000 / rate <= end_s * 1.1, "the others end no later"
    assert limits["a"] < 10


def test_nothing_is_reserved_while_there_is_more_work_than_the_longest_needs() -> None:
    engines = Engines({name: FakeWorker(name, slots=10) for name in "abc"}, Paces())
    assert engines.limits({"a": 1000.0}, 31_000) == {}


def test_a_reserved_engine_takes_no_more_than_its_limit() -> None:
    group = {Sample(SampleId(0, "p", index)): None for index in range(20)}
    queue = StepQueue(0, 0, 0, 0, {"p": group}, 20, None, {"p": 50.0}, (), 1000.0)
    held = dict.fromkeys(SampleId(0, "q", index) for index in range(3))
    workers = [FakeWorker("a", slots=10, held=held), FakeWorker("b", slots=10)]
    placed = pull(Snapshot([queue], workers, Paces(), {"a": 4}))
    assert {one.worker: len(one.samples) for one in placed} == {"a": 1, "b": 10}


def test_a_slower_engine_gets_the_longest_that_it_finishes_in_time() -> None:
    groups = {name: {Sample(SampleId(0, name, 0)): None} for name in ("long", "middle", "short")}
    expected = {"long": 900.0, "middle": 90.0, "short": 9.0}
    queue = StepQueue(0, 0, 0, 0, groups, 3, None, expected, (), 1000.0)
    slow = FakeWorker("slow", slots=1)
    for rate, taken in ((1000 / 30_000, "middle"), (1000 / 3000, "short"), (1000 / 30, "")):
        placed = pull(Snapshot([queue], [slow], Paces(slow=10.0), rate=rate))
        assert "".join(sample.id.prompt for one in placed for sample in one.samples) == taken
    fast = pull(Snapshot([queue], [FakeWorker("fast", slots=1)], Paces(slow=10.0), rate=1.0))
    assert [sample.id.prompt for one in fast for sample in one.samples] == ["long"]


def test_what_would_end_late_on_a_slow_engine_leaves_it() -> None:
    given = running(Paces(slow=10.0), 50, 5_000.0, slow={"a": 5000, "b": 20}, fast={"c": 500})
    found = reserve(given)
    assert [(move.sample.id.prompt, move.target) for move in found.moves] == [("a", "fast")]


def test_a_move_must_save_more_than_the_verification_of_its_tokens() -> None:
    """Alone: 11 s per token instead of 13. But 10,000 tokens are verified in the time of 1,000."""
    given = running(Paces(), 0, 0.0, v={"a": 9000, "b": 300, "c": 300}, w={})
    assert [move.sample.id.prompt for move in split_off(given)] == ["a"]
    for sample in given.samples:
        sample.tokens = 20_000
    assert split_off(given) == []


def test_without_observations_nothing_moves_while_samples_wait() -> None:
    given = running(Paces(), 5, 100.0, v={"a": 9000, "b": 300, "c": 300}, w={})
    unknown = Running(given.samples, 100, given.workers, given.left, given.total, waiting=5)
    assert shift(unknown).moves == []


def test_fewer_samples_are_written_ahead_if_few_of_their_tokens_survive() -> None:
    queue = StepQueue(1, 0, 1, 1, {}, 0)
    ids = [SampleId(1, "p", index) for index in range(6)]
    worker = FakeWorker("w", slots=4, held=dict.fromkeys(ids), parked=set(ids[:3]))
    assert queue.fits(worker)
    assert queue._replace(survival=0.75).fits(worker)
    assert not queue._replace(survival=0.25).fits(worker)


def test_nothing_is_reserved_where_other_steps_fill_the_engines() -> None:
    given = running(Paces(), 50, 3000.0, v={"a": 9000, "b": 300, "c": 300}, w={"d": 100})
    assert list(reserve(given).limits) == ["v"]
    assert reserve(given._replace(synchronous=False)).limits == {}
