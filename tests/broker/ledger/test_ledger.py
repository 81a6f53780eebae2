"""Stories: events in, exact actions out. The invariants are checked after every event."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rhymed_broker
from rhymed.core.errors import InvalidTransition
from rhymed.core.messages import Drafting, Heartbeat, Holding, Join, JournalEntry, SampleId, Score
from rhymed_broker.ledger.actions import Assign, Cancel, FinishRun, Load, Mark, ScoreSamples, Train
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.states import Rules
from scripts.docs.ledger import page
from tests.broker.ledger.stories import SmallPlan, Story

A0, A1, B0, B1 = SampleId(0, "a", 0), SampleId(0, "a", 1), SampleId(0, "b", 0), SampleId(0, "b", 1)
NEXT0, NEXT1 = SampleId(1, "a", 0), SampleId(1, "a", 1)
LATER0, LATER1 = SampleId(2, "a", 0), SampleId(2, "a", 1)


def trains(actions: list) -> list[tuple[int, list[SampleId]]]:
    return [(action.step, action.ids) for action in actions if isinstance(action, Train)]


def entry(id: SampleId, state: str, reward: float | None = None, version: int | None = None) -> JournalEntry:
    oldest = id.step if version is None else version
    return JournalEntry(id=id, state=state, length=5, oldest_version=oldest, reward=reward, reason="why")


def test_one_step_from_waiting_to_trained(story: Story) -> None:
    assert story.begin(SmallPlan()) == []
    assert story.join("w", "rollout") == [Assign("w", [A0, A1])]
    assert story.join("r", "reward") == []
    assert story.generated("w", A1) == [ScoreSamples("r", [A1])]
    assert story.generated("w", A0) == [ScoreSamples("r", [A0])]
    assert story.scored("r", A1) == []
    assert trains(story.scored("r", A0)) == [(0, [A0, A1])]
    assert story.trained(0) == [Mark([A0, A1], "trained"), Load("w", 1)]
    assert story.metrics["response_length/mean"] == 10
    assert story.metrics["training/epoch"] == 0
    assert story.loaded("w", 1) == [Assign("w", [NEXT0, NEXT1])]
    story.generated("w", NEXT0, NEXT1)
    story.scored("r", NEXT0, NEXT1)
    assert story.trained(1) == [Mark([NEXT0, NEXT1], "trained"), Load("w", 2), FinishRun("all 2 steps are trained")]
    assert story.ledger.samples.depths()["trained"] == 4


def test_a_worker_that_scores_whole_groups_gets_a_group_when_its_last_sample_is_written(story: Story) -> None:
    story.begin(SmallPlan(groups=2))
    story.join("w", "rollout")
    story.join("r", "reward", slots=1, whole_groups=True)
    assert story.generated("w", A1, B0) == []
    assert story.generated("w", A0) == [ScoreSamples("r", [A1, A0])], "more than its slots"
    assert story.generated("w", B1) == []
    assert story.scored("r", A0, A1) == [ScoreSamples("r", [B0, B1])]
    assert story.ledger.leave("r", story.now) is None
    assert story.join("s", "reward", whole_groups=True) == [ScoreSamples("s", [B0, B1])]
    assert trains(story.scored("s", B0, B1)) == [(0, [A0, A1, B0, B1])]


def test_a_sample_stays_with_a_reward_worker_until_every_call_for_it_has_ended() -> None:
    story = Story(Ledger(Rules(stuck_after_s=50, scoring_s=120, lost_after_s=10_000)))
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    assert story.generated("w", A0) == [ScoreSamples("r", [A0])]
    assert Cancel("w", [A1]) in story.tick(51), "it wrote nothing"
    story.tick(60)
    assert story.state(A0) == "scoring"
    assert ScoreSamples("r", [A0]) in story.tick(10)


def test_of_a_group_with_a_dropped_sample_the_others_are_scored_together(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward", whole_groups=True)
    assert story.generated("w", A0) == []
    assert ScoreSamples("r", [A0]) in story.give_back("w", A1, retry=False)


def test_a_sample_that_the_store_lacks_brings_its_group_back(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward", whole_groups=True)
    story.generated("w", A0, A1)
    assert story.give_back("r", A0) == []
    story.ledger.scored("r", [Score(id=A1, unstored=True)], story.now)
    assert story.drain() == [], "w rests, as it reported a sample that is not there"
    assert story.tick(5) == [Assign("w", [A1], (A1,))]
    assert story.generated("w", A1) == [ScoreSamples("r", [A0, A1])]


def test_at_staleness_0_a_worker_waits_for_the_weights(story: Story) -> None:
    story.begin(SmallPlan())
    assert story.join("w", "rollout", version=-1) == [Load("w", 0)]
    assert story.loaded("w", 0) == [Assign("w", [A0, A1])]


def test_without_weights_nothing_at_staleness_1_either(pipelined: Story) -> None:
    pipelined.begin(SmallPlan())
    assert pipelined.join("w", "rollout", version=-1) == [Load("w", 0)]


def test_at_staleness_1_the_next_step_is_open_too(pipelined: Story) -> None:
    pipelined.begin(SmallPlan(steps=3))
    assert pipelined.join("w", "rollout") == [Assign("w", [A0, A1, NEXT0, NEXT1])]
    pipelined.join("r", "reward")
    pipelined.generated("w", A0, A1)
    pipelined.scored("r", A0, A1)
    assert pipelined.trained(0) == [Mark([A0, A1], "trained"), Load("w", 1)]
    assert pipelined.state(LATER0) == "waiting"  # version 0 is too old for step 2
    assert pipelined.loaded("w", 1) == [Assign("w", [LATER0, LATER1])]


def test_a_stale_sample_is_dropped(story: Story) -> None:
    story.begin(SmallPlan(), position=1)
    story.join("w", "rollout", version=1)
    (mark,) = story.generated("w", NEXT0, version=0)
    assert mark == Mark([NEXT0], "dropped", "stale: tokens of version 0, allowed are 1 and newer")


def test_reports_said_twice_do_nothing(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0, A1)
    assert story.generated("w", A0, A1) == []
    story.scored("r", A0)
    assert story.scored("r", A0) == []
    assert story.generated("w", A0) == []
    story.scored("r", A1)
    assert story.trained(0) != []
    assert story.trained(0) == []
    assert story.generated("w", A0) == story.scored("r", A0) == story.give_back("w", A0) == []


def test_what_a_lost_worker_held_goes_to_others(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.now += 15
    story.join("x", "rollout")
    story.beat("trainer")
    assert story.tick(6) == [Assign("x", [A0, A1], begun=(A0, A1))]
    assert story.lost == {"w": [A0, A1]}


def test_a_late_report_of_a_lost_worker_changes_nothing(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.now += 15
    story.join("x", "rollout")
    story.beat("trainer")
    story.tick(6)
    assert story.generated("w", A0) == []
    assert story.state(A0) == "running"
    assert story.ledger.samples.counts["unheld"] == 1
    assert story.join("w", "rollout", holding=[A0]) == [Cancel("w", [A0])], "x has it"
    story.generated("x", A0)
    assert story.state(A0) == "generated"


def test_a_lost_worker_that_joins_again_claims_what_nobody_has_and_reports_it(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.now += 15
    story.beat("trainer")
    story.tick(6)
    assert story.state(A0) == "waiting"
    assert story.join("w", "rollout", holding=[A0, A1]) == []
    story.generated("w", A0, A1)
    assert story.state(A0) == story.state(A1) == "generated"


def test_a_worker_reports_only_what_it_holds(story: Story) -> None:
    """Every report about a sample of another one, or of none: nothing moves, and it is counted."""
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("thief", "rollout", slots=0)
    story.join("r", "reward", slots=0)
    for name in ("thief", "r", "trainer", "nobody", ""):
        assert story.generated(name, A0, A1) == []
        assert story.scored(name, A0, A1) == []
        assert story.give_back(name, A0, A1, retry=False) == []
    assert story.state(A0) == story.state(A1) == "running"
    assert story.ledger.samples.counts["unheld"] == 5 * 2 + 3 * 2, "a stranger's give-back is not looked at"
    story.generated("w", A0, A1)
    assert story.scored("r", A0, A1) == []
    assert story.state(A0) == "generated", "the broker has not given it to r"
    unknown = SampleId(0, "zz", 0)
    assert story.generated("w", unknown) == []
    assert story.scored("r", unknown) == []


def unstored(story: Story, name: str, *ids: SampleId) -> list:
    story.ledger.scored(name, [Score(id=id, error="not in the store", unstored=True) for id in ids], story.now)
    return story.drain()


def test_what_the_store_lacks_is_generated_again_and_its_worker_rests(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("liar", "rollout")
    story.join("r", "reward")
    for times in (1, 2, 3):
        story.generated("liar", A0, A1)
        assert unstored(story, "r", A0, A1) == []
        assert story.state(A0) == story.state(A1) == "waiting"
        assert story.ledger.samples.get(A0).length == 0
        liar = story.ledger.workers.by_name["liar"]
        assert liar.rest.until - story.now == 2.0 ** (times - 1), "two samples of one rest count once"
        assert "the store lacks" in liar.rest.why
        for name in ("liar", "r", "trainer"):
            story.beat(name)
        assert story.tick(2.0 ** (times - 1)) == [Assign("liar", [A0, A1], begun=(A0, A1))]
    assert story.ledger.samples.counts["unstored"] == 6
    assert story.ledger.samples.get(A0).failures == 0
    story.generated("liar", A0, A1)
    assert trains(story.scored("r", A0, A1)) == [(0, [A0, A1])]


def test_a_worker_that_fails_on_everything_drops_nothing_while_another_can_have_it(story: Story) -> None:
    """The other one is full for a while."""
    story.begin(SmallPlan())
    story.join("thief", "rollout", slots=2)
    story.join("w", "rollout", slots=0)
    for _ in range(10):
        for retry in (True, False):
            assert story.give_back("thief", A0, A1, retry=retry) == []
            for name in ("thief", "w", "trainer"):
                story.beat(name)
            assert assigned(story.tick()) == [A0, A1]
    assert story.state(A0) == "running"
    story.ledger.leave("thief", story.now)
    story.join("w", "rollout")
    story.generated("w", A0, A1)
    assert story.state(A0) == "generated"


def assigned(actions: list) -> list[SampleId]:
    return sorted(id for action in actions if isinstance(action, Assign) for id in action.ids)


def test_a_sample_on_which_all_fail_is_dropped(story: Story) -> None:
    story.begin(SmallPlan())
    for name in ("v", "w"):
        story.join(name, "rollout", slots=1)
    holders = {id: story.ledger.samples.get(id).worker for id in (A0, A1)}
    assert story.give_back(holders[A0], A0, retry=False) == []
    other = next(name for name in ("v", "w") if name != holders[A0])
    story.generated(other, A1)
    assert story.drain() == []
    assert story.ledger.samples.get(A0).worker == other
    assert Mark([A0], "dropped", "cannot") in story.give_back(other, A0, retry=False)


@pytest.mark.parametrize("policy", ["fifo", "rhyme", "flow"])
def test_a_sample_on_which_its_own_worker_fails_goes_to_another_although_it_was_dealt(policy: str) -> None:
    story = Story(Ledger(policy=POLICIES[policy]))
    story.begin(SmallPlan(groups=2))
    for name in ("v", "w"):
        story.join(name, "rollout")
    dropped: list[SampleId] = []
    for _ in range(4):
        for name in ("v", "w"):
            actions = story.give_back(name, *story.ledger.workers.by_name[name].held, retry=False)
            dropped += [id for action in actions if isinstance(action, Mark) for id in action.ids]
        for name in ("v", "w", "trainer"):
            story.beat(name, story.ledger.workers.by_name[name].held)
        story.tick()
    assert sorted(dropped) == [A0, A1, B0, B1]


def test_retries_are_bounded(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    for _ in range(2):
        assert story.give_back("w", A0) == []  # it rests until the next tick
        assert story.tick() == [Assign("w", [A0], begun=(A0,))]
    assert story.give_back("w", A0) == [Mark([A0], "dropped", "given up after 3 tries: w: cannot")]


def die(story: Story, first: int, second: int) -> list:
    """The worker tells how many tokens its two samples have, dies, and starts again with nothing in hand."""
    holding = [Holding(id=A0, tokens=first), Holding(id=A1, tokens=second)]
    story.ledger.heartbeat(Heartbeat(worker="w", version=0, holding=holding), story.now)
    return story.join("w", "rollout")


def test_a_sample_that_comes_further_outlives_any_number_of_workers(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    for tokens in range(1, 100):
        assert die(story, tokens, tokens) == [Assign("w", [A0, A1], begun=(A0, A1))]
    assert story.ledger.samples.get(A0).failures == 0  # type: ignore[union-attr]


def test_a_sample_with_which_every_worker_dies_at_the_same_place_is_dropped(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    for time in range(11):
        given = sorted(id for action in die(story, 7, time) for id in action.ids)
        assert given == [A0, A1]
    why = "given up after 12 workers died with it: w: it started again"
    assert die(story, 7, 20) == [Assign("w", [A1], begun=(A1,)), Mark([A0], "dropped", why)]


def crash(story: Story, name: str, **tokens: int) -> list:
    """The worker tells how far it is with what it holds, dies, and starts again; its rest is over at once."""
    held = story.ledger.workers.by_name[name].held
    holding = [Holding(id=id, tokens=tokens.get(f"{id.prompt}{id.index}", 0)) for id in held]
    story.ledger.heartbeat(Heartbeat(worker=name, version=0, holding=holding), story.now)
    actions = story.join(name, "rollout")
    story.now += 1000
    for other in story.ledger.workers.by_name:
        if other != name:
            story.ledger.workers.by_name[other].seen = story.now
    story.ledger.workers.by_name[name].seen = story.now
    return actions + story.tick(0)


def test_of_many_that_share_a_bad_workers_fate_only_one_at_a_time_is_in_danger(story: Story) -> None:
    """Four prompts of two; nothing ever advances, and the worker dies every time."""
    story.begin(SmallPlan(groups=4))
    story.join("w", "rollout")
    for _ in range(10):
        given = sorted(id for action in crash(story, "w") for id in action.ids)
    assert len(given) == 1, "all are suspects now: one at a time"
    drops = []
    for death in range(1, 5):
        actions = crash(story, "w")
        drops += [id for action in actions if isinstance(action, Mark) for id in action.ids]
        assert len(drops) == death // 2
    assert len(story.ledger.samples.suspects) == 6


def test_a_suspect_that_comes_further_is_none_any_more(story: Story) -> None:
    story.begin(SmallPlan(groups=2))
    story.join("w", "rollout")
    for _ in range(10):
        crash(story, "w")
    (held,) = story.ledger.workers.by_name["w"].held
    assert len(story.ledger.samples.suspects) == 4
    story.ledger.heartbeat(Heartbeat(worker="w", version=0, holding=[Holding(id=held, tokens=1)]), story.now)
    assert len(story.ledger.samples.suspects) == 3
    story.drain()
    story.tick(0)
    assert len(story.ledger.workers.by_name["w"].held) == 2, "now it may have another"


def test_one_that_dies_again_and_again_and_does_nothing_gets_nothing_for_a_while(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    assert story.join("w", "rollout") == [Assign("w", [A0, A1], begun=(A0, A1))]
    assert story.join("w", "rollout") == [], "it waits 2 s"
    assert story.tick(1) == []
    assert story.tick(1) == [Assign("w", [A0, A1], begun=(A0, A1))]
    assert story.join("w", "rollout") == [], "and then 4 s"
    assert story.join("x", "rollout") == [Assign("x", [A0, A1], begun=(A0, A1))]
    assert story.ledger.samples.get(A0).losses == 3  # type: ignore[union-attr]


def test_weights_of_a_lost_future_do_not_count(story: Story) -> None:
    def join(name: str, role: str, version: int, life: str) -> bool:
        card = Join(role=role, worker=name, host="h", pid=1, version=version, life=life)
        return story.ledger.join(card, story.now)

    assert join("trainer", "trainer", 5, "second")
    story.ledger.start(SmallPlan(steps=9), 5, (), story.now)
    join("same", "rollout", 5, "first")  # the checkpoint's: whoever published it
    join("old", "rollout", 7, "first")
    join("new", "rollout", 6, "second")
    versions = {name: worker.version for name, worker in story.ledger.workers.by_name.items()}
    assert versions == {"trainer": 5, "same": 5, "old": -1, "new": 6}


class Lives:
    """A trainer whose second life begins at an earlier version than its first one reached."""

    def __init__(self, story: Story, workers: dict[str, int]) -> None:
        self.story = story
        self.join("trainer", "trainer", 2, "first")
        story.ledger.start(SmallPlan(steps=8), 2, (), story.now)
        for name, version in workers.items():
            self.join(name, "rollout", version, "first")
        self.join("r", "reward", 0, "")
        story.drain()

    def join(self, name: str, role: str, version: int, life: str) -> None:
        there = {"host": "h", "pid": 1, "slots": 8, "version": version, "life": life}
        self.story.ledger.join(Join(role=role, worker=name, **there), self.story.now)

    def rollback(self) -> list:
        self.join("trainer", "trainer", 1, "second")
        self.story.ledger.pause()
        self.story.ledger.start(SmallPlan(steps=8), 1, (), self.story.now)
        return self.story.drain()

    def version(self, name: str) -> int:
        return self.story.ledger.workers.by_name[name].version


def test_who_loads_from_a_lost_trainer_is_ordered_again_at_once(story: Story) -> None:
    lives = Lives(story, {"w": 1})
    assert Load("w", 1) in lives.rollback(), "not when it gives up the address of the first life"
    assert story.loaded("w", 1) == [Assign("w", [NEXT0, NEXT1])]
    story.generated("w", NEXT0, NEXT1, version=1)
    story.scored("r", NEXT0, NEXT1)
    assert Load("w", 2) in story.trained(1)


def test_what_a_lost_trainer_published_later_is_not_the_version_of_that_number(story: Story) -> None:
    lives = Lives(story, {"w": 1, "x": 1})
    lives.rollback()
    assert not [action for action in story.loaded("w", 2, "first") if isinstance(action, Assign)]
    assert lives.version("w") == -1
    assert story.loaded("x", 1, "second") == [Assign("x", [NEXT0, NEXT1])]
    story.generated("x", NEXT0, NEXT1, version=1)
    story.scored("r", NEXT0, NEXT1)
    assert Load("w", 2) in story.trained(1), "the second life has reached that number"
    story.loaded("w", 2, "first")
    assert lives.version("w") == -1
    story.loaded("w", 2, "second")
    assert lives.version("w") == 2


def test_a_heartbeat_does_not_bring_back_weights_of_a_lost_trainer(story: Story) -> None:
    lives = Lives(story, {"w": 2})
    assert Load("w", 1) in lives.rollback()
    story.ledger.undelivered("w")
    story.beat("w", version=2, life="first")
    assert lives.version("w") == -1
    story.join("x", "rollout", version=1)
    story.generated("x", NEXT0, NEXT1, version=1)
    story.scored("r", NEXT0, NEXT1)
    assert not [one for one in story.trained(1) if isinstance(one, Assign) and one.worker == "w"]


def test_a_step_that_the_trainer_refuses_again_and_again_is_counted(story: Story) -> None:
    story.begin(SmallPlan())
    assert story.ledger.handover.refused_s(story.now) == 0
    for seconds in (0, 1, 30):
        story.now += seconds
        story.ledger.refused(story.now, "no log-probs")
    assert story.ledger.handover.refused_s(story.now) == 31
    assert story.ledger.handover.refused_s(story.now + 401) == 0
    story.now += 410
    story.ledger.refused(story.now, "another")
    assert story.ledger.handover.refused_s(story.now) == 0
    assert story.ledger.handover.refusal.why == "another"


def test_what_does_not_advance_is_taken_from_its_worker_and_dropped_in_the_end(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")

    def long_after() -> list:
        for seconds in (600, 400):
            story.now += seconds
            tokens = int(story.now)  # A1 goes on all the time
            holding = [Holding(id=A0, tokens=3), Holding(id=A1, tokens=tokens)]
            story.ledger.heartbeat(Heartbeat(worker="w", version=0, holding=holding), story.now)
            story.beat("trainer")
            actions = story.tick(0)
        return actions

    story.ledger.heartbeat(
        Heartbeat(worker="w", version=0, holding=[Holding(id=A0, tokens=3), Holding(id=A1, tokens=3)]), story.now
    )
    assert long_after() == [Cancel("w", [A0]), Assign("w", [A0], begun=(A0,))]
    assert long_after() == [Cancel("w", [A0]), Assign("w", [A0], begun=(A0,))]
    (cancel, mark) = long_after()
    assert cancel == Cancel("w", [A0])
    assert mark.state == "dropped"
    assert "w: running for 1000 s without a change" in mark.reason
    assert story.state(A1) == "running"


def test_what_waits_for_a_score_for_ever_is_scored_elsewhere(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0, A1)
    story.join("q", "reward")
    story.now += 1000
    for name in ("trainer", "w", "q"):
        story.beat(name)
    story.beat("r", [A0, A1])
    actions = story.tick(0)
    assert sorted(id for action in actions for id in action.ids) == [A0, A1]
    assert {sample.failures for sample in story.ledger.samples.queues["scoring"]} == {1}


def test_given_back_for_good_is_dropped_and_the_group_goes_on(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A1)
    story.scored("r", A1)
    actions = story.give_back("w", A0, retry=False)
    assert trains(actions) == [(0, [A1])]
    assert Mark([A0], "dropped", "cannot") in actions


def test_a_scoring_error_drops(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0, A1)
    assert story.scored("r", A0, error="boom") == [Mark([A0], "dropped", "not scored: boom")]
    assert trains(story.scored("r", A1)) == [(0, [A1])]
    story.trained(0)
    assert story.metrics["reward/error_rate"] == 0.5
    assert story.metrics["rollout/dropped"] == 1


def test_a_step_without_a_single_sample_is_handed_over_once(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    assert trains(story.give_back("w", A0, A1, retry=False)) == [(0, [])]
    story.beat("trainer")
    assert story.tick() == []
    assert story.trained(0) == [Load("w", 1)]


def test_leaving_is_no_failure(story: Story) -> None:
    story.begin(SmallPlan())
    for number in range(5):
        story.join(f"w{number}", "rollout")
        story.ledger.leave(f"w{number}", story.now)
    assert story.state(A0) == "waiting"


def test_what_a_worker_does_not_mention_goes_to_others(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    assert story.beat("w", [A0]) == []
    story.now += 4
    assert story.beat("w", [A0]) == []
    story.now += 2
    assert story.beat("w", [A0]) == [Assign("w", [A1], begun=(A1,))]


def test_a_sample_mentioned_again_is_not_missing(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.beat("w", [A0])
    story.now += 4
    story.beat("w", [A0, A1])
    story.now += 4
    assert story.beat("w", [A0]) == []


def test_a_worker_keeps_what_it_works_on_when_the_broker_starts_again(story: Story) -> None:
    story.join("w", "rollout", slots=2, holding=[A0, NEXT0])
    assert story.begin(SmallPlan()) == [Cancel("w", [NEXT0]), Assign("w", [A1])]
    assert story.state(A0) == "running"


def test_a_worker_with_other_weights_may_not_keep_its_work(story: Story) -> None:
    story.join("old", "rollout", version=0, holding=[NEXT0])
    story.join("new", "rollout", version=2, holding=[NEXT1])
    actions = story.begin(SmallPlan(), position=1)
    assert actions == [Cancel("old", [NEXT0]), Load("old", 1), Cancel("new", [NEXT1]), Load("new", 1)]


def test_a_worker_that_started_again_has_forgotten(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    assert story.join("w", "rollout", holding=[A1]) == [Assign("w", [A0], begun=(A0,))]
    assert story.ledger.samples.get(A0).losses == 1  # type: ignore[union-attr]
    assert story.ledger.samples.get(A1).losses == 0  # type: ignore[union-attr]


def test_the_journal_is_taken_up(story: Story) -> None:
    story.join("r", "reward")
    journal = [entry(A0, "generated"), entry(A1, "scored", 1.0), entry(B0, "dropped"), entry(B1, "trained", 1.0)]
    assert story.begin(SmallPlan(groups=2), journal=journal) == [ScoreSamples("r", [A0])]
    assert trains(story.scored("r", A0)) == [(0, [A0, A1, B1])]


def test_of_what_was_begun_in_an_earlier_life_the_store_has_a_part(story: Story) -> None:
    story.join("w", "rollout")
    assert story.begin(SmallPlan(), journal=[entry(A1, "begun")]) == [Assign("w", [A0, A1], begun=(A1,))]


def test_drafting_is_reported_by_the_worker_and_not_known_of_what_the_journal_has(story: Story) -> None:
    story.join("w", "rollout")
    story.join("r", "reward")
    story.begin(SmallPlan(), journal=[entry(A0, "scored", 1.0)])
    story.generated("w", A1, drafting=Drafting(10, 20, 15, 1.0, 2.5, 0.25))
    story.scored("r", A1)
    story.trained(0)
    assert (story.metrics["rollout/samples"], story.metrics["rollout/spec_forwards"]) == (2, 10)
    story.loaded("w", 1)
    story.generated("w", NEXT0, NEXT1)
    story.scored("r", NEXT0, NEXT1)
    story.trained(1)
    assert story.metrics["training/epoch"] == 1
    assert not any("spec_" in name for name in story.metrics)


def test_a_stale_journal_entry_is_dropped(pipelined: Story) -> None:
    step_3 = SampleId(3, "a", 0)
    journal = [entry(LATER0, "scored", 1.0, version=1), entry(step_3, "generated", version=1)]
    (mark,) = pipelined.begin(SmallPlan(steps=5), position=2, journal=journal)
    assert mark == Mark([step_3], "dropped", "stale: tokens of version 1, allowed are 2 and newer")
    assert pipelined.state(LATER0) == "scored"


def test_a_journal_entry_of_weights_that_do_not_exist_is_dropped(pipelined: Story) -> None:
    """The trainer would refuse the step. A thief with a rollout key can write one while the broker is away."""
    (mark,) = pipelined.begin(SmallPlan(), journal=[entry(A0, "generated", version=(1 << 31) - 1)])
    assert mark == Mark([A0], "dropped", "mixed: tokens of version 2147483647, allowed are 0 and older")


def run_step(story: Story, step: int) -> None:
    ids = SmallPlan().samples(step)
    story.generated("w", *ids)
    story.scored("r", *ids)


def test_a_trainer_that_comes_back_older_sets_the_run_back(story: Story) -> None:
    plan = SmallPlan(steps=5)
    story.begin(plan)
    story.join("w", "rollout")
    story.join("r", "reward")
    for step in range(2):
        run_step(story, step)
        story.trained(step)
        story.loaded("w", step + 1)
    story.join("trainer", "trainer", version=1)
    assert story.needs_start
    story.ledger.pause()
    assert story.drain() == []
    journal = [entry(NEXT0, "trained", 1.0), entry(NEXT1, "scored", 1.0)]
    story.ledger.start(plan, 1, journal, story.now)
    actions = story.drain()
    assert Cancel("w", [LATER0, LATER1]) in actions
    assert Load("w", 1) in actions
    assert trains(actions) == [(1, [NEXT0, NEXT1])]
    assert story.trained(1) == [Mark([NEXT0, NEXT1], "trained"), Load("w", 2)]
    assert story.loaded("w", 2) == [Assign("w", [LATER0, LATER1])]


def test_a_trainer_that_comes_back_at_the_same_place_gets_the_step_again(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    run_step(story, 0)
    assert trains(story.join("trainer", "trainer", version=0)) == [(0, [A0, A1])]
    assert not story.needs_start


def test_a_trainer_that_comes_back_with_the_step_done(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    run_step(story, 0)
    assert story.join("trainer", "trainer", version=1) == [Mark([A0, A1], "trained"), Load("w", 1)]
    assert not story.needs_start


def test_a_trainer_that_refuses_is_asked_again_at_the_tick(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.join("r", "reward")
    run_step(story, 0)
    story.ledger.refused(story.now)
    assert story.drain() == []
    assert trains(story.tick()) == [(0, [A0, A1])]


def test_a_load_that_failed_is_reported_again(story: Story) -> None:
    story.begin(SmallPlan())
    assert story.join("w", "rollout", version=-1) == [Load("w", 0)]
    story.ledger.undelivered("w")
    assert story.tick() == [Load("w", 0)]
    assert story.tick() == []


def test_an_impossible_move_tells_the_story(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    sample = story.ledger.samples.get(A0)
    assert sample is not None
    with pytest.raises(InvalidTransition, match=r"0/a/0 is running and cannot be scored.*opened.*assigned \(w\)"):
        story.ledger.samples.move(sample, "scored", 1.0)


def test_the_document_is_generated_from_the_table() -> None:
    document = Path(__file__).parents[3] / "docs" / "ledger.md"
    assert document.read_text() == page(), "make docs"


def test_the_shell_changes_the_ledger_by_its_own_methods_alone() -> None:
    package = Path(rhymed_broker.__file__).parent
    parts = "|".join(name for name, part in vars(Ledger()).items() if "broker.ledger" in type(part).__module__)
    called = re.compile(rf"ledger\.(?:{parts})\.(\w+)\(")
    files = [package / "service.py", *(package / "shell").glob("*.py")]
    found = {name for file in files for name in called.findall(file.read_text())}
    assert found <= {"evaluations", "get", "refused_s", "rests_s"}, "these only read"
