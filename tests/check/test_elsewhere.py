"""What `rhymed launch` checks on this machine of a run that starts on others, and what it says that it did not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.check.dryrun import UNCHECKED, elsewhere_check
from rhymed.core.config import Config
from rhymed.start.cli import main

ROWS = '{"prompt": "1 + 1 = ", "answer": "2"}\n'


@pytest.fixture
def given(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """A run that needs no model, with rows and a reward function."""
    (tmp_path / "rows.jsonl").write_text(ROWS)
    (tmp_path / "mine.py").write_text("def reward(completions, **columns):\n    return [1.0 for _ in completions]\n")
    return {
        "data": {"path": str(tmp_path / "rows.jsonl")},
        "rollout": {"engine": "trace", "prompts_per_step": 1},
        "trainer": {"engine": "trace"},
        "reward": {"scorer": f"{tmp_path / 'mine.py'}:reward", "workers": 1},
    }


def test_mistakes_in_files_that_the_other_machines_have_too_are_errors(
    given: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    report = elsewhere_check(Config(**given))
    assert report.errors == []
    assert [UNCHECKED in warning for warning in report.warnings] == [True]
    (tmp_path / "mine.py").write_text("import nothing_of_this_name\n")
    (error,) = elsewhere_check(Config(**given)).errors
    assert "nothing_of_this_name" in error
    (tmp_path / "rows.jsonl").write_text(ROWS + '{"answer": "2"}\n')
    assert "rows.jsonl, line 2" in elsewhere_check(Config(**given)).errors[0]
    (tmp_path / "rows.jsonl").unlink()
    assert "rows.jsonl: No such file" in elsewhere_check(Config(**given)).errors[0]


def test_what_is_not_here_is_no_error(given: dict[str, dict[str, Any]]) -> None:
    elsewhere = {"rollout": {"prompts_per_step": 1}, "trainer": {}, "model": {"path": "nobody/has-this-model"}}
    assert elsewhere_check(Config(**{**given, **elsewhere, "data": {"path": "nobody/has-these-rows"}})).errors == []


def test_launch_refuses_what_a_run_would_refuse_and_writes_nothing(
    given: dict[str, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.json").write_text(Config(**given).model_dump_json())
    assert main(["launch", "slurm", "my.json", "--out", "slurm"]) == 0
    assert "warning  not checked: " in capsys.readouterr().out
    Path("rows.jsonl").write_text("no JSON\n")
    assert main(["launch", "slurm", "my.json", "--out", "other"]) == 2
    assert "rows.jsonl, line 1" in capsys.readouterr().err
    assert not Path("other").exists()
