"""`rhymed init`: what it writes, where, and what it refuses."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.core.config.load import load_config
from rhymed.start.cli import main
from rhymed.start.starters import about, configurations, shipped, task_starter, tasks
from tests.tiny import write_tiny_model
from tests.workers.sessions.test_dialogue import CHATML


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def suitable(task: str, tiny_model: Path, inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model for the task: for chats with tools, one with a template and room for their letters, its tokens."""
    model = tiny_model
    if task in ("agent", "calculator", "guess"):
        model = inside / "chats"
        write_tiny_model(model, positions=4096)
        (model / "chat_template.jinja").write_text(CHATML)
        monkeypatch.setenv("RHYMED_ROLLOUT__MAX_PROMPT_LENGTH", "3000")
    monkeypatch.setenv("RHYMED_MODEL__PATH", str(model))


@pytest.mark.parametrize("task", tasks())
@pytest.mark.usefixtures("suitable")
def test_every_task_passes_the_check_of_its_printed_command(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", f"my {task}", "--task", task]) == 0
    lines = capsys.readouterr().out.partition("next:\n")[2].split("\n")
    *before, check, run, show = [shlex.split(line) for line in lines if line]
    for command in before:
        subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True, timeout=120)
    assert main([*check[1:]]) == 0, capsys.readouterr().out
    assert run[:2] == ["rhymed", "run"]
    assert show == ["rhymed", "history", "show", "--run", f"runs/my-{task}"]
    config = load_config(Path(run[2]))
    assert config.run.name == f"my-{task}"
    files = {
        file.name: file.read_text() for file in Path(f"my {task}").iterdir() if file.suffix in (".md", ".py", ".toml")
    }
    assert all(f"`{name}`" in files["README.md"] for name in files if name != "README.md")
    assert "examples/" not in "".join(files.values())


def test_every_readme_begins_with_what_the_example_is() -> None:
    assert {"arithmetic", "calculator", "gsm8k", "verl"} <= tasks().keys()
    assert all(20 < len(about(file)) < 100 and file.read_text().startswith("# ") for file in tasks().values())


def test_a_file_that_exists_is_not_overwritten_and_nothing_else_is_written(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (inside / "mine").mkdir()
    (inside / "mine/reward.py").write_text("mine")
    assert main(["init", "mine"]) == 2
    assert "not overwritten: mine/reward.py; name another folder, or add --force" in capsys.readouterr().err
    assert os.listdir("mine") == ["reward.py"]
    assert (inside / "mine/reward.py").read_text() == "mine"
    assert main(["init", "mine", "--force"]) == 0
    assert "def reward" in (inside / "mine/reward.py").read_text()


def test_mistakes_end_in_a_sentence(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (inside / "file").write_text("")
    for arguments, message in (
        (["init"], "name a folder to write"),
        (["init", 'a"b'], "may not contain"),
        (["init", "file/below"], "file"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    with pytest.raises(SystemExit):
        main(["init", "x", "--config", "quikstart"])
    assert "did you mean quickstart?" in capsys.readouterr().err
    assert sorted(os.listdir()) == ["file"]


def test_a_configuration_alone_is_the_one_in_the_package(inside: Path) -> None:
    assert main(["init", "big", "--config", "gpu/8x80gb"]) == 0
    assert load_config(Path("big/8x80gb.toml"), (), {}) == load_config(shipped("configs") / "gpu/8x80gb.toml", (), {})
    assert main(["init", "one", "--config", "quickstart"]) == 0
    assert (inside / "one/quickstart.toml").is_file()


def test_the_list_names_every_task_and_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--list"]) == 0
    out = capsys.readouterr().out
    named = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    assert named == {*tasks(), *configurations()}
    assert max(map(len, out.splitlines())) < 200


def test_the_lists_of_tested_versions_are_constraints(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("cpu", "cuda"):
        file = shipped("requirements") / f"{name}.in"
        assert main(["init", "--constraints", name]) == 0
        assert capsys.readouterr().out.strip() == str(file)
        lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
        assert all("==" in line for line in lines)


def test_a_folder_given_by_its_whole_path_needs_no_current_folder(inside: Path) -> None:
    starter = task_starter(inside / "far", "arithmetic")
    assert f'path = "{inside}/far/train.jsonl"' in starter.files["config.toml"]
