"""Stories of samples that are written before their weights are there, and of samples that move."""

from __future__ import annotations

import pytest

from rhymed.core.messages import Heartbeat, Holding, LengthRow, SampleId, SampleInfo
from rhymed_broker.ledger.actions import Assign, Load, Mark, Release, ScoreSamples
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.scheduler import POLICIES
from rhymed_broker.states import Rules
from tests.broker.ledger.stories import SmallPlan, Story

A0, A1 = SampleId(0, "a", 0), SampleId(0, "a", 1)
NEXT0, NEXT1 = SampleId(1, "a", 0), SampleId(1, "a", 1)


@pytest.fixture
def early() -> Story:
    return Story(Ledger(Rules(run_ahead=1)))


def holding(story: Story, name: str, tokens: dict[SampleId, int], parked: tuple[SampleId, ...] = ()) -> list:
    held = [Holding(id=id, tokens=count, parked=id in parked) for id, count in tokens.items()]
    story.ledger.heartbeat(Heartbeat(worker=name, version=0, holding=held), story.now)
    return story.drain()


def test_idle_workers_write_the_next_step_ahead(early: Story) -> None:
    early.begin(SmallPlan(steps=3))
    assert early.join("w", "rollout", slots=4) == [Assign("w", [A0, A1, NEXT0, NEXT1])]


def test_no_more_than_one_step_ahead(early: Story) -> None:
    early.begin(SmallPlan(steps=3))
    early.join("w", "rollout", slots=8)
    assert early.ledger.samples.get(SampleId(2, "a", 0)) is None


def test_what_is_written_ahead_needs_no_slot(early: Story) -> None:
    early.begin(SmallPlan(steps=3))
    assert early.join("w", "rollout", slots=2) == [Assign("w", [A0, A1])]
    early.join("r", "reward")
    assert early.generated("w", A0) == [Assign("w", [NEXT0]), ScoreSamples("r", [A0])]
    early.ledger.parked("w", [NEXT0], early.now)
    assert early.drain() == [Assign("w", [NEXT1])]
    assert early.state(NEXT0) == "running", "it is not generated before it is verified"


def test_it_counts_when_newer_weights_have_verified_it(early: Story) -> None:
    early.begin(SmallPlan(steps=2))
    early.join("w", "rollout", slots=4)
    early.join("r", "reward")
    early.ledger.parked("w", [NEXT0, NEXT1], early.now)
    early.generated("w", A0, A1)
    early.scored("r", A0, A1)
    assert early.trained(0) == [Mark([A0, A1], "trained"), Load("w", 1)]
    early.loaded("w", 1)
    assert not early.ledger.workers.by_name["w"].parked
    early.generated("w", NEXT0, NEXT1, version=1)
    assert early.state(NEXT0) in ("generated", "scoring")


def test_the_contract_holds_for_it_too(early: Story) -> None:
    early.begin(SmallPlan(steps=2))
    early.join("w", "rollout", slots=4)
    (mark,) = early.generated("w", NEXT0, version=0)
    assert isinstance(mark, Mark)
    assert mark.reason.startswith("stale")


def test_a_worker_parks_no_more_than_it_has_slots(early: Story) -> None:
    early.begin(SmallPlan(steps=2, groups=4))
    early.join("w", "rollout", slots=2)
    for group in "abcd":
        early.generated("w", SampleId(0, group, 0), SampleId(0, group, 1))
    worker = early.ledger.workers.by_name["w"]
    for _ in range(4):
        early.ledger.parked("w", worker.held.keys() - worker.parked, early.now)
        early.drain()
    assert len(worker.parked) == len(worker.held) == 2
    assert early.ledger.samples.depths()["waiting"] == 6, "there was more to write"


def test_what_a_lost_worker_had_parked_goes_to_others(early: Story) -> None:
    early.begin(SmallPlan(steps=2))
    early.join("w", "rollout", slots=4)
    early.ledger.parked("w", [NEXT0], early.now)
    early.tick(21)
    assert {early.state(id) for id in (A0, A1, NEXT0, NEXT1)} == {"waiting"}
    both = [A0, A1, NEXT0, NEXT1]
    assert early.join("v", "rollout", slots=8) == [Assign("v", both, begun=tuple(both))]


def test_a_heartbeat_tells_what_is_parked(early: Story) -> None:
    early.begin(SmallPlan(steps=2))
    early.join("w", "rollout", slots=4)
    holding(early, "w", {A0: 3, A1: 3, NEXT0: 9, NEXT1: 2}, parked=(NEXT0,))
    worker = early.ledger.workers.by_name["w"]
    assert worker.parked == {NEXT0}
    assert worker.held[NEXT1].tokens == 2
    holding(early, "w", {A0: 3, A1: 3, NEXT0: 9, NEXT1: 2})
    assert not worker.parked


