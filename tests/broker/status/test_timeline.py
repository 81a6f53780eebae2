from __future__ import annotations

import math
import tracemalloc
from typing import Any

import msgspec
import pytest

from rhymed.core.messages import GpuUsage, Heartbeat, Join, Usage
from rhymed.core.run.timeline import Event, Span
from rhymed.core.service.stopwatch import PREFIX
from rhymed_broker.status import timeline
from rhymed_broker.status.timeline import TimelineRecorder

WALL = 1.7e9


def join(name: str = "w", role: str = "rollout", pid: int = 1) -> Join:
    return Join(role=role, worker=name, host="h", pid=pid)  # type: ignore[arg-type]


def beat(name: str = "w", version: int = 3, rate: float = 10.0, **seconds: float) -> Heartbeat:
    stats = {f"{PREFIX}{activity}": reported for activity, reported in seconds.items()}
    return Heartbeat(worker=name, version=version, stats={**stats, "rollout/tokens_per_s": rate})


def spans(recorder: TimelineRecorder) -> list[Span]:
    return [row for row in recorder.drain() if isinstance(row, Span)]


def test_rows_are_what_counters_grew_by() -> None:
    recorder = TimelineRecorder(WALL, 100.0)
    recorder.joined(join(), 101.0)
    recorder.heard(beat(decode=0.2, idle=0.8), 101.0)
    recorder.heard(beat(decode=1.0, idle=1.0, rate=20.0), 102.0)
    joined, row = recorder.drain()
    assert joined == Event(t=WALL + 1, event="joined", worker="w")
    assert row == Span(
        t=WALL + 2, worker="w", role="rollout", host="h", s=2.0, version=3, tokens_per_s=20.0,
        inside={"decode": 1.0, "idle": 1.0},
    )  # fmt: skip
    recorder.heard(beat(decode=1.5, idle=1.0), 102.5)
    assert recorder.drain() == [], "too short"
    recorder.heard(beat(decode=2.0, idle=1.0, verify=0.5), 103.5)
    (row,) = spans(recorder)
    assert (row.s, row.inside) == (1.5, {"verify": 0.5, "decode": 1.0})


def test_a_lost_heartbeat_leaves_no_gap_and_a_strangers_none_at_all() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    recorder.heard(beat("stranger", idle=1.0), 1.0)
    assert recorder.drain() == []
    recorder.joined(join(), 0.0)
    for now in (1.0, 2.0, 7.0):
        recorder.heard(beat(idle=now), now)
    assert [row.s for row in spans(recorder)] == [1.0, 1.0, 5.0]


def test_a_new_process_counts_from_nothing() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    recorder.joined(join(), 1.0)
    recorder.heard(beat(idle=10.0, decode=1.0), 11.0)
    recorder.heard(beat(idle=10.5, decode=1.0), 11.5)
    recorder.joined(join(pid=2), 30.0)
    recorder.heard(beat(idle=12.0, decode=2.0), 40.0)  # more than the one before, in everything
    rows = recorder.drain()
    assert [row.s for row in rows if isinstance(row, Span)] == [11.0, 0.5, 14.0]
    assert [row.event for row in rows if isinstance(row, Event)] == ["joined", "lost", "joined"]
    recorder.heard(beat(idle=1.0, decode=0.5), 50.0)  # again a new one, that nobody saw join
    assert [row.s for row in spans(recorder)] == [1.5]


def test_a_worker_that_comes_back_goes_on_where_it_was() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    recorder.joined(join(), 0.0)
    recorder.heard(beat(idle=5.0), 5.0)
    recorder.gone("left", "w", 6.0)
    recorder.joined(join(), 8.0)
    recorder.joined(join(), 8.0)
    recorder.heard(beat(idle=9.0), 9.0)
    rows = recorder.drain()
    assert [row.s for row in rows if isinstance(row, Span)] == [5.0, 4.0]
    assert [row.event for row in rows if isinstance(row, Event)] == ["joined", "left", "joined"]


def test_workers_that_are_older_than_the_broker_count_from_where_they_are() -> None:
    recorder = TimelineRecorder(WALL, 1000.0)
    recorder.joined(join(), 1001.0)
    recorder.heard(beat(idle=5000.0, decode=100.0), 1002.0)
    assert spans(recorder) == []
    recorder.heard(beat(idle=5001.0, decode=100.5), 1003.5)
    assert [row.inside for row in spans(recorder)] == [{"decode": 0.5, "idle": 1.0}]


def test_what_is_left_when_somebody_goes_or_the_run_ends_is_a_row() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    for name in ("w", "v"):
        recorder.joined(join(name), 0.0)
        recorder.heard(beat(name, idle=0.4), 0.4)
    recorder.gone("left", "w", 0.5, "had enough")
    recorder.finished(0.6, "x" * 1000)
    rows = recorder.drain()[2:]
    assert [type(row) for row in rows] == [Span, Event, Span, Event]
    assert rows[1] == Event(t=WALL + 0.5 + 0.001, event="left", worker="w", text="had enough")
    assert (rows[2].worker, rows[2].s) == ("v", 0.4)  # type: ignore[union-attr]
    assert rows[3].text == "x" * timeline.LONGEST_TEXT  # type: ignore[union-attr]


