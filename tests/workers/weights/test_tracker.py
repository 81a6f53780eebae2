"""Stories of transfers in virtual time."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

import pytest

from rhymed_workers.weights.slices import IN_FLIGHT
from rhymed_workers.weights.tracker import TRAINER, Tracker


@dataclass
class World:
    """Workers that fetch all slices; a source sends one slice after the other, each in one second."""

    tracker: Tracker
    slices: int
    relays: dict[str, str]  # worker -> relay
    dead: set[str] = field(default_factory=set)  # workers
    sent: Counter[str] = field(default_factory=Counter)  # by source
    finished: dict[str, float] = field(default_factory=dict)

    def run(self, until_s: float = 1e5, dies: tuple[str, float] | None = None) -> None:
        have: dict[str, set[int]] = {worker: set() for worker in self.relays}
        flying: Counter[str] = Counter()
        free_at: Counter[str] = Counter()
        events: list[tuple[float, int, str, int, str]] = []
        number = 0

        def ask(worker: str, now: float) -> None:
            nonlocal number
            for grant in self.tracker.next(worker, IN_FLIGHT - flying[worker], now):
                assert grant.index not in have[worker]
                flying[worker] += 1
                number += 1
                if self._is_dead(grant.source):
                    heapq.heappush(events, (now + 3.0, number, worker, grant.index, grant.source))
                    continue
                self.sent[grant.source] += 1
                free_at[grant.source] = max(free_at[grant.source], now) + 1.0
                heapq.heappush(events, (free_at[grant.source], number, worker, grant.index, grant.source))

        for worker, relay in self.relays.items():
            self.tracker.begin(worker, relay)
            ask(worker, 0.0)
        now = 0.0
        while len(self.finished) < len(self.relays) - len(self.dead):
            assert now < until_s, f"nothing finishes: {have} {self.dead}"
            if dies and now >= dies[1]:
                self.dead.add(dies[0])
                dies = None
            if not events or events[0][0] > now + 0.5:
                now += 0.5  # those without a source ask again
            else:
                now, _, worker, index, source = heapq.heappop(events)
                flying[worker] -= 1
                if worker in self.dead:
                    continue
                if self._is_dead(source):
                    self.tracker.failed(worker, index, source, now)
                else:
                    have[worker].add(index)
                    self.tracker.stored(worker, [index], now)
                    if len(have[worker]) == self.slices:
                        self.finished[worker] = now
            for worker in self.relays:
                if worker not in self.dead and worker not in self.finished:
                    ask(worker, now)

    def _is_dead(self, source: str) -> bool:
        return any(self.relays[worker] == source for worker in self.dead)


def hosts(count: int) -> dict[str, str]:
    return {f"w{number}": f"tcp://10.0.0.{number}:1" for number in range(count)}


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_trainer_sends_every_slice_once_however_many_hosts_there_are(count: int) -> None:
    world = World(Tracker(64), 64, hosts(count))
    world.run()
    assert world.sent[TRAINER] == 64
    assert sum(world.sent.values()) == 64 * count
    assert max(world.finished.values()) <= 64 + 4 * count.bit_length(), "one copy, and little more"


def test_without_relays_the_trainer_sends_all() -> None:
    world = World(Tracker(20), 20, {"a": "", "b": "", "c": ""})
    world.run()
    assert world.sent == {TRAINER: 60}


def test_workers_without_a_relay_get_slices_from_those_with_one() -> None:
    world = World(Tracker(40), 40, {**hosts(2), "mute": ""})
    world.run()
    assert world.sent[TRAINER] < 80


@pytest.mark.parametrize("when", [0.0, 5.0, 20.0, 60.0])
def test_the_death_of_a_relay_costs_little(when: float) -> None:
    world = World(Tracker(64), 64, hosts(4))
    world.run(dies=("w1", when))
    assert set(world.finished) == {"w0", "w2", "w3"}
    assert world.sent[TRAINER] <= 64 + 3 * IN_FLIGHT
    assert max(world.finished.values()) < 120


def test_a_relay_that_fails_for_two_workers_is_used_by_none_for_some_minutes() -> None:
    useless: dict[str, float] = {}
    tracker = Tracker(2, useless)
    for worker, relay in hosts(4).items():
        tracker.begin(worker, relay)
    tracker.stored("w0", [0, 1], 0.0)
    relay = hosts(1)["w0"]
    for worker in ("w1", "w2"):
        (grant,) = tracker.next(worker, 1, 1.0)
        assert grant.source == relay
        tracker.failed(worker, grant.index, relay, 1.0)
        assert not any(other.source == relay for other in tracker.next(worker, 2, 1.0)), "not for whom it failed"
    assert set(useless) == {relay}
    assert not any(other.source == relay for other in tracker.next("w3", 1, 500.0))
    tracker.begin("w4", "")
    assert [other.source for other in tracker.next("w4", 1, 700.0)] == [relay], "it may work again"


def test_only_relays_of_the_run_can_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    useless: dict[str, float] = {}
    tracker = Tracker(2, useless)
    monkeypatch.setattr("rhymed_workers.weights.tracker.MAX_PEERS", 3)
    for number in range(5):
        tracker.begin(f"w{number}", "")
        tracker.failed(f"w{number}", 0, "tcp://bystander:1", 1.0)
    assert not useless
    assert [tracker.knows(f"w{number}") for number in range(5)] == [False, False, True, True, True]


def test_a_worker_that_begins_again_has_nothing() -> None:
    tracker = Tracker(4)
    tracker.begin("a", "tcp://a:1")
    tracker.begin("b", "tcp://b:1")
    assert len(tracker.next("a", 4, 0.0)) == 4
    assert not tracker.next("b", 4, 0.0), "all are on their way to a"
    tracker.stored("a", [0], 0.5)
    assert [grant.source for grant in tracker.next("b", 4, 0.5)] == ["tcp://a:1"]
    tracker.begin("a", "tcp://a:2")
    assert {grant.index for grant in tracker.next("b", 4, 1.0)} == {1, 2, 3}, "what was on its way to a is not"


def test_a_slice_that_does_not_arrive_is_sent_to_another_worker() -> None:
    tracker = Tracker(1)
    tracker.begin("a", "tcp://a:1")
    tracker.begin("b", "tcp://b:1")
    assert tracker.next("a", 1, 0.0)
    assert not tracker.next("b", 1, 2.0)
    assert [grant.source for grant in tracker.next("b", 1, 100.0)] == [TRAINER]
