"""Dynamic sampling: groups without signal are replaced, in the same way whatever happens when."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rhymed.core.config import Config
from rhymed.core.messages import EVAL, NO_SIGNAL, NOT_PLANNED, JournalEntry, SampleId, Score
from rhymed_broker.ledger.actions import Assign, Evaluated, Mark, ScoreSamples, Train
from rhymed_broker.ledger.evaluation import Evaluation
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.ledger.refill import SignalRule
from rhymed_broker.plan import Plan
from rhymed_broker.states import Rules
from rhymed_broker.status.snapshot import diagnostics
from tests.broker.ledger.refills import Play, flat_share, ids
from tests.broker.ledger.stories import SmallPlan, Story

RULE = SignalRule(most=100)


def begin(rule: SignalRule, plan: SmallPlan, rules: Rules | None = None) -> Story:
    story = Story(Ledger(rules or Rules(), signal=rule))
    story.begin(plan)
    story.join("w", "rollout", slots=20)
    story.join("r", "reward", slots=20)
    return story


def group(step: int, prompt: str) -> list[SampleId]:
    return [SampleId(step, prompt, 0), SampleId(step, prompt, 1)]


def finish(story: Story, step: int, **rewards: tuple[float, float]) -> list:
    """Generate and score these groups of the step; returns the actions that follow."""
    members = [id for prompt in rewards for id in group(step, prompt)]
    story.generated("w", *members, version=step)
    scores = [Score(id=id, reward=rewards[id.prompt][id.index]) for id in members]
    story.ledger.scored("r", scores, story.now)
    return story.drain()


def test_a_group_without_signal_is_replaced_by_the_next_prompt_of_the_plan() -> None:
    story = begin(RULE, SmallPlan(steps=2, groups=2, prompts=6))
    actions = finish(story, 0, a=(1.0, 1.0), b=(0.0, 1.0))
    assert actions == [
        Assign("w", group(0, "c"), ()),
        Mark(group(0, "a"), "dropped", RULE.reason),
    ]
    assert RULE.reason.startswith(NO_SIGNAL)
    assert story.state(SampleId(0, "a", 0)) == "filtered"
    (train,) = finish(story, 0, c=(0.0, 1.0))
    assert isinstance(train, Train)
    assert train.ids == [*group(0, "b"), *group(0, "c")]
    row = train.metrics
    assert (row["rollout/filtered_groups"], row["rollout/refilled_groups"]) == (1, 1)
    assert (row["rollout/filtered"], row["rollout/dropped"], row["rollout/samples"]) == (2, 0, 4)
    assert (row["rollout/unreplaced_groups"], row["rollout/reward_mean"]) == (0, pytest.approx(4 / 6))
    assert row["rollout/tokens"] == 60
    mark, *_ = story.trained(0)
    assert isinstance(mark, Mark)
    assert (mark.ids, mark.state) == (train.ids[:], "trained") or sorted(mark.ids) == train.ids
    assert mark.drawn is not None
    assert mark.drawn.refilled == 1
    assert {id.prompt for id in story.ledger.samples.open_steps[1].samples} == {"d", "e"}
    assert story.metrics["training/epoch"] == 0
    assert story.ledger.samples.depths()["filtered"] == 2


def test_a_replacement_begins_at_once_and_may_be_replaced_too() -> None:
    story = begin(RULE, SmallPlan(steps=1, groups=2, prompts=8))
    assert finish(story, 0, b=(1.0, 1.0))[0] == Assign("w", group(0, "c"), ())  # a is not complete
    assert finish(story, 0, c=(0.0, 0.0))[0] == Assign("w", group(0, "d"), ())
    assert finish(story, 0, a=(2.0, 2.0))[0] == Assign("w", group(0, "e"), ())
    assert finish(story, 0, d=(0.0, 1.0)) == []
    (train,) = finish(story, 0, e=(0.0, 1.0))
    assert train.ids == [*group(0, "d"), *group(0, "e")]


def test_at_the_limit_the_first_groups_of_the_plan_are_replaced_whichever_was_complete_first() -> None:
    story = begin(SignalRule(most=1), SmallPlan(steps=1, groups=3, prompts=8))
    assert finish(story, 0, c=(1.0, 1.0)) == [Assign("w", group(0, "d"), ())]  # c may still be trained
    assert finish(story, 0, a=(1.0, 1.0), b=(0.0, 1.0)) == [Mark(group(0, "a"), "dropped", RULE.reason)]
    (train,) = finish(story, 0, d=(0.0, 1.0))
    assert train.ids == [id for prompt in "bcd" for id in group(0, prompt)]
    assert train.metrics["rollout/unreplaced_groups"] == 1


@pytest.mark.parametrize(("keep", "trained"), [(True, "bc"), (False, "b")])
def test_when_nothing_may_be_replaced_any_more_the_rest_is_kept_or_dropped(keep: bool, trained: str) -> None:
    story = begin(SignalRule(most=1, keep=keep), SmallPlan(steps=1, groups=2, prompts=8))
    finish(story, 0, a=(1.0, 1.0), b=(0.0, 1.0))
    *_, train = [action for action in finish(story, 0, c=(0.5, 0.5)) if isinstance(action, Train)]
    assert train.ids == [id for prompt in trained for id in group(0, prompt)]
    assert train.metrics["rollout/unreplaced_groups"] == 1
    assert train.metrics["rollout/filtered_groups"] == 3 - len(trained)


def test_a_step_most_of_whose_groups_could_not_be_replaced_is_reported_in_words() -> None:
    story = begin(SignalRule(most=0), SmallPlan(steps=2, groups=2, prompts=8))
    finish(story, 0, a=(1.0, 1.0), b=(0.0, 0.0))
    story.trained(0)
    (line,) = diagnostics(story.ledger, story.now, up_s=1.0, ready=True)
    assert line.startswith("2 of 2 groups of step 1 had no signal and could not be replaced")


def test_without_refills_groups_are_only_filtered() -> None:
    story = begin(SignalRule(most=0, keep=False), SmallPlan(steps=2, groups=3, prompts=8))
    train, mark = finish(story, 0, a=(1.0, 1.0), b=(0.0, 1.0), c=(2.0, 2.0))
    assert train.ids == group(0, "b")
    assert mark == Mark([*group(0, "a"), *group(0, "c")], "dropped", RULE.reason)
    story.trained(0)
    story.loaded("w", 1)
    (train, _) = finish(story, 1, d=(1.0, 1.0), e=(1.0, 1.0), f=(1.0, 1.0))
    assert train.ids == []
    story.trained(1)
    assert story.ledger.finished


def test_a_step_has_no_prompt_twice_and_a_small_dataset_ends_the_refills() -> None:
    story = begin(RULE, SmallPlan(steps=1, groups=2, prompts=3))
    assert finish(story, 0, a=(1.0, 1.0), b=(1.0, 1.0))[0] == Assign("w", group(0, "c"), ())
    (train,) = finish(story, 0, c=(1.0, 1.0))
    assert train.ids == [*group(0, "b"), *group(0, "c")]
    assert train.metrics["rollout/unreplaced_groups"] == 2


def test_values_within_the_tolerance_are_the_same_and_a_group_with_one_score_has_no_signal() -> None:
    story = begin(SignalRule(most=9, tolerance=0.1), SmallPlan(steps=1, groups=3, prompts=9))
    story.generated("w", *group(0, "a"), version=0)
    story.ledger.scored("r", [Score(id=id, error="it failed") for id in group(0, "a")[:1]], story.now)
    story.ledger.scored("r", [Score(id=id, reward=1.0) for id in group(0, "a")[1:]], story.now)
    assign, *marks = story.drain()
    assert assign == Assign("w", group(0, "d"), ())
    assert Mark([SampleId(0, "a", 1)], "dropped", RULE.reason) in marks
    actions = finish(story, 0, b=(1.0, 1.05), c=(1.0, 1.2))
    assert actions == [Assign("w", group(0, "e"), ()), Mark(group(0, "b"), "dropped", RULE.reason)]
    assert story.state(SampleId(0, "a", 0)) == "dropped"


def test_the_metric_may_be_a_scorers_points() -> None:
    rule = SignalRule(most=9, metric="math")
    story = begin(rule, SmallPlan(steps=1, groups=2, prompts=4))
    members = [*group(0, "a"), *group(0, "b")]
    story.generated("w", *members, version=0)
    points = {"a": (1.0, 1.0), "b": (0.0, 1.0)}
    scores = [
        Score(id=id, reward=float(id.index), parts={"math": points[id.prompt][id.index], "length": 0.0})
        for id in members
    ]
    story.ledger.scored("r", scores, story.now)
    assert story.drain()[0] == Assign("w", group(0, "c"), ())


def test_an_error_that_counts_as_0_is_0_for_each_scorer() -> None:
    failed = Score(id=SampleId(0, "a", 0), reward=0.0, error="no", parts={"math": 1.0})
    assert SignalRule(most=9, metric="math").points(failed) == 0.0


def test_the_settings_say_what_is_replaced() -> None:
    rollout = {"prompts_per_step": 6, "group_size": 4}
    several = {"scorers": [{"scorer": "math"}, {"scorer": "format", "weight": 0.1}]}

    def of(**settings: Any) -> SignalRule | None:
        trainer = {"algorithm": settings.pop("algorithm", "grpo"), "dynamic_sampling": settings}
        config = Config.model_validate({"rollout": rollout, "reward": several, "trainer": trainer})
        return SignalRule.of(config.trainer, config.rollout.prompts_per_step)

    assert of() is None
    assert of(algorithm="dapo") == SignalRule(most=54)
    assert of(algorithm="dapo", enabled=False) is None
    given = of(enabled=True, metric="math", tolerance=0.5, max_refills=1.4, on_exhausted="drop")
    assert given == SignalRule(most=8, metric="math", tolerance=0.5, keep=False)
    with pytest.raises(ValueError, match="metric = 'maths' is neither 'reward' nor a scorer: there are math, format"):
        of(enabled=True, metric="maths")


def test_evaluations_are_not_filtered() -> None:
    story = Story(Ledger(signal=RULE))
    story.begin(SmallPlan(steps=1), evaluation=Evaluation({"test": ["x"]}, steps=1, every=1, samples=2))
    story.join("w", "rollout", slots=20)
    story.join("r", "reward", slots=20)
    ids = [SampleId(EVAL, "x", index) for index in range(2)]
    story.generated("w", *ids, version=0)
    assert [type(action) for action in story.scored("r", *ids)] == [Evaluated]


def test_after_a_restart_a_scorers_points_are_not_known_and_the_sample_is_scored_again() -> None:
    story = Story(Ledger(signal=SignalRule(most=9, metric="math")))
    plan = SmallPlan(steps=1, groups=2, prompts=4)
    journal = [JournalEntry(id=id, state="scored", reward=1.0) for id in group(0, "a")]
    journal += [JournalEntry(id=id, state="dropped", reward=1.0, reason=RULE.reason) for id in group(0, "b")]
    story.begin(plan, journal=journal)
    assert story.join("r", "reward") == [ScoreSamples("r", group(0, "a"))]
    assert story.state(SampleId(0, "b", 0)) == "filtered"


def test_late_and_repeated_reports_of_filtered_samples_change_nothing() -> None:
    story = begin(RULE, SmallPlan(steps=1, groups=1, prompts=4))
    finish(story, 0, a=(1.0, 1.0))
    assert finish(story, 0, a=(0.0, 1.0)) == []
    assert story.beat("w", [SampleId(0, "b", 0), SampleId(0, "b", 1), SampleId(0, "a", 0)])[0].ids == [
        SampleId(0, "a", 0)
    ]
    (train,) = finish(story, 0, b=(0.0, 1.0))
    assert train.ids == group(0, "b")


def test_a_step_that_the_trainer_refuses_is_not_refilled_again() -> None:
    story = begin(SignalRule(most=1), SmallPlan(steps=1, groups=1, prompts=4))
    finish(story, 0, a=(1.0, 1.0))
    (train,) = finish(story, 0, b=(1.0, 1.0))
    story.ledger.refused(story.now, "no")
    assert story.tick() == [Train("trainer", 0, train.ids, train.metrics)]


def test_while_a_step_is_trained_the_next_one_is_refilled() -> None:
    story = begin(RULE, SmallPlan(steps=3, groups=1, prompts=9), Rules(max_staleness=1))
    finish(story, 1, b=(1.0, 1.0))  # complete first, but its turn comes after step 0
    assert len(story.ledger.samples.open_steps[1].samples) == 2
    story.generated("w", *group(0, "a"), version=0)
    story.ledger.scored("r", [Score(id=id, reward=float(id.index)) for id in group(0, "a")], story.now)
    actions = story.drain()
    assert Train("trainer", 0, group(0, "a"), actions[0].metrics) == actions[0]
    assert actions[1] == Assign("w", group(1, "d"), ())  # c is reserved for step 2


def test_a_run_whose_refills_were_turned_off_drops_what_they_had_asked_for() -> None:
    plan = SmallPlan(steps=1, groups=1, prompts=4)
    journal = [JournalEntry(id=id, state="scored", reward=1.0) for id in (*group(0, "a"), *group(0, "b"))]
    story = Story(Ledger())
    actions = story.begin(plan, journal=journal)
    assert isinstance(actions[0], Train)
    assert actions[0].ids == group(0, "a")
    assert actions[1:] == [Mark(group(0, "b"), "dropped", NOT_PLANNED)]


@pytest.mark.parametrize("rule", [None, SignalRule(most=1), SignalRule(most=0)])
def test_groups_that_were_dropped_under_earlier_settings_are_replaced_all_the_same(rule: SignalRule | None) -> None:
    """Two of four groups were dropped, one of their refills is scored; then refills are limited or turned off."""
    gone, there = (*group(0, "a"), *group(0, "c")), (*group(0, "b"), *group(0, "e"))
    journal = [JournalEntry(id=id, state="dropped", reward=1.0, reason=RULE.reason) for id in gone]
    journal += [JournalEntry(id=id, state="scored", reward=1.0) for id in there]
    story = Story(Ledger(signal=rule))
    story.begin(SmallPlan(steps=1, groups=4, prompts=8), journal=journal)
    story.join("r", "reward", slots=20)
    assert story.join("w", "rollout", slots=20) == [Assign("w", [*group(0, "d"), *group(0, "f")], ())]
    (train,) = finish(story, 0, d=(1.0, 1.0), f=(2.0, 2.0))
    assert train.ids == [id for prompt in "bdef" for id in group(0, prompt)]


def test_a_group_that_was_trained_is_trained_again_whatever_its_rewards_are_now() -> None:
    """A late or a dishonest reward worker may have changed them between the report and the end of the step."""
    journal = [JournalEntry(id=id, state="trained", reward=1.0) for id in (*group(0, "b"), *group(0, "c"))]
    journal += [JournalEntry(id=id, state="dropped", reward=1.0, reason=RULE.reason) for id in group(0, "a")]
    story = Story(Ledger(signal=RULE))
    (train,) = story.begin(SmallPlan(steps=1, groups=2, prompts=6), journal=journal)
    assert train.ids == [*group(0, "b"), *group(0, "c")]
    assert train.metrics["rollout/refilled_groups"] == 1
    assert train.metrics["rollout/unreplaced_groups"] == 2


def test_after_a_restart_workers_keep_the_refills_that_they_hold() -> None:
    plan = SmallPlan(steps=1, groups=2, prompts=6)
    story = begin(RULE, plan)
    finish(story, 0, a=(1.0, 1.0), b=(0.0, 1.0))
    rewards = zip([*group(0, "a"), *group(0, "b")], (1.0, 1.0, 0.0, 1.0), strict=True)
    journal = [JournalEntry(id=id, state="scored", reward=reward) for id, reward in rewards]
    story.ledger.start(plan, 0, journal, story.now)
    assert story.drain() == [Mark(group(0, "a"), "dropped", RULE.reason)]
    assert story.state(SampleId(0, "c", 0)) == "running"


# ---------------------------------------------------------------------------------------------------------------
# Whole runs
# ---------------------------------------------------------------------------------------------------------------


def plan(prompts: int = 23, per_step: int = 3, steps: int = 5, group_size: int = 2) -> Plan:
    return Plan(ids(prompts), per_step, group_size, 100, steps, seed=3)


def counts(run: Play) -> dict[int, dict[str, float]]:
    """What every step says of its groups."""
    words = ("group", "filtered", "round", "reward_mean", "samples")
    return {
        step: {name: value for name, value in row.items() if any(word in name for word in words)}
        for step, row in run.metrics.items()
    }


CASES = [
    {"staleness": 0},
    {"staleness": 1},
    {"staleness": 2, "ahead": 1},
]


@pytest.mark.parametrize("case", CASES)
def test_refills_do_not_depend_on_the_order_of_events_or_on_the_number_of_workers(case: dict[str, int]) -> None:
    reward = flat_share(0.5)
    runs = [Play(plan(), RULE, reward, workers=1 + seed % 4, **case).run(seed) for seed in range(8)]
    for run in runs[1:]:
        assert run.trained == runs[0].trained
        assert run.drawn == runs[0].drawn
    assert sum(drawn.refilled for drawn in runs[0].drawn.values()) > 5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.integers(4, 30), st.floats(0, 0.9), st.integers(0, 2), st.integers(0, 3))
def test_every_prompt_is_drawn_once_an_epoch_and_never_twice_in_a_step(
    seed: int, prompts: int, share: float, staleness: int, most: int
) -> None:
    drawn = Play(plan(prompts), SignalRule(most=3 * most), flat_share(share, seed), staleness=staleness).run(seed)
    counts = Counter(drawn.draws())
    reserved = 3 * staleness  # prompts of later steps, which were never opened
    epochs = (sum(counts.values()) + reserved) // prompts
    deferred = len(drawn.drawn[4].after.deferred) + prompts  # of the last epochs, in any order
    for prompt in ids(prompts):
        assert counts[prompt] <= epochs + 2
    assert sum(max(0, epochs - counts[prompt]) for prompt in ids(prompts)) <= reserved + deferred


@pytest.mark.parametrize("case", CASES)
def test_a_crash_of_the_broker_at_any_point_changes_nothing(case: dict[str, int]) -> None:
    reward = flat_share(0.5)
    calm = Play(plan(steps=4), RULE, reward, **case).run(1)
    cut = 0
    while True:
        run = Play(plan(steps=4), RULE, reward, **case)
        chance = random.Random(1)
        for _ in range(cut):
            if not run.over:
                chance.choice(run.events())()
        if run.over:
            break
        run.start_broker(lost=cut % 3)
        run.run(cut)
        assert run.trained == calm.trained, f"after {cut} events"
        assert run.drawn == calm.drawn, f"after {cut} events"
        assert counts(run) == counts(calm), f"after {cut} events"
        cut += 2 if case == CASES[0] else 5
    assert cut > 40


@pytest.mark.parametrize("case", CASES)
def test_a_trainer_that_falls_back_to_its_checkpoint_trains_the_same_steps_again(case: dict[str, int]) -> None:
    reward = flat_share(0.5)
    calm = Play(plan(steps=6), RULE, reward, **case).run(1)
    for seed in range(6):
        run = Play(plan(steps=6), RULE, reward, **case)
        chance, kills = random.Random(seed), 0
        while not run.over:
            chance.choice(run.events())()
            if chance.random() < 0.02 and kills < 5:
                kills += 1
                run.kill_trainer()
        run.flush()
        assert run.trained == calm.trained
        assert run.drawn == calm.drawn


def test_a_longer_run_continues_a_finished_one_as_if_it_had_been_long_from_the_start() -> None:
    reward = flat_share(0.5)
    whole = Play(plan(steps=6), RULE, reward, staleness=1).run(1)
    run = Play(plan(steps=3), RULE, reward, staleness=1).run(2)
    run.plan = plan(steps=6)
    run.start_broker()
    run.run(3)
    assert run.trained == whole.trained
    assert run.drawn == whole.drawn


def test_with_other_staleness_a_run_continues_with_the_same_sequence_of_prompts() -> None:
    run = Play(plan(prompts=200, steps=4), RULE, flat_share(0.5), staleness=2).run(1)
    for staleness, steps in ((0, 7), (1, 10)):
        run.plan, run.staleness = plan(prompts=200, steps=steps), staleness
        run.start_broker(lost=0)
        run.run(staleness)
    prompts = run.draws()
    assert len(set(prompts)) == len(prompts), "no epoch is over: no prompt comes twice"


def test_a_run_that_began_without_refills_takes_the_same_prompts_up_to_there() -> None:
    run = Play(plan(prompts=200, steps=4), None, flat_share(0.5)).run(1)
    assert run.drawn == {}
    run.plan, run.rule = plan(prompts=200, steps=6), RULE
    run.start_broker()
    run.run(1)
    assert set(run.drawn) == {4, 5}
    assert [prompt for step in range(4) for prompt in run.plan.prompts(step)] == run.plan.draw(
        run.plan.cursor(0), 12
    )[0]
    assert run.draws()[:3] == run.plan.prompts(4)


def test_what_steps_drew_before_they_were_rolled_back_without_refills_does_not_count() -> None:
    chance, run = random.Random(1), Play(plan(prompts=200, steps=4), RULE, flat_share(0.5), every=100)
    while run.trainer_at < 3:
        chance.choice(run.events())()
    assert sum(drawn.refilled for drawn in run.drawn.values()) > 0
    run.trainer_at, run.rule = run.checkpoint, None
    run.trained.clear()
    run.start_broker()
    while run.trainer_at < 2:
        chance.choice(run.events())()
    run.flush()
    prompts = set(run.story.ledger.samples.open_steps[2].samples)
    run.start_broker()
    assert set(run.story.ledger.samples.open_steps[2].samples) == prompts


def test_when_every_group_is_flat_for_ever_the_run_still_ends() -> None:
    kept = Play(plan(), SignalRule(most=6), lambda id: 1.0).run()
    assert all(
        row["rollout/refilled_groups"] == 6 and row["rollout/unreplaced_groups"] == 3 for row in kept.metrics.values()
    )
    gone = Play(plan(), SignalRule(most=6, keep=False), lambda id: 1.0).run()
    assert all(trained == [] for trained in gone.trained.values())
    tiny = Play(plan(prompts=4), SignalRule(most=600), lambda id: 1.0).run()
    assert all(row["rollout/refilled_groups"] == 1 for row in tiny.metrics.values())
