"""The first words that people type: none, wrong ones, `--json`, and Tab."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rhymed.core.run.checkpoint import save
from rhymed.start.cli import main


def error_of(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    return capsys.readouterr().err


def test_no_words_at_all_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert "\n    run " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "meant"),
    [("chek", "check"), ("hist", "history"), ("evals", "eval")],
)
def test_a_wrong_command_is_answered_with_the_one_that_is_meant(
    word: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"; did you mean {meant}? (see rhymed --help)" in error_of(word, capsys=capsys)


@pytest.mark.parametrize("words", [("bogus",), ("x",), ("resume",), ("checkpoint", "train")])
def test_no_guess_is_better_than_a_bad_one(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    error = error_of(*words, capsys=capsys)
    assert "invalid choice" in error
    assert "did you mean" not in error


def test_checkpoints_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert main(["checkpoint", "list", "--json", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for step in (1, 2):
        save(
            tmp_path / "checkpoints", step, lambda folder: (folder / "weights").write_text("x" * 10) and None, keep=2
        )
    good, bad = (tmp_path / "checkpoints" / f"step-00000{step}" for step in (1, 2))
    (bad / "weights").write_text("y" * 10)
    assert main(["checkpoint", "list", "--json", str(tmp_path)]) == 1
    first, second = json.loads(capsys.readouterr().out)
    assert (first["step"], first["folder"], first["damage"]) == (1, str(good), None)
    assert first["bytes"] >= 10
    assert "weights" in second["damage"]
    assert main(["checkpoint", "list", str(tmp_path)]) == 1
    assert "good\nstep 2" in capsys.readouterr().out
