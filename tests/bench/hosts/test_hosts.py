from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.bench.hosts import hosts
from rhymed.bench.hosts.network import missing_tools
from rhymed.bench.hosts.rounds import Cell, Rounds
from rhymed.bench.hosts.window import WindowedFile, WindowShelf
from rhymed.errors import ConfigError
from rhymed_workers.weights.slices import slicing

MiB = 1 << 20
CELL = Cell(2, 0.05, False, 0.0)

needs_hosts = pytest.mark.skipif(bool(missing_tools(True)), reason=f"no hosts here: {missing_tools(True)}")


def found(last_s: float) -> dict[str, Any]:
    one = {"publish_s": 0.1, "last_s": last_s, "first_s": last_s, "sent_by_trainer": 1.0, "cpu_s": 0.2}
    return {"window": 0, "whole": one, "changes": one}


def test_what_does_not_fit_repeats_or_is_left_out_with_a_sentence() -> None:
    assert hosts._window(Cell(1, 0.001, False, 0.0)) == (0, "")
    window, why = hosts._window(Cell(8, 1e5, False, 0.0))
    assert (window, "left out" in why) == (0, True)


def test_a_file_of_15_gb_to_8_hosts_fits_into_14_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    import psutil

    class Memory:
        available = 14_000_000_000

    monkeypatch.setattr(psutil, "virtual_memory", Memory)
    window, why = hosts._window(Cell(8, 15.0, False, 0.0))
    assert not why
    assert 200e6 < window < 14e9 / 19


def test_a_file_that_repeats_takes_little_memory(tmp_path: Path) -> None:
    shelf = WindowShelf(tmp_path, 50 * MiB + 6, 9 * MiB)
    published = shelf.publish(1)
    cut, file = slicing(published.size), published.file
    assert published.path.stat().st_size == published.size
    assert published.path.stat().st_blocks * 512 <= 10 * MiB
    assert bytes(file.slice(0)) == bytes(file.slice(9)) == bytes(file.slice(45))
    assert bytes(file.slice(0)) != bytes(file.slice(1))
    assert len(file.slice(cut.count - 1)) == 6
    copy = WindowedFile(tmp_path / "copy", cut, 9 * MiB, writable=True)
    for index in range(cut.count):
        copy.write(index, file.slice(index))
        assert bytes(copy.slice(index)) == bytes(file.slice(index))
    before = bytes(file.slice(3))
    after = bytes(shelf.publish(2).file.slice(3))
    assert 0 < sum(x != y for x, y in zip(before, after, strict=True)) < len(before) / 50


def test_rounds_that_a_file_has_are_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[Cell] = []

    def measure(cell: Cell, window: int) -> dict[str, Any]:
        measured.append(cell)
        if len(measured) == 6:
            raise KeyboardInterrupt
        return found(1.0 * cell.hosts)

    monkeypatch.setattr(hosts, "measure", measure)
    monkeypatch.setattr(hosts, "missing_tools", lambda rate: "")
    out = tmp_path / "new" / "rounds.jsonl"
    with pytest.raises(KeyboardInterrupt):
        hosts.run(True, rounds=2, out=out)
    assert len(out.read_text().splitlines()) == 5
    result = hosts.run(True, rounds=2, out=out)
    assert [cell.hosts for cell in measured] == [1, 2, 1, 2, 1, 2, 2, 1, 2]
    assert [row["whole"]["against_one"] for row in result["rows"]] == [1.0, 2.0, 1.0, 2.0]
    hosts.run(True, rounds=2, out=out)
    assert len(measured) == 9


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    (other := tmp_path / "notes.txt").write_text(json.dumps({"cells": 1}) + "\n")
    with pytest.raises(ConfigError, match="is no file of this benchmark"):
        Rounds(other)


@pytest.mark.thorough
@needs_hosts
def test_the_trainer_s_line_carries_one_copy() -> None:
    result = hosts.run(True, hosts=(3,), sizes=(0.05,), gbit=1.0)
    assert not result["left_out"]
    assert [(row["hosts"], row["keys"]) for row in result["rows"]] == [(1, False), (3, False), (1, True), (3, True)]
    for row in result["rows"]:
        assert 1.0 < row["whole"]["sent_by_trainer"] < 1.5, row
        assert row["changes"]["sent_by_trainer"] < 0.1, row
        assert row["whole"]["last_s"] > 0.05 / 0.125, "no faster than the line"
        assert row["whole"]["cpu_s_per_gb"] > 0.1, "somebody has copied it"


@pytest.mark.thorough
@needs_hosts
def test_files_that_repeat_arrive_at_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "_window", lambda cell: (8 * MiB, ""))
    for row in hosts.run(True, hosts=(2,), sizes=(0.1,))["rows"]:
        assert row["window"] == 8 * MiB
        assert 1.0 < row["whole"]["sent_by_trainer"] < 1.5, row
        assert row["changes"]["sent_by_trainer"] < 0.1, row
