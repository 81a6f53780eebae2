"""When is a run as fast as ever again? Points in, seconds out."""

from __future__ import annotations

import pytest

from rhymed.core.messages import SampleId
from tests.stress.faults import KINDS, FaultSchedule
from tests.stress.loss import Loss
from tests.stress.recovery import WINDOW_S, Throughput
from tests.stress.run import Point, name_of
from tests.stress.soak import judge, slope


def steady(seconds: float, rate: float = 100.0, start: float = 0.0, tokens: int = 0) -> list[Point]:
    count = int(seconds * 10)
    return [Point(start + place / 10, 0, tokens + int(rate * place / 10), 1) for place in range(count + 1)]


def test_the_usual_speed_is_that_of_the_calm_run() -> None:
    throughput = Throughput(steady(20))
    assert throughput.usual == pytest.approx(100, rel=0.02)
    assert throughput.calm_s
    assert max(throughput.calm_s) < 0.2


def test_a_run_is_back_when_the_next_seconds_are_at_full_speed() -> None:
    throughput = Throughput(steady(20))
    still = [Point(10 + place / 10, 0, 1000, 1) for place in range(1, 30)]  # for three seconds after a kill at 10
    points = [*steady(10), *still, *steady(10, start=13, tokens=1000)]
    found = throughput.recovery_s(points, 10.0, float("inf"))
    assert found is not None
    assert 2.5 < found <= 3.1
    assert throughput.recovery_s(points, 10.0, 13.0 + WINDOW_S / 2) is None  # the next fault came before


def test_one_that_never_comes_back_is_not_called_recovered() -> None:
    throughput = Throughput(steady(20))
    assert (
        throughput.recovery_s([*steady(10), *steady(10, rate=50, start=10.1, tokens=1000)], 10.0, float("inf"))
        is None
    )


def test_a_run_that_trains_longer_than_it_writes_is_held_against_its_writing() -> None:
    points = steady(5)
    for start in (25.0, 50.0):
        points += steady(5, start=start, tokens=points[-1].tokens)
    points.append(Point(75.0, 0, points[-1].tokens, 1))
    throughput = Throughput(points)
    assert throughput.usual == pytest.approx(100, rel=0.1)
    assert max(throughput.calm_s) > 10


def test_without_a_calm_run_nothing_is_made_up() -> None:
    throughput = Throughput([])
    assert (throughput.usual, throughput.calm_s) == (0.0, [])


def test_blows_follow_from_the_seed_and_leave_no_kind_out() -> None:
    def kinds(seed: int) -> list[str]:
        faults = FaultSchedule(seed, 100, 1.0, KINDS)
        return [faults.kind() for _ in range(3 * len(KINDS))]

    assert kinds(1) == kinds(1) != kinds(2)
    assert sorted(kinds(1)) == sorted(3 * KINDS)


def test_what_the_store_has_is_not_lost() -> None:
    id = SampleId(0, "a" * 16, 0)
    assert [Loss(id, 100, kept).tokens for kept in (0, 60, 100, 120)] == [100, 40, 0, 0]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python -m rhymed worker --role rollout --name rollout-1 /x/config.json", "rollout-1"),
        ("/usr/bin/python -m rhymed store /x/config.json", "store"),
        ("rhymed reward-0", "reward-0"),
        ("/usr/bin/python -m rhymed_workers.reward.child", "scorer"),
        ("/usr/bin/python -c import multiprocessing", ""),
    ],
)
def test_a_process_is_known_by_its_command_line(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def rows(seconds: float, grow_mib: float = 0.0, files: float = 0.0) -> list[dict]:
    """`grow_mib`, `files`: growth per hour."""
    found = []
    for at in range(0, int(seconds), 5):
        part = {"pid": 1, "rss_mib": 100 + grow_mib * at / 3600, "files": 20 + files * at / 3600, "threads": 9}
        found.append({"at": float(at), "broker_ms": 1.0, "lag_ms": 0.5, "parts": {"broker": part}})
    return found


def test_what_grows_is_named_and_what_does_not_is_not() -> None:
    assert judge(rows(3600))["wrong"] == []
    assert judge(rows(3600, grow_mib=3))["wrong"] == []
    assert judge(rows(3600, grow_mib=50))["wrong"] == [
        "broker: rss_mib grows by 50.0 per hour, at most 8 are allowed"
    ]
    assert "broker: files grows by 30.0 per hour" in judge(rows(3600, files=30))["wrong"][0]


def test_a_short_soak_judges_no_growth_but_tells_it() -> None:
    found = judge(rows(60, grow_mib=50))
    assert found["wrong"] == []
    assert found["parts"]["broker"]["rss_mib_per_hour"] == pytest.approx(50)


def test_one_outlier_makes_no_slope() -> None:
    values = [(float(at), 5.0) for at in range(0, 3600, 5)]
    values[-3] = (values[-3][0], 900.0)
    assert slope(values, rows(3600)) == pytest.approx(0.0)
