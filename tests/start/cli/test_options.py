"""Which run is meant: how a command is told, and what is said of a word that was meant to tell it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rhymed.start.cli import main, parser
from rhymed.start.cli.options import LATEST

NAMING = ("top", "queues", "view", "logs", "report", "history stats", "history audit", "checkpoint list")


def refused(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a mistake is answered with; its last line is all there is."""
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    (reported,) = capsys.readouterr().err.splitlines()
    return reported


@pytest.mark.parametrize("command", NAMING)
def test_a_run_is_named_by_its_folder(command: str) -> None:
    words = command.split()
    assert parser().parse_args(words).run == LATEST
    assert parser().parse_args([*words, "runs/x"]).run == Path("runs/x")


@pytest.mark.parametrize("words", ["steer pause", "scale rollout=2", "history show apples"])
def test_a_command_that_takes_other_words_has_an_option(words: str) -> None:
    assert parser().parse_args(words.split()).run == LATEST
    assert parser().parse_args([*words.split(), "--run", "runs/x"]).run == Path("runs/x")


def test_what_else_a_command_takes_comes_before_the_folder() -> None:
    done = parser().parse_args(["history", "export", "out.jsonl", "runs/x"])
    assert (done.out, done.run) == (Path("out.jsonl"), Path("runs/x"))
    done = parser().parse_args(["queues", "--json", "runs/x", "--insecure"])
    assert (done.json, done.run, done.insecure) == (True, Path("runs/x"), True)


def test_a_folder_where_a_command_takes_other_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["steer", "pause", "runs/x"]) == 2
    assert "is for the whole run, which --run names: leave out runs/x" in capsys.readouterr().err


BROKEN = (
    ("", "not a run's configuration: Expecting value"),
    ('{"run', "not a run's configuration"),
    ("[1]", "not a run's configuration: an object of sections is needed, not [1]"),
    (json.dumps({"trainer": {"lrr": 1}}), "unknown key trainer.lrr; did you mean lr?"),
    (json.dumps({"rollout": {"engine": "magic"}}), "rollout.engine = 'magic': it must be"),
)


@pytest.mark.parametrize(("text", "reported"), BROKEN)
@pytest.mark.parametrize("command", ["queues", "steer pause --run"])
def test_a_broken_configuration_is_reported_in_words(
    command: str, text: str, reported: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(text)
    assert main([*command.split(), str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"rhymed: {tmp_path}/config.json: ")
    assert reported in line
    assert "pydantic" not in line


def test_the_environment_changes_nothing_in_a_run_that_was_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rhymed.core.run.folder import layout_of_folder

    (tmp_path / "config.json").write_text(json.dumps({"net": {"broker": "ipc:///there"}}))
    monkeypatch.setenv("RHYMED_NET__BROKER", "ipc:///elsewhere")
    assert layout_of_folder(tmp_path).broker == "ipc:///there"


@pytest.mark.parametrize("words", ["history restore --steps", "history show --limit"])
@pytest.mark.parametrize("number", ["x", "0", "-1", "1.5"])
def test_a_count_is_a_whole_number_from_1_on(words: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = refused(*words.split()[:-1], f"{words.split()[-1]}={number}", capsys=capsys)
    assert f"'{number}': a whole number from 1 on is needed" in answer
