from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from rhymed.core.run import timeline
from rhymed.core.run.timeline import FILE, OLDER, Event, Span, Timeline, Writer, by_worker, read


def span(t: float, worker: str = "rollout-0") -> Span:
    return Span(t=t, worker=worker, role="rollout", host="h", s=1.0, version=3, inside={"verify": 0.7, "idle": 0.3})


def event(t: float, step: int = 0) -> Event:
    return Event(t=t, event="trained", worker="trainer", step=step)


def write(folder: Path, *rows: Span | Event) -> None:
    writer = Writer(folder)
    writer.write(rows)
    writer.close()


def test_a_line_is_what_the_documentation_says(tmp_path: Path) -> None:
    write(tmp_path, span(10.5), event(11.0, 3))
    first, second = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert first == {
        "t": 10.5, "worker": "rollout-0", "role": "rollout", "host": "h", "s": 1.0, "version": 3,
        "in": {"verify": 0.7, "idle": 0.3},
    }  # fmt: skip
    assert second == {"t": 11.0, "event": "trained", "worker": "trainer", "step": 3}
    assert msgspec.to_builtins(span(10.5)) == first


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read(tmp_path) == ([], [])
    assert read(tmp_path).last == 0
    write(tmp_path, span(10), event(11), span(12))
    assert read(tmp_path) == ([span(10), span(12)], [event(11)])
    assert read(tmp_path, since=10) == ([span(12)], [event(11)])
    assert read(tmp_path, since=read(tmp_path).last) == ([], [])


def test_of_a_long_timeline_the_end_alone_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, *(span(number) for number in range(1, 6)))
    line = len(msgspec.json.encode(span(1))) + 1
    assert [row.t for row in read(tmp_path, newest_bytes=2 * line).spans] == [5], "half a line does not count"
    assert [row.t for row in read(tmp_path, newest_bytes=2 * line + 1).spans] == [4, 5]
    (tmp_path / FILE).rename(tmp_path / OLDER)
    write(tmp_path, *(span(number) for number in range(6, 9)))
    assert [row.t for row in read(tmp_path, newest_bytes=2 * line + 1).spans] == [7, 8]
    assert [row.t for row in read(tmp_path, newest_bytes=5 * line + 1).spans] == [4, 5, 6, 7, 8]
    assert read(tmp_path, since=7, newest_bytes=100 * line) == ([span(8)], [])


def test_rubbish_is_left_out(tmp_path: Path) -> None:
    good = [msgspec.json.encode(row) for row in (span(1), event(2), span(4))]
    bad = [
        b"", b"{", b"null", b"[]", b"{}", b"\xff\xfe\x00", b'{"t": 3}', b'{"t": "x", "event": "trained"}',
        b'{"t": 1e999, "event": "trained"}', b'{"t": -5, "event": "trained"}', b'{"t": 3, "event": "exploded"}',
        b'{"t": 3, "worker": "a", "role": "rollout", "s": 1, "in": {"idle": -1}}',
        b'{"t": 3, "worker": "a", "role": "king", "s": 1, "in": {"idle": 1}}',
        b"[" * 60_000, b'{"t": 3, "x": ' + b"[" * 60_000,
        b'{"t": 3, "event": "begun", "text": "' + b"x" * timeline.LONGEST_LINE + b'"}',
    ]  # fmt: skip
    (tmp_path / FILE).write_bytes(b"\n".join([good[0], *bad, good[1], *bad, good[2], b""]))
    assert read(tmp_path) == ([span(1), span(4)], [event(2)])


def test_a_worker_may_be_called_as_a_field_is(tmp_path: Path) -> None:
    write(tmp_path, span(1, "event"), span(2, '"event"'))
    assert [one.worker for one in read(tmp_path).spans] == ["event", '"event"']