def test_nonsense_is_not_written_down() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    recorder.joined(join(), 0.0)
    recorder.heard(beat(idle=math.nan, decode=math.inf, verify=-1.0, cooking=3.0, rate=math.nan), 1.0)
    recorder.heard(beat(idle=1e300), 2.0)
    recorder.heard(beat(idle=1e300, decode=0.5, rate=-1.0), 3.0)
    (row,) = spans(recorder)
    assert (row.inside, row.tokens_per_s) == ({"decode": 0.5}, None)


def test_times_never_repeat_and_never_go_back() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    for now in (1.0, 1.0, 1.0, 0.5, 2.0):
        recorder.event("trained", now, step=1)
    times = [row.t for row in recorder.drain()]
    assert times == sorted(set(times))
    assert times[-1] == WALL + 2


def test_one_that_rests_is_reported() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    recorder.joined(join(), 1.0, 4.0)
    assert [row.event for row in recorder.drain() if isinstance(row, Event)] == ["joined", "rests"]


@pytest.mark.parametrize(("workers", "hours"), [(1, 2), (8, 0.5), (500, 0.02)])
def test_few_rows_however_many_workers_and_however_long(workers: int, hours: float, monkeypatch: Any) -> None:
    monkeypatch.setattr(timeline, "ROWS", 3000)
    recorder, now, written = TimelineRecorder(WALL, 0.0), 0.0, 0
    for number in range(workers):
        recorder.joined(join(f"w{number}"), 0.0)
    whole = dict.fromkeys(range(workers), 0.0)
    while now < hours * 3600:
        now += 1.0
        for number in range(workers):
            recorder.heard(beat(f"w{number}", idle=now), now)
        rows = spans(recorder)
        written += len(rows)
        for row in rows:
            whole[int(row.worker[1:])] += row.s
    assert written <= timeline.ROWS_A_SECOND * now + workers
    assert written <= 3000 * (1 + max(0.0, math.log(now * workers / 3000))) * 1.2 + workers
    assert all(
        now - spent <= max(2 * workers / timeline.ROWS_A_SECOND, 2 * now * workers / 3000, 2)
        for spent in whole.values()
    )


def test_rows_that_nobody_takes_are_let_go() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    for number in range(timeline.UNREAD + 10):
        recorder.event("trained", float(number), step=number)
    rows = recorder.drain()
    assert len(rows) == timeline.UNREAD
    assert rows[-1].step == timeline.UNREAD + 9  # type: ignore[union-attr]


def test_a_row_has_what_its_last_heartbeat_used() -> None:
    recorder, gib = TimelineRecorder(WALL, 0.0), 1 << 30
    recorder.joined(join(), 0.0)
    gpus = [
        GpuUsage(index=0, utilization=0.5, memory=gib, celsius=50.0),
        GpuUsage(index=1, utilization=1.0, memory=3 * gib, celsius=70.0),
    ]
    for now, cpu, found in ((0.3, 1.0, []), (0.6, 3.0, [GpuUsage(index=0)]), (1.0, 2.0, gpus)):
        usage = Usage(cpu=cpu, memory=2 * gib, gpus=found)
        recorder.heard(msgspec.structs.replace(beat(idle=now), usage=usage), now)
    recorder.heard(beat(idle=2.0), 2.0)
    with_usage, without = spans(recorder)
    assert (with_usage.cpu, with_usage.ram_gib) == (2.0, 2.0)
    assert (with_usage.gpu, with_usage.gpu_gib, with_usage.gpu_celsius) == (0.75, 4.0, 70.0)
    assert (without.cpu, without.ram_gib, without.gpu, without.gpu_gib) == (None, None, None, None)


def test_a_row_that_lasts_long_takes_no_more_memory() -> None:
    recorder, late = TimelineRecorder(WALL, 0.0), 1e9  # a row lasts for hours by then
    recorder.joined(join(), late)
    tracemalloc.start()
    for second in range(2000):
        usage = Usage(cpu=float(second), memory=second, gpus=[GpuUsage(index=0, memory=second)])
        recorder.heard(msgspec.structs.replace(beat(idle=1.0), usage=usage), late + second)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not recorder.drain()[1:]
    assert held < 50_000


def test_numbers_that_are_not_finite_do_not_end_the_timeline() -> None:
    recorder = TimelineRecorder(WALL, 0.0)
    recorder.joined(join(), 0.0)
    usage = Usage(cpu=math.nan, memory=1, gpus=[GpuUsage(index=0, utilization=math.inf)])
    recorder.heard(msgspec.structs.replace(beat(idle=1.0), usage=usage), 1.0)
    (row,) = spans(recorder)
    assert b"Infinity" not in msgspec.json.encode(row)
