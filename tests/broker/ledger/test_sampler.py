"""Prompts are asked by their recent success: in the same way whatever happens when."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from rhymed.config import Config
from rhymed.history.compare.planned import Planned
from rhymed.messages import SampleId
from rhymed_broker.ledger.refill.signal import SignalRule
from rhymed_broker.plan import Plan
from rhymed_broker.sampler import Sampler
from tests.broker.ledger.refills import Play, ids

PROMPTS = ids(12)
EASY, HARD = PROMPTS[:4], PROMPTS[4:8]

CASES = [
    {},
    {"staleness": 2},
    {"ahead": 1, "workers": 3},
]


def plan(steps: int = 8, least: float = 0.2, seed: int = 0) -> Plan:
    return Plan(PROMPTS, 3, 2, 99, steps, seed, Sampler(least, 1.0, recent=8, seed=seed))


def reward(id: SampleId) -> float:
    """Of the others, one sample of two succeeds."""
    return 1.0 if id.prompt in EASY else 0.0 if id.prompt in HARD else float(id.index)


def luck(id: SampleId) -> float:
    """Changes from step to step."""
    return float(random.Random(f"{id.step}/{id.prompt}/{id.index}").random() < 0.5)


@pytest.mark.parametrize("rule", [None, SignalRule(most=2)])
@pytest.mark.parametrize("case", CASES)
def test_the_order_of_events_does_not_show(case: dict[str, int], rule: SignalRule | None) -> None:
    runs = [Play(plan(), rule, luck, **{"workers": 1 + seed % 3, **case}).run(seed) for seed in range(5)]
    assert all(run.trained == runs[0].trained for run in runs)
    assert all(run.drawn == runs[0].drawn for run in runs)
    runs[0].draws()  # and every step's prompts follow from what is journaled


@pytest.mark.parametrize("rule", [None, SignalRule(most=2)])
@pytest.mark.parametrize("case", CASES)
def test_a_crash_of_the_broker_or_of_the_trainer_changes_nothing(
    case: dict[str, int], rule: SignalRule | None
) -> None:
    calm = Play(plan(steps=6), rule, luck, **case).run(1)
    for cut in range(3, 90, 7):
        run = Play(plan(steps=6), rule, luck, **case)
        chance = random.Random(1)
        for _ in range(cut):
            if not run.over:
                chance.choice(run.events())()
        run.start_broker(lost=cut % 3) if cut % 2 else run.kill_trainer()
        run.run(cut)
        assert run.trained == calm.trained, f"after {cut} events"
        assert run.drawn == calm.drawn


def test_the_audit_derives_the_same_prompts() -> None:
    data = {"sampler": "success", "least_chance": 0.2}
    rollout = {"prompts_per_step": 3, "group_size": 2}
    config = Config.model_validate({"data": data, "rollout": rollout, "trainer": {"epochs": 99, "steps": 8}})
    for rule in (None, SignalRule(most=2)):
        run = Play(plan(), rule, luck, staleness=1).run(3)
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
    sampler = Sampler(0.01, 0.5, recent=3)
    assert sampler.rates([("b", 1.0), ("b", 0.4), ("a", None), ("c", 0.5)]) == [("b", 0.5), ("c", 1.0)]
    sampler.learn(2, [("c", 1.0)])

    def passed(known: int) -> int:
        return sum(sampler.passes_over("c", position, known) for position in range(100))

    assert [passed(known) > 90 for known in range(8)] == [False, False, False, True, True, True, False, False]
    sampler.learn(3, [("c", 0.5)])
    assert (passed(3) > 90, passed(4)) == (True, 0)  # draws that know less decide as before
