"""The newest lines of logs: over rotated files, and of the chosen processes only."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rhymed.records.logs import open_log
from rhymed.show.dashboard.data import source


def test_lines_of_rotated_logs_are_shown_and_other_processes_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    parts = {"broker.log.2": range(3), "broker.log.1": range(3, 6), "broker.log": range(6, 7), "trainer.log": [9]}
    for name, numbers in parts.items():
        process = name.split(".")[0]
        rows = [{"t": f"2026-01-31T14:05:0{n}.000Z", "process": process, "text": f"line {n}"} for n in numbers]
        (logs / name).write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    read: list[str] = []
    monkeypatch.setattr(source, "open_log", lambda path: read.append(path.name) or open_log(path))
    answer = source.tail(tmp_path, process="broker")
    assert [row["text"] for row in answer["lines"]] == [f"line {n}" for n in range(7)]
    assert sorted(read) == ["broker.log", "broker.log.1", "broker.log.2"]
    assert answer["processes"] == ["broker", "trainer"]
    read.clear()
    size = (logs / "broker.log").stat().st_size
    monkeypatch.setattr(source, "TAIL_BYTES", size + size // 2 + size)
    answer = source.tail(tmp_path, process="bro*")
    assert ([row["text"] for row in answer["lines"]], len(read)) == (["line 5", "line 6"], 2)
