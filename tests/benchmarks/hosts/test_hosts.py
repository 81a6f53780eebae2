from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hosts import hosts
from benchmarks.hosts.fit import Fit, described, fit
from benchmarks.hosts.network import missing_tools
from benchmarks.hosts.rounds import Cell, Rounds
from benchmarks.hosts.window import WindowedFile, WindowShelf
from rhymed.core.errors import ConfigError
from rhymed.core.run.provenance import machine, versions
from rhymed_workers.weights.slices import slicing

MiB = 1 << 20
CELL = Cell(2, 0.05, False, 0.0)

needs_hosts = pytest.mark.skipif(bool(missing_tools(True)), reason=f"no hosts here: {missing_tools(True)}")


def found(last_s: float) -> dict[str, Any]:
    one = {"publish_s": 0.1, "last_s": last_s, "first_s": last_s, "sent_by_trainer": 1.0, "cpu_s": 0.2}
    return {"window": 0, **one}


def test_what_does_not_fit_repeats_or_is_left_out_with_a_sentence() -> None:
    assert fit(Cell(1, 0.001, False, 0.0), 4e9) == (0, "")
    window, why = fit(Cell(8, 15.0, False, 0.0), 3e9)
    assert (window, "left out" in why) == (0, True)


def test_a_file_of_15_gb_to_8_hosts_fits_into_14_gb() -> None:
    window, why = fit(Cell(8, 15.0, False, 0.0), 14e9)
    assert not why
    assert 200e6 < window < 14e9 / 10
    assert "repeats its first" in described(Cell(8, 15.0, False, 0.0), Fit(window))


def test_every_host_and_the_trainer_have_a_copy() -> None:
    copies = [fit(Cell(count, 3.0, False, 0.0), 23e9).window for count in (1, 2, 4, 8)]
    assert [not window for window in copies] == [True, True, True, False]


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
    assert len(out.read_text().splitlines()) == 1 + 5  # the first has the machine
    result = hosts.run(True, rounds=2, out=out)
    assert [cell.hosts for cell in measured] == [1, 2, 1, 2, 1, 2, 2, 1, 2]
    assert [row["against_one"] for row in result["rows"]] == [1.0, 2.0, 1.0, 2.0]
    hosts.run(True, rounds=2, out=out)
    assert len(measured) == 9


def test_another_file_is_not_written_over(tmp_path: Path) -> None:
    (other := tmp_path / "notes.txt").write_text(json.dumps({"cells": 1}) + "\n")
    with pytest.raises(ConfigError, match="is no file of this benchmark"):
        Rounds(other)


def results(file: Path, window: int = 0, **facts: str) -> Path:
    one = found(1.0) | {"window": window}
    lines = [{"machine": machine() | facts, "versions": versions()}]
    lines += [{"cell": Cell(count, 0.05, keys, 0.0), "round": one} for count in (1, 2) for keys in (False, True)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_rounds_of_another_machine_or_of_other_files_are_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts, "missing_tools", lambda rate: "")
    monkeypatch.setattr(hosts, "measure", lambda cell, window: pytest.fail("nothing may be measured"))
    file = tmp_path / "rounds.jsonl"
    with pytest.raises(ConfigError, match=r"another machine \(processor Z80, here .*choose another name"):
        hosts.run(True, out=results(file, processor="Z80"))
    hosts.run(True, out=results(file, system="Linux 2.4"))  # a newer kernel
    with pytest.raises(ConfigError, match=r"repeat their first 50000000 MB, needs .*choose another file"):
        hosts.run(True, rounds=2, out=results(file, window=50 * 10**12))


def test_a_dry_call_measures_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(hosts, "missing_tools", lambda rate: "")
    monkeypatch.setattr(hosts, "_free", lambda: 22e9)
    result = hosts.run(False, dry=True)
    assert not result["left_out"]
    said = capsys.readouterr().out.splitlines()
    assert [
        line.startswith(f"3 GB to {count} hosts: a copy") for line, count in zip(said[5:8], (2, 4, 8), strict=True)
    ] == [
        True,
        True,
        False,
    ]
    assert said[-1].startswith("about ")


@pytest.mark.thorough
@needs_hosts
def test_the_trainer_s_line_carries_one_copy() -> None:
    result = hosts.run(True, hosts=(3,), sizes=(0.05,), gbit=1.0)
    assert not result["left_out"]
    assert [(row["hosts"], row["keys"]) for row in result["rows"]] == [(1, False), (3, False), (1, True), (3, True)]
    for row in result["rows"]:
        assert 1.0 < row["sent_by_trainer"] < 1.5, row
        assert row["last_s"] > 0.05 / 0.125, "no faster than the line"
        assert row["cpu_s_per_gb"] > 0.1, "somebody has copied it"


@pytest.mark.thorough
@needs_hosts
def test_files_that_repeat_arrive_at_all_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "fit", lambda cell, free: Fit(8 * MiB))
    for row in hosts.run(True, hosts=(2,), sizes=(0.1,))["rows"]:
        assert row["window"] == 8 * MiB
        assert 1.0 < row["sent_by_trainer"] < 1.5, row
