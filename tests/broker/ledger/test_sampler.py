"""Prompts are asked by their recent success: in the same way whatever happens when."""

from __future__ import annotations

import random
from collections import Counter
from math import ceil
from statistics import fmean

import pytest

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed.records.history.compare.audit import Planned
from rhymed_broker.ledger.refill import SignalRule
from rhymed_broker.plan import ByLength, BySuccess, Plan, Sampler
from tests.broker.ledger.refills import Play, ids, length

PROMPTS = ids(12)
LONGEST = 0.3  # of 12 prompts: 4, more than a step has
EASY, HARD = PROMPTS[:4], PROMPTS[4:8]

CASES = [
    {},
    {"staleness": 2},
    {"ahead": 1, "workers": 3},
]


def plan(kind: str = "success", steps: int = 8, least: float = 0.2, seed: int = 0) -> Plan:
    sampler: Sampler = BySuccess(least, 1.0, 8, seed) if kind == "success" else ByLength(LONGEST, 8, seed)
    return Plan(PROMPTS, 3, 2, 99, steps, seed, sampler)


def reward(id: SampleId) -> float:
    """Of the others, one sample of two succeeds."""
    return 1.0 if id.prompt in EASY else 0.0 if id.prompt in HARD else float(id.index)


def luck(id: SampleId) -> float:
    """Changes from step to step."""
    return float(random.Random(f"{id.step}/{id.prompt}/{id.index}").random() < 0.5)


KINDS = ["success", "length"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [None, SignalRule(most=2)])
@pytest.mark.parametrize("case", CASES)
def test_the_order_of_events_does_not_show(case: dict[str, int], rule: SignalRule | None, kind: str) -> None:
    runs = [Play(plan(kind), rule, luck, **{"workers": 1 + seed % 3, **case}).run(seed) for seed in range(3)]
    assert all(run.trained == runs[0].trained for run in runs)
    assert all(run.drawn == runs[0].drawn for run in runs)
    runs[0].draws()  # and every step's prompts follow from what is journaled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [None, SignalRule(most=2)])
@pytest.mark.parametrize("case", CASES)
def test_a_crash_of_the_broker_or_of_the_trainer_changes_nothing(
    case: dict[str, int], rule: SignalRule | None, kind: str
) -> None:
    calm = Play(plan(kind, steps=6), rule, luck, **case).run(1)
    for cut in range(3, 90, 13):
        run = Play(plan(kind, steps=6), rule, luck, **case)
        chance = random.Random(1)
        for _ in range(cut):
            if not run.over:
                chance.choice(run.events())()
        run.start_broker(lost=cut % 3) if cut % 2 else run.kill_trainer()
        run.run(cut)
        assert run.trained == calm.trained, f"after {cut} events"
        assert run.drawn == calm.drawn


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_derives_the_same_prompts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rhymed_broker.plan.LONGEST", LONGEST)
    data = {"sampler": kind, "least_chance": 0.2}
    rollout = {"prompts_per_step": 3, "group_size": 2}
    config = Config.model_validate({"data": data, "rollout": rollout, "trainer": {"epochs": 99, "steps": 8}})
    for rule in (None, SignalRule(most=2)):
        run = Play(plan(kind), rule, luck, staleness=1).run(3)
        found = Planned([PROMPTS], config, 8, run.drawn.values())
        for step, trained in run.trained.items():
            assert {id.prompt for id in trained} <= set(found.prompts(step))
            assert rule or len(found.prompts(step)) == 3


def test_what_half_succeeds_is_asked_more_often() -> None:
    asked = Counter(id.prompt for ids in Play(plan(steps=60), None, reward).run().trained.values() for id in ids)
    often = sum(asked[prompt] for prompt in PROMPTS[8:])
    assert often > 1.5 * sum(asked[prompt] for prompt in EASY)
    assert often > 1.5 * sum(asked[prompt] for prompt in HARD)
    assert min(asked[prompt] for prompt in PROMPTS) > 4  # none is given up


def test_a_chance_of_1_is_the_plan_without_a_sampler() -> None:
    sampled = Play(plan(steps=9, least=1.0), None, reward).run()
    plain = Plan(PROMPTS, 3, 2, 99, 9)
    assert [sorted(plain.samples(step)) for step in range(9)] == [sampled.trained[step] for step in range(9)]


def test_rates_count_from_the_next_step_on_and_are_forgotten() -> None:
    sampler = BySuccess(0.01, 0.5, recent=3)
    assert sampler.rates([("b", 1.0, 9), ("b", 0.4, 9), ("a", None, 0), ("c", 0.5, 9)]) == [("b", 0.5), ("c", 1.0)]
    sampler.learn(2, [("c", 1.0)])

    def passed(known: int) -> int:
        return sum(sampler.passes_over("c", position, known) for position in range(100))

    assert [passed(known) > 90 for known in range(8)] == [False, False, False, True, True, True, False, False]
    sampler.learn(3, [("c", 0.5)])
    assert (passed(3) > 90, passed(4)) == (True, 0)  # draws that know less decide as before


def test_the_longest_prompts_share_steps_and_each_prompt_comes_once_an_epoch() -> None:
    run = Play(plan("length", steps=24), None, reward).run()
    steps = [[id.prompt for id in run.trained[step] if not id.index] for step in range(24)]
    for epoch in range(6):
        asked = [prompt for step in steps[4 * epoch : 4 * epoch + 4] for prompt in step]
        assert sorted(asked) == sorted(PROMPTS)
    found = set[int]()
    for epoch in range(1, 6):
        lengths: dict[str, float] = {}  # in the epoch before
        for step in range(4 * epoch - 4, 4 * epoch):
            for prompt in steps[step]:
                lengths[prompt] = fmean(length(id) for id in run.trained[step] if id.prompt == prompt)
        last = sorted(lengths, key=lengths.__getitem__, reverse=True)
        here = [step for step in steps[4 * epoch : 4 * epoch + 4] if last[0] in step]
        assert set(last[:3]) == set(here[0]), "a step has the three longest"
        found.add(next(n for n, step in enumerate(steps[4 * epoch : 4 * epoch + 4]) if last[0] in step))
    assert len(found) > 1, "it is another step from epoch to epoch"


@pytest.mark.parametrize(
    ("size", "each", "start"), [(12, 3, 0), (13, 3, 13), (10, 4, 30), (7, 7, 7), (5, 4, 5), (9, 2, 9)]
)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 1.0])
def test_an_order_is_a_permutation_that_keeps_the_others(size: int, each: int, start: int, share: float) -> None:
    sampler = ByLength(share, 99)
    prompts = ids(size)
    sampler.learn(0, [(prompt, float(n)) for n, prompt in enumerate(prompts) if n % 3])
    order = list(sampler.order(prompts, start, each, known=1))
    assert sorted(order) == sorted(prompts)
    longest = [prompt for n, prompt in enumerate(prompts) if n % 3][::-1][: ceil(share * size)]
    others = [prompt for prompt in order if prompt not in longest]
    assert others == [prompt for prompt in prompts if prompt not in longest]
    for first in range(0, len(longest), each):
        part = longest[first : first + each]
        if start % each == 0 and (first // each + 1) * each <= size:
            place = order.index(part[0])
            assert place % each == 0
            assert order[place : place + len(part)] == part
