"""The sentences that people see while a run makes no progress."""

from __future__ import annotations

from rhymed.core.messages import Heartbeat, Holding, SampleId
from rhymed_broker.status.snapshot import diagnostics
from tests.broker.ledger.stories import SmallPlan, Story

A0, A1 = SampleId(0, "a", 0), SampleId(0, "a", 1)


def lines(story: Story, **given: object) -> list[str]:
    return diagnostics(story.ledger, story.now, **{"up_s": 1000.0, "ready": True, **given})  # type: ignore[arg-type]


def test_a_run_that_goes_on_has_no_trouble(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    assert lines(story) == []


def test_who_is_missing_is_named_with_what_waits_for_him(story: Story) -> None:
    story.begin(SmallPlan())
    assert lines(story) == []  # it has just begun
    story.now += 15
    story.beat("trainer")
    assert lines(story) == ["no rollout worker is here: 2 samples wait to be generated"]
    story.join("w", "rollout")
    story.generated("w", A0, A1)
    story.now += 15
    story.beat("trainer")
    story.beat("w")
    assert lines(story) == ["no reward worker is here: 2 samples wait to be scored"]
    story.ledger.leave("trainer", story.now)
    assert lines(story)[0].startswith("no trainer is here")


def test_a_start_is_no_trouble_until_its_time_is_over(story: Story) -> None:
    story.begin(SmallPlan())
    story.now += 15
    story.beat("trainer")
    assert lines(story, up_s=60.0) == []  # an engine loads
    assert lines(story, up_s=301.0) == ["no rollout worker is here: 2 samples wait to be generated"]
    story.join("w", "rollout")
    assert lines(story, up_s=60.0) == []
    story.ledger.leave("w", story.now)
    story.now += 15
    story.beat("trainer")
    assert lines(story, up_s=75.0) == ["no rollout worker is here: 2 samples wait to be generated"]  # there was one


def test_a_silent_worker_is_named_before_it_is_lost(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.now += 12
    story.beat("trainer")
    assert lines(story) == ["w has been silent for 12 s; lost in 8 s"]


def test_a_sample_that_does_not_advance_is_named_before_it_is_taken_away(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    for seconds in (1, 70):
        story.now += seconds
        story.beat("trainer")
        holding = [Holding(id=A0, tokens=3), Holding(id=A1, tokens=int(story.now))]
        story.ledger.heartbeat(Heartbeat(worker="w", version=0, holding=holding), story.now)
    (line,) = lines(story)
    assert line.startswith("sample 0/a/0 has been running with w for 70 s without a change; taken from it in 830 s")


def test_a_store_that_cannot_be_written_to_is_reported_at_once(story: Story) -> None:
    assert lines(story, up_s=0.0, ready=False, others=["", "the disk is full"]) == ["the disk is full"]


def test_a_trainer_that_does_not_get_on_is_named(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")

    def said() -> list[str]:
        story.ledger.heartbeat(Heartbeat(worker="trainer", version=0, phase="train 3/8"), story.now)
        holding = [Holding(id=id, tokens=1 + int(story.now)) for id in (A0, A1)]
        story.ledger.heartbeat(Heartbeat(worker="w", version=0, holding=holding), story.now)
        return lines(story)

    for _ in range(2):
        assert said() == []
        story.now += 200
    assert said() == ["trainer has been at 'train 3/8' for 400 s"]


def test_a_step_that_cannot_be_given_to_the_trainer_is_reported_with_the_reason(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    for _ in range(12):
        story.ledger.refused(story.now, "no log-probs")
        story.now += 1
    story.beat("trainer")
    story.beat("w", [A0, A1])
    assert lines(story) == ["step 1 could not be given to the trainer for 12 s: no log-probs"]


def test_a_step_that_lost_most_of_its_samples_is_reported_with_the_reason(story: Story) -> None:
    story.begin(SmallPlan(steps=4))
    story.join("w", "rollout")
    story.join("r", "reward")
    for step, errors in enumerate(([None, "banana"], ["banana", "pear"], [None, None])):
        samples = [SampleId(step, "a", index) for index in range(2)]
        story.generated("w", *samples)
        for sample, error in zip(samples, errors, strict=True):
            story.scored("r", sample, error=error)
        story.trained(step)
        story.loaded("w", step + 1)
        lost = ["2 of 2 samples of step 2 were dropped, lately: not scored: pear"] if step == 1 else []
        assert lines(story) == lost


def test_weights_that_are_not_loaded_and_a_worker_that_rests_are_reported(story: Story) -> None:
    story.begin(SmallPlan())
    for _ in range(3):
        story.join("w", "rollout")
    assert lines(story) == ["w died 2 times in a row and did nothing: no work for 2 s"]
    story.join("v", "rollout", version=-1)
    story.now += 100
    for name in ("trainer", "v", "w"):
        story.ledger.workers.by_name[name].seen = story.now
    assert lines(story)[-1] == "v was asked to load version 0 100 s ago"


def test_what_workers_say_that_they_wait_for_is_named_once(story: Story) -> None:
    story.begin(SmallPlan())
    for name in ("v", "w"):
        story.join(name, "rollout")
        waits = "for 4 s: the weights of version 0 (version 0 was lost)"
        story.ledger.heartbeat(Heartbeat(worker=name, version=0, waits=waits), story.now)
    assert lines(story) == ["v has waited for 4 s: the weights of version 0 (version 0 was lost)"]