def lengths(**past: list[tuple[int, int]]) -> dict[str, LengthRow]:
    return {prompt: LengthRow(prompt=prompt, lengths=found) for prompt, found in past.items()}


def two_workers(story: Story) -> None:
    """`w` has a group of long samples, `v` nothing."""
    story.begin(SmallPlan(steps=1))
    story.join("w", "rollout")
    story.join("v", "rollout")
    for past in range(3):
        story.ledger.remember(lengths(a=[(past - 3, 4000)]))


def test_a_straggler_is_split_off_and_goes_on_elsewhere(story: Story) -> None:
    two_workers(story)
    holding(story, "w", {A0: 100, A1: 50})
    (release,) = story.tick()
    assert isinstance(release, Release)
    (moved,) = release.ids
    assert story.tick(0) == [], "it is asked for once"
    story.ledger.given_back("w", [moved], "moved", story.now, moved=True)
    assert story.drain() == [Assign("v", [moved], (moved,))]
    assert story.ledger.samples.get(moved).failures == 0, "moving is no failure"


def test_one_that_ends_before_it_moves_is_simply_there(story: Story) -> None:
    two_workers(story)
    holding(story, "w", {A0: 100, A1: 50})
    (release,) = story.tick()
    story.generated("w", *release.ids)
    assert story.state(release.ids[0]) == "generated"


def test_a_moved_sample_goes_where_it_was_to_go(story: Story) -> None:
    two_workers(story)
    holding(story, "w", {A0: 100, A1: 50})
    (release,) = story.tick()
    story.join("aa", "rollout", slots=4)
    story.ledger.given_back("w", release.ids, "moved", story.now, moved=True)
    (assign,) = story.drain()
    assert assign.worker == "v"


def test_a_worker_that_could_not_be_asked_keeps_it_and_is_asked_again(story: Story) -> None:
    two_workers(story)
    holding(story, "w", {A0: 100, A1: 50})
    (release,) = story.tick()
    story.ledger.stays(release.ids)
    assert story.tick(0) == [release]


def test_one_that_is_never_handed_over_is_asked_for_again(story: Story) -> None:
    two_workers(story)
    holding(story, "w", {A0: 100, A1: 50})
    (release,) = story.tick()
    for _ in range(31):
        story.now += 1
        for name in ("w", "v"):
            story.beat(name, holding=[A0, A1] if name == "w" else [])
    assert isinstance(story.tick(0)[0], Release)
    assert release.ids


def test_what_is_parked_is_not_moved(early: Story) -> None:
    early.begin(SmallPlan(steps=2))
    early.join("w", "rollout", slots=8)
    early.join("v", "rollout", slots=8)
    for past in range(3):
        early.ledger.remember(lengths(a=[(past - 3, 4000)]))
    early.generated("w", A0, A1)
    early.ledger.parked("w", [NEXT0, NEXT1], early.now)
    assert early.tick() == []


def test_reports_of_strangers_and_of_nothing_do_no_harm(story: Story) -> None:
    story.begin(SmallPlan())
    story.join("w", "rollout")
    story.ledger.parked("nobody", [A0], story.now)
    nothing = SampleInfo(id=A0, prompt_length=1, length=0, finish_reason="stop", versions=[])
    story.ledger.generated("w", [nothing], story.now)
    story.drain()
    assert story.state(A0) == "generated"


@pytest.mark.parametrize("policy", ["fifo", "rhyme"])
def test_what_is_given_back_has_a_place_where_prompts_are_dealt(policy: str) -> None:
    """Also when history came after it was begun, and other prompts wait."""
    story = Story(Ledger(Rules(max_staleness=1), POLICIES[policy]))
    story.begin(SmallPlan(steps=3, groups=2))
    story.join("w", "rollout", slots=3)
    story.ledger.remember(lengths(a=[(-1, 9)], b=[(-1, 90)]))
    held = list(story.ledger.workers.by_name["w"].held)
    story.give_back("w", held[0])
    story.tick()
    story.generated("w", *[id for id in held if id != held[0]])
    assert story.state(held[0]) == "running"


def test_history_is_asked_for_once_a_prompt(story: Story) -> None:
    story.begin(SmallPlan(steps=2))
    assert [(ask.step, ask.prompts) for ask in story.recalls] == [(0, ["a"])]
    story.join("w", "rollout")
    story.join("r", "reward")
    story.generated("w", A0, A1)
    story.scored("r", A0, A1)
    story.trained(0)
    assert len(story.recalls) == 1
