"""`rhymed runs`: every state is read from what a run leaves, and nothing else is taken for a run."""

from __future__ import annotations

import fcntl
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rhymed.core.run import folder as folders
from rhymed.core.run import state
from rhymed.core.run.layout import paths_of
from rhymed.core.run.timeline import FAILED
from rhymed.records.several import RunRow, find, held_out, listing
from rhymed.start.cli import main
from rhymed.start.cli.runs import table
from tests.records.several.folders import NOW, end, make


def row(run: Path) -> RunRow:
    (found,) = (one for one in listing(run.parent).runs if one.folder == str(run))
    return found


def test_a_run_s_own_folders_are_no_runs(tmp_path: Path) -> None:
    """`inputs/` has the configuration that the files of a program were written for."""
    run = make(tmp_path, "one", (0.1, 0.2))
    (run / "inputs").mkdir()
    (run / "inputs" / "config.json").write_bytes((run / "config.json").read_bytes())
    assert [one.name for one in find(tmp_path)[0]] == ["one"]


def test_a_state_is_what_locks_and_records_say(tmp_path: Path) -> None:
    run = make(tmp_path, "one", (0.1, 0.2))
    assert (row(run).state, row(run).why) == ("stopped", "")  # it was killed
    state.note_end(run, 130, "", 4)
    assert (row(run).state, row(run).why) == ("stopped", "")  # it was interrupted
    state.note_end(run, 2, "trainer ended once and for all: out of memory\nsee it", 4)
    assert (row(run).state, row(run).why[:12]) == ("stopped", "trainer ende")
    with folders.hold(paths_of(run)):
        assert (row(run).state, row(run).why) == ("running", "")
    (run / "store").mkdir()
    with (run / "store" / "writer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert row(run).state == "running", "processes that were started by hand"
    state.note_end(run, 0, "", 4)
    end(run, "all steps are trained", NOW + 21)
    assert row(run).state == "finished"
    with folders.hold(paths_of(run)):
        assert row(run).state == "running", "its last copies are being written"


def test_without_a_record_the_timeline_decides(tmp_path: Path) -> None:
    run = make(tmp_path, "one", (0.1,))
    end(run, "all steps are trained", NOW + 11)
    assert row(run).state == "finished"
    failed = make(tmp_path, "two", (0.1,))
    end(failed, f"{FAILED}the trainer refused", NOW + 11)
    assert row(failed).state == "stopped"
    fresh = make(tmp_path, "three")
    (fresh / "timeline.jsonl").unlink()
    assert (row(fresh).state, row(fresh).step) == ("stopped", 0)


def test_a_run_that_was_continued_by_hand_is_not_what_its_old_record_has(tmp_path: Path) -> None:
    run = make(tmp_path, "one", (0.1,), start=NOW + 10_000_000_000)  # after the record
    state.note_end(run, 1, "out of memory", 4)
    assert (row(run).state, row(run).why) == ("stopped", "")
    end(run, "all steps are trained", NOW + 10_000_000_100)
    assert row(run).state == "finished"


def test_only_runs_are_listed_and_damaged_ones_are_named(tmp_path: Path) -> None:
    make(tmp_path, "one", (0.1,))
    make(tmp_path / "rates", "lr-1", (0.1,))
    (tmp_path / "latest").symlink_to("one")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "notes.txt").touch()
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text('{"run":')
    runs, damaged = find(tmp_path)
    assert [run.name for run in runs] == ["one", "rates/lr-1"]
    assert [(one.folder.name, "config.json cannot be read" in one.why) for one in damaged] == [("broken", True)]


def test_a_run_on_another_disk_is_listed_by_its_link(tmp_path: Path) -> None:
    make(tmp_path / "disk", "big", (0.1,))
    make(tmp_path / "runs" / "rates", "one", (0.1,))
    (tmp_path / "runs" / "big").symlink_to(tmp_path / "disk" / "big")
    (tmp_path / "runs" / "latest").symlink_to("rates/one")
    assert [run.name for run in find(tmp_path / "runs")[0]] == ["big", "rates/one"]