def test_a_line_that_is_still_written_is_reported_when_it_is_whole(tmp_path: Path) -> None:
    line = msgspec.json.encode(span(1)) + b"\n"
    with (tmp_path / FILE).open("ab", buffering=0) as file:
        for cut in range(0, len(line) - 1, 7):
            file.write(line[cut : min(cut + 7, len(line) - 1)])
            assert read(tmp_path) == ([], [])
        file.write(b"\n")
    assert read(tmp_path) == ([span(1)], [])


def test_a_writer_goes_on_behind_a_line_that_was_cut(tmp_path: Path) -> None:
    write(tmp_path, span(1))
    with (tmp_path / FILE).open("ab") as file:
        file.write(msgspec.json.encode(span(2))[:30])
    write(tmp_path, span(3))
    assert read(tmp_path).spans == [span(1), span(3)]


def test_two_files_at_most(tmp_path: Path) -> None:
    limit = 2000
    writer = Writer(tmp_path, limit)
    rows = [span(float(number)) for number in range(300)]
    for row in rows:
        writer.write([row])
        assert all((tmp_path / name).stat().st_size <= limit for name in (FILE, OLDER) if (tmp_path / name).exists())
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [OLDER, FILE]
    kept = read(tmp_path).spans
    assert kept == rows[-len(kept) :]
    assert len(kept) > 10


def test_only_who_came_to_the_end_has_finished() -> None:
    begun, end = Event(t=1, event="begun", step=0), Event(t=2, event="finished", text="all 3 steps are trained")
    failed = Event(t=2, event="finished", text=f"{timeline.FAILED}the store is full")
    again = Event(t=3, event="begun", step=3)
    assert Timeline([], [begun, end, event(3)]).finished
    for events in ([], [begun], [begun, failed], [begun, end, again]):
        assert not Timeline([], events).finished


@pytest.mark.parametrize("limit", [timeline.LIMIT_BYTES, 700_000])
def test_reading_since_a_time_finds_the_place_without_reading_the_file(tmp_path: Path, limit: int) -> None:
    writer = Writer(tmp_path, limit)
    rows = [span(1e9 + number) if number % 7 else event(1e9 + number, number) for number in range(10_000)]
    for start in range(0, len(rows), 100):
        writer.write(rows[start : start + 100])
    writer.close()
    with (tmp_path / FILE).open("ab") as file:
        file.write(b"\x00" * 5000 + b"\n")
    for since in (1e9 - 1, 1e9, 1e9 + 4321, 1e9 + 9_990.5, 1e9 + 9_999, 2e9):
        found = read(tmp_path, since)
        wanted = [row for row in rows if row.t > since]
        got = sorted([*found.spans, *found.events], key=lambda row: row.t)
        assert got == wanted[-len(got) :] if got else not wanted
        assert len(got) == len(wanted) or limit < timeline.LIMIT_BYTES
    with (tmp_path / FILE).open("rb") as file:
        size = (tmp_path / FILE).stat().st_size
        timeline._seek(file, 1e9 + 9_999, size)
        assert size - file.tell() < 2 * timeline.LONGEST_LINE


def test_workers_in_order() -> None:
    spans = [span(1, "rollout-10"), span(1, "rollout-9"), span(2, "rollout-10"), span(1, "a" * 3 + "9" * 5000)]
    trainer = Span(t=1, worker="a", role="trainer", s=1, inside={"wait": 1.0})
    names = by_worker([trainer, *spans])
    assert [name[:10] for name in names] == ["aaa9999999", "rollout-9", "rollout-10", "a"]
    assert names["rollout-10"] == [spans[0], spans[2]]


def test_a_folder_that_cannot_be_written_is_the_callers_affair(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        Writer(tmp_path / "file").write([span(1)])
    full = Path("/dev/full")
    if full.exists():
        (tmp_path / FILE).symlink_to(full)
        writer = Writer(tmp_path)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                writer.write([span(1)])


def test_rows_after_the_file_was_removed_are_in_a_new_one(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    writer.write([event(1.0)])
    shutil.rmtree(tmp_path / "run")
    writer.write([event(2.0)])
    writer.close()
    assert [row.t for row in read(tmp_path / "run").events] == [2.0]
