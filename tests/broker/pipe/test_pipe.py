from __future__ import annotations

from rhymed.messages import SampleId
from rhymed_broker.pipe import Shelf, Snapshot, fair
from rhymed_broker.states import Sample
from tests.broker.ledger.stories import Chair


def shelf(step: int, groups: int, size: int, oldest_version: int = 0) -> Shelf:
    made = {
        f"p{group}": {Sample(SampleId(step, f"p{group}", index)): None for index in range(size)}
        for group in range(groups)
    }
    return Shelf(step, oldest_version, oldest_version, step, made, groups * size)


def placed(shelves: list[Shelf], chairs: list[Chair]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for placement in fair(Snapshot(shelves, chairs)):
        found.setdefault(placement.worker, []).extend(str(sample.id) for sample in placement.samples)
    return found


def test_groups_stay_together_where_that_is_even() -> None:
    found = placed([shelf(0, 2, 4)], [Chair("a"), Chair("b")])
    assert found == {"a": [f"0/p0/{i}" for i in range(4)], "b": [f"0/p1/{i}" for i in range(4)]}


def test_a_group_is_split_rather_than_leave_a_worker_idle() -> None:
    found = placed([shelf(0, 1, 8)], [Chair(name) for name in "abcd"])
    assert [len(samples) for samples in found.values()] == [2, 2, 2, 2]


def test_the_oldest_step_first_and_no_more_than_fits() -> None:
    found = placed([shelf(0, 1, 4), shelf(1, 1, 8)], [Chair("a", slots=6)])
    assert found == {"a": ["0/p0/0", "0/p0/1", "0/p0/2", "0/p0/3", "1/p0/0", "1/p0/1"]}


def test_the_least_loaded_worker_first() -> None:
    found = placed(
        [shelf(0, 1, 2)],
        [Chair("busy", held=dict.fromkeys(SampleId(9, "p", index) for index in range(4))), Chair("idle")],
    )
    assert list(found) == ["idle"]


def test_load_is_relative_to_slots() -> None:
    found = placed([shelf(0, 3, 10)], [Chair("big", slots=40), Chair("small", slots=20)])
    assert {name: len(samples) for name, samples in found.items()} == {"big": 20, "small": 10}


def test_old_weights_get_only_what_they_may() -> None:
    found = placed([shelf(4, 1, 2, 3), shelf(5, 1, 2, 4)], [Chair("old", version=3), Chair("older", version=2)])
    assert found == {"old": ["4/p0/0", "4/p0/1"]}


def test_reward_workers_have_no_version() -> None:
    assert placed([shelf(4, 1, 2, 3)], [Chair("r", version=-1, role="reward")]) == {"r": ["4/p0/0", "4/p0/1"]}
