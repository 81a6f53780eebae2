from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from rhymed.core.run.timeline import RECENT, Event, Kind, Progress, Span, Timeline, Times, Writer


def spans(since: float, until: float) -> list[Span]:
    """One per second."""
    return [
        Span(t=float(t), worker="rollout-0", role="rollout", s=1.0, inside={"idle": 1.0})
        for t in range(int(since), int(until) + 1)
    ]


def event(t: float, kind: Kind, step: int | None = None) -> Event:
    return Event(t=t, event=kind, step=step)


def progress(rows: Iterable[Span], events: Iterable[Event]) -> Progress:
    made = Progress()
    made.add(Timeline(list(rows), list(events)))
    return made


def trained(*at: float, first: int = 0) -> list[Event]:
    return [event(t, "trained", first + number) for number, t in enumerate(at)]


def test_no_forecast_before_the_second_step() -> None:
    begun = [event(1000, "begun", 0)]
    assert progress([], []).times(10, 1000.0) == (0.0, None)
    assert progress([], begun).times(10, 1030.0) == (30.0, None)
    assert progress([], begun + trained(1050)).times(10, 1051.0) == (51.0, None)  # the first step warms up
    assert progress([], begun + trained(1050, 1060)).times(10, 1060.0) == (60.0, 80.0)


def test_the_forecast_counts_down_and_waits_for_a_step_that_takes_longer() -> None:
    made = progress(spans(1000, 1100), [event(1000, "begun", 0), *trained(1050, 1060)])
    assert made.times(4, 1064.0).eta_s == 16.0
    assert made.times(4, 1070.0).eta_s == made.times(4, 1100.0).eta_s == 10.0
    assert made.times(3, 1069.0).eta_s == 1.0
    assert made.times(3, 1071.0).eta_s is None  # the last step is overdue: nothing is known of its end
    made.add(Timeline([], trained(1120, first=2)))
    assert made.times(4, 1120.0).eta_s == 35.0  # the mean of 10 and 60


def test_evaluations_are_part_of_it_and_only_recent_steps_count() -> None:
    slow = [1000.0 + 100 * number for number in range(5)]
    quick = [1400.0 + 10 * number + 30 * (number // 10) for number in range(1, RECENT + 1)]  # two evaluations of 30 s
    made = progress([], trained(*slow, *quick))
    assert made.times(35, quick[-1]).eta_s == pytest.approx(10 * (10 * RECENT + 60) / RECENT)


def test_nothing_is_left_at_the_end_nor_without_steps() -> None:
    made = progress([], trained(1000, 1010, 1020))
    assert made.times(3, 1020.0).eta_s is None
    assert made.times(None, 1020.0).eta_s is None  # the number of steps is unknown
    assert made.times(0, 1020.0).eta_s is None  # evaluates only
    assert made.times(5).eta_s is None  # not alive
    made.add(Timeline([], [event(1021, "finished")]))
    assert made.times(5, 1022.0).eta_s is None
    made.add(Timeline([], [event(1030, "begun", 3)]))  # resumed with more steps
    assert made.times(5, 1030.0).eta_s == 20.0


def test_a_resumed_run_is_not_measured_across_its_pause() -> None:
    first = [event(1000, "begun", 0), *trained(1010, 1020, 1030)]
    second = [event(9000, "begun", 2), *trained(9050, first=2)]
    made = progress([*spans(1000, 1031), *spans(8990, 9050)], first + second)
    assert made.times(6, 9050.0) == Times(31.0 + 60.0, 30.0)


def test_elapsed_stands_still_while_the_broker_of_a_finished_run_still_answers() -> None:
    made = progress(spans(1000, 1100), [event(1000, "begun", 0), event(1100, "finished")])
    assert [made.times(5, now).elapsed_s for now in (1100.0, 1150.0, 1300.0)] == [100.0] * 3


def test_elapsed_ends_with_the_records_of_a_run_that_is_gone() -> None:
    made = progress(spans(1000, 1100), [])
    assert made.times(5).elapsed_s == 100.0
    assert made.times(5, 1105.0).elapsed_s == 105.0
    assert made.times(5, 99_000.0).elapsed_s == 100.0


def test_a_file_is_read_in_parts(tmp_path: Path) -> None:
    made, writer = Progress(), Writer(tmp_path)
    made.read(tmp_path)
    assert made.times(9) == (0.0, None)
    writer.write([event(1000, "begun", 0), *spans(1000, 1010), *trained(1010)])
    made.read(tmp_path)
    writer.write([*spans(1011, 1030), *trained(1030, first=1)])
    for _ in range(3):
        made.read(tmp_path)
    assert made.times(4, 1030.0) == (30.0, 40.0)
    writer.close()


def test_what_people_read() -> None:
    assert Times(7.2, None).left == ""
    assert Times(65, 1.0).left == "about 5 s left"
    assert Times(65, 88.0).left == "about 90 s left"
    assert Times(65, 12 * 60 + 10).left == "about 12 min left"


def test_the_time_that_is_left_needs_the_end_of_the_timeline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    writer.write([*spans(1, 5000), *trained(5010, 5020, 5030)])
    writer.close()
    whole, end = Progress(), Progress()
    monkeypatch.setattr("rhymed.core.run.timeline.END_BYTES", 1000)
    whole.read(tmp_path)
    end.read_end(tmp_path)
    assert end.times(10, 5031.0).eta_s == whole.times(10, 5031.0).eta_s == 69.0
    assert end.times(10).elapsed_s < 100 < whole.times(10).elapsed_s