def test_a_row_has_steps_and_rewards(tmp_path: Path) -> None:
    run = make(tmp_path, "one", (0.0, 0.2, 0.4, 0.6), trainer__steps=8)
    found = row(run)
    assert (found.state, found.step, found.steps, found.held_out) == ("stopped", 4, 8, 0.3)
    assert found.reward == pytest.approx(0.5)  # mean of half of the steps
    several_epochs = make(tmp_path, "two", (0.1, 0.2))
    assert (row(several_epochs).step, row(several_epochs).steps) == (2, None)
    state.note_end(several_epochs, 130, "", 7)
    assert row(several_epochs).steps == 7
    state.note_end(several_epochs, 130, "", 1)
    assert row(several_epochs).steps is None, "it was continued since"


def test_held_out_reward_is_the_mean_over_all_prompts() -> None:
    row = {
        "step": 3,
        "val/a/reward/mean": 1.0,
        "val/a/prompts": 30.0,
        "val/b/reward/mean": 0.0,
        "val/b/prompts": 10.0,
    }
    assert held_out([row, {"step": 4, "val/a/prompts": 0.0}]) == (0.75, 3)
    assert held_out([row, {"step": 4, "val/a/reward/mean": None, "val/a/prompts": 30.0}]) == (0.75, 3), (
        "all were dropped"
    )
    assert held_out([]) == (None, None)


def test_living_runs_come_first_then_the_newest(tmp_path: Path) -> None:
    for name, started in (("old", NOW), ("new", NOW + 100), ("alive", NOW - 100)):
        make(tmp_path, name, (0.1,), start=started)
    with folders.hold(paths_of(tmp_path / "alive")):
        assert [row.name for row in listing(tmp_path).runs] == ["alive", "new", "old"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run = make(tmp_path, "one", (0.25, 0.75))
    state.note_end(run, 1, "store ended 6 times: the disk is full\nsee store.out", 2)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "one: store ended 6 times: the disk is full\n" in out
    assert f"damaged: {tmp_path / 'broken'}: config.json cannot be read" in out
    assert [line.split()[:5] for line in out.splitlines() if line.startswith(" one ")] == [
        ["one", "stopped", "2/2", "0.750", "0.375"]
    ]
    make(tmp_path / "rates", "learning-rate-1e-06-temperature-0.7-seed-3", (0.5,))
    assert main(["runs", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:5])) <= 80
    names = "".join(line[1:40].split(" ")[0] for line in lines[3:6])
    assert "rates/learning-rate-1e-06-temperature-0.7-seed-3" in names, "folded, and whole"
    monkeypatch.delenv("COLUMNS")
    assert main(["runs", str(tmp_path)]) == 0
    assert " rates/learning-rate-1e-06-temperature-0.7-seed-3 " in capsys.readouterr().out, "whole in a pipe"
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert ({row["state"] for row in answer["runs"]}, len(answer["damaged"])) == ({"stopped"}, 1)
    assert main(["runs", str(tmp_path / "non")]) == 2
    assert main(["runs", str(run / "config.json")]) == 2
    assert "config.json is a file" in capsys.readouterr().err
    assert main(["runs", str(run)]) == 0
    assert f"no runs in {run}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["history", "stats"], ["view"], ["report"], ["logs"], ["queues"], ["run", "--resume"]]
)
def test_a_run_that_does_not_exist_is_to_be_looked_for_where_runs_are(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(tmp_path / "quikstart")]) == 2
    assert f"`rhymed runs {tmp_path}` lists the runs there" in capsys.readouterr().err


def test_a_narrow_terminal_cuts_no_number(tmp_path: Path) -> None:
    make(tmp_path, "learning-rate-1e-06-temperature-0.7-seed-3", (0.5,))
    out = io.StringIO()
    Console(file=out, width=64).print(table(listing(tmp_path), NOW))
    assert {"stopped", "0.500", "0.250"} <= set(out.getvalue().split())
    assert "…" not in out.getvalue()


def test_a_table_without_runs_is_empty(tmp_path: Path) -> None:
    assert table(listing(tmp_path), NOW).row_count == 0
