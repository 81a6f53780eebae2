from __future__ import annotations

from rhymed.core.messages import SampleId
from rhymed_broker.scheduler import Snapshot, StepQueue, fair
from rhymed_broker.states import Sample
from tests.broker.ledger.stories import FakeWorker


def queue(step: int, groups: int, size: int, oldest_version: int = 0) -> StepQueue:
    made = {
        f"p{group}": {Sample(SampleId(step, f"p{group}", index)): None for index in range(size)}
        for group in range(groups)
    }
    return StepQueue(step, oldest_version, oldest_version, step, made, groups * size)


def placed(queues: list[StepQueue], workers: list[FakeWorker]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for placement in fair(Snapshot(queues, workers)):
        found.setdefault(placement.worker, []).extend(str(sample.id) for sample in placement.samples)
    return found


def test_groups_stay_together_where_that_is_even() -> None:
    found = placed([queue(0, 2, 4)], [FakeWorker("a"), FakeWorker("b")])
    assert found == {"a": [f"0/p0/{i}" for i in range(4)], "b": [f"0/p1/{i}" for i in range(4)]}


def test_a_group_is_split_rather_than_leave_a_worker_idle() -> None:
    found = placed([queue(0, 1, 8)], [FakeWorker(name) for name in "abcd"])
    assert [len(samples) for samples in found.values()] == [2, 2, 2, 2]


def test_the_oldest_step_first_and_no_more_than_fits() -> None:
    found = placed([queue(0, 1, 4), queue(1, 1, 8)], [FakeWorker("a", slots=6)])
    assert found == {"a": ["0/p0/0", "0/p0/1", "0/p0/2", "0/p0/3", "1/p0/0", "1/p0/1"]}


def test_the_least_loaded_worker_first() -> None:
    found = placed(
        [queue(0, 1, 2)],
        [FakeWorker("busy", held=dict.fromkeys(SampleId(9, "p", index) for index in range(4))), FakeWorker("idle")],
    )
    assert list(found) == ["idle"]


def test_load_is_relative_to_slots() -> None:
    found = placed([queue(0, 3, 10)], [FakeWorker("big", slots=40), FakeWorker("small", slots=20)])
    assert {name: len(samples) for name, samples in found.items()} == {"big": 20, "small": 10}


def test_old_weights_get_only_what_they_may() -> None:
    found = placed(
        [queue(4, 1, 2, 3), queue(5, 1, 2, 4)], [FakeWorker("old", version=3), FakeWorker("older", version=2)]
    )
    assert found == {"old": ["4/p0/0", "4/p0/1"]}


def test_reward_workers_have_no_version() -> None:
    assert placed([queue(4, 1, 2, 3)], [FakeWorker("r", version=-1, role="reward")]) == {"r": ["4/p0/0", "4/p0/1"]}
