"""The two tiers: in which order prompts begin, who gets them, and who takes over what runs last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rhymed.core.messages import SampleId
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.scheduler.fair import deal_evenly
from rhymed_broker.scheduler.flow import longest_first, pull, split_off
from rhymed_broker.scheduler.policy import Running, Snapshot, StepQueue
from rhymed_broker.scheduler.rhyme import alternate, deal_by_rank, outliers, workers_by_group
from rhymed_broker.states import Sample
from tests.broker.ledger.stories import FakeWorker

LENGTHS = {"a": 10.0, "b": 400.0, "c": 90.0, "d": 30.0}


def group(prompt: str, size: int, step: int = 0) -> dict[Sample, None]:
    return {Sample(SampleId(step, prompt, index)): None for index in range(size)}


def queue(prompts: str, size: int, unprobed: str = "") -> StepQueue:
    groups = {prompt: group(prompt, size) for prompt in prompts}
    expected = {prompt: LENGTHS[prompt] for prompt in prompts}
    return StepQueue(0, 0, 0, 0, groups, size * len(prompts), None, expected, set(unprobed))


def names(samples: list[Sample]) -> str:
    return "".join(sample.id.prompt for sample in samples)


def test_flow_begins_with_the_longest() -> None:
    assert longest_first(0, list("abcd"), LENGTHS.__getitem__) == list("bcda")
    (placed,) = pull(Snapshot([queue("bcda", 2)], [FakeWorker("w", slots=5)]))
    assert names(placed.samples) == "bbccd"


def test_flow_takes_a_few_of_every_group_that_nobody_knows_first() -> None:
    (placed,) = pull(Snapshot([queue("abcd", 3, unprobed="abcd")], [FakeWorker("w", slots=10)]))
    assert names(placed.samples) == "aabbccdd" + "ab"


def test_flow_gives_two_workers_different_samples_of_the_unknown() -> None:
    placed = pull(Snapshot([queue("ab", 3, unprobed="ab")], [FakeWorker("v", slots=3), FakeWorker("w", slots=3)]))
    assert sorted(str(one.id) for placement in placed for one in placement.samples) == [
        f"0/{prompt}/{index}" for prompt in "ab" for index in range(3)
    ]


def test_siblings_stay_together_among_the_nearly_as_long_only() -> None:
    known = queue("bcda", 2)._replace(expected={"a": 380.0, "b": 400.0, "c": 90.0, "d": 30.0})
    near = FakeWorker("w", slots=2, held=dict.fromkeys([SampleId(0, "a", 9)]))
    (placed,) = pull(Snapshot([known], [near]))
    assert names(placed.samples) == "a"
    far = FakeWorker("w", slots=2, held=dict.fromkeys([SampleId(0, "d", 9)]))
    (placed,) = pull(Snapshot([known], [far]))
    assert names(placed.samples) == "b"


def test_rhyme_alternates_between_steps() -> None:
    assert alternate(4, list("abcd"), LENGTHS.__getitem__) == list("adcb")
    assert alternate(5, list("abcd"), LENGTHS.__getitem__) == list("bcda")


def test_two_steps_together_are_the_same_for_every_worker() -> None:
    """That is what alternating is for: a short part in one step, a long part in the next."""
    prompts = [f"{number:03}" for number in range(400)]
    expect = {prompt: 10.0 * 1.01 ** int(prompt) for prompt in prompts}.__getitem__
    workers = [FakeWorker(f"w{number}") for number in range(10)]
    times = dict.fromkeys([worker.name for worker in workers], 0.0)
    single = []
    for step in (0, 1):
        dealt = deal_by_rank(alternate(step, prompts, expect), workers, expect)
        assert sorted(prompt for part in dealt.values() for prompt in part) == prompts
        single.append({name: sum(map(expect, part)) for name, part in dealt.items()})
        for name, seconds in single[-1].items():
            times[name] += seconds
    assert max(single[0].values()) > 3 * min(single[0].values())
    assert max(times.values()) < 1.6 * min(times.values())


def test_without_history_rhyme_deals_evenly() -> None:
    workers = [FakeWorker("v"), FakeWorker("w")]
    assert deal_by_rank(list("abcd"), workers, lambda _: 7.0) == {"v": ["a", "b"], "w": ["c", "d"]}


@given(work=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=20), more=st.integers(0, 60))
def test_every_group_has_a_worker_and_every_worker_a_group(work: list[float], more: int) -> None:
    work.sort()
    found = workers_by_group(work, len(work) + more)
    assert sum(found) == len(work) + more
    assert min(found) >= 1


def test_even_parts_are_by_slots() -> None:
    dealt = deal_evenly(
        [str(number) for number in range(30)], [FakeWorker("v", slots=20), FakeWorker("w", slots=10)], len
    )
    assert {name: len(part) for name, part in dealt.items()} == {"v": 20, "w": 10}


def running(**held: dict[str, int]) -> Running:
    """By worker: sample -> tokens left. Each has come as far as it had expected."""
    workers, samples, left = {}, [], {}
    for name, row in held.items():
        workers[name] = FakeWorker(name)
        for prompt, tokens in row.items():
            sample = Sample(SampleId(0, prompt, 0))
            sample.worker, sample.tokens = name, 1000
            samples.append(sample)
            left[sample] = float(tokens)
            workers[name].held[sample.id] = sample
    return Running(samples, 100, workers, left.__getitem__, lambda _: 100.0)


def test_flow_moves_the_longest_to_the_emptiest() -> None:
    moves = split_off(running(v={"a": 5000, "b": 300, "c": 9000, "d": 10}, w={}))
    assert [(move.sample.id.prompt, move.target) for move in moves] == [("c", "w")]


def test_flow_moves_nothing_for_little() -> None:
    assert split_off(running(v={"a": 100, "b": 200, "c": 90}, w={})) == []
    assert split_off(running(v={"a": 5000, "b": 5000}, w={"c": 9000})) == []
    assert split_off(running()) == []


def test_rhyme_moves_outliers_at_the_end_alone() -> None:
    end = running(v={"a": 5000, "b": 5000, "c": 5000}, w={})
    assert [move.target for move in outliers(end).moves] == ["w"]
    assert outliers(end._replace(size=20)).moves == [], "more than a tenth is left"
    assert outliers(end._replace(total=lambda _: 900.0)).moves == [], "as long as was expected"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_no_policy_asks_too_much(policy: str) -> None:
    """Nobody gets more than fits, weights that are too old or new get nothing, no sample is given twice."""
    workers = [
        FakeWorker("w", slots=3),
        FakeWorker("old", version=-1),
        FakeWorker("new", version=1),
        FakeWorker("v", slots=2),
    ]
    given = queue("bcda", 2)
    dealt = POLICIES[policy].deal
    if dealt is not None:
        given = given._replace(deal=dealt(list("bcda"), workers, LENGTHS.__getitem__))
    placed = POLICIES[policy].assign(Snapshot([given], workers))
    assert {placement.worker for placement in placed} <= {"w", "v"}
    everything = [sample for placement in placed for sample in placement.samples]
    assert len(set(everything)) == len(everything) >= 2
    for worker in workers:
        assert sum(len(one.samples) for one in placed if one.worker == worker.name) <= worker.slots


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_is_not_dealt_is_given_once(policy: str) -> None:
    """An evaluation: two workers with room, none of them gets what the other has."""
    workers = [FakeWorker("v", slots=3), FakeWorker("w", slots=3)]
    placed = POLICIES[policy].assign(Snapshot([queue("bcda", 2)], workers))
    everything = [sample for placement in placed for sample in placement.samples]
    assert len(set(everything)) == len(everything) == 6
