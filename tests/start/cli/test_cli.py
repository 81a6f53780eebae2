"""What a person types, and what comes back when it is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rhymed.start.cli import main


def test_help_starts_without_the_heavy_libraries() -> None:
    code = (
        "import sys\n"
        "from rhymed.start.cli import parser\n"
        "parser().format_help()\n"
        "heavy = {'torch', 'vllm', 'transformers', 'zmq', 'numpy', 'pydantic', 'rich', 'lmdb'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "needed"), [("--help", ""), ("bogus", ""), ("queues --help", "queues"), ("view", "dashboard")]
)
def test_a_call_imports_only_the_module_of_its_command(words: str, needed: str) -> None:
    code = (
        "import sys\n"
        "from rhymed.start.cli import COMMANDS, parser\n"
        f"parser({words.split()!r})\n"
        "modules = {f'rhymed.start.cli.{command.module}' for command in COMMANDS.values()} & set(sys.modules)\n"
        "print(*modules, 'msgspec' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    *modules, heavy = done.stdout.split()
    assert modules == [f"rhymed.start.cli.{needed}"] * bool(needed)
    assert heavy == "False" or needed


def test_broker_and_store_need_neither_torch_nor_an_engine() -> None:
    code = (
        "import sys\n"
        "import rhymed_broker.service, rhymed_store.service, rhymed_workers.engines.trace\n"
        "import rhymed.start.launch.session\n"
        "heavy = {'torch', 'vllm', 'transformers', 'reasoning_gym'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


COMMANDS = [
    "check",
    "run",
    "eval",
    "queues",
    "logs",
    "report",
    "worker",
    "broker",
    "store",
    "bench",
    "history",
]
VERBS = ["history stats", "history show", "history export", "history import"]


@pytest.mark.parametrize("command", [*COMMANDS, *VERBS])
def test_every_command_explains_itself_with_an_example_in_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        main([*command.split(), "--help"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: rhymed {command}")
    assert f"\n  rhymed {command}" in out.partition("example")[2]
    assert max(map(len, out.splitlines())) <= 80


def test_the_list_of_commands_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(f"\n    {command} " in out for command in COMMANDS)


def test_a_mistyped_key_ends_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[trainer]\nlearning = 1\nlrr = 2\n")
    assert main(["run", str(file)]) == 2
    error = capsys.readouterr().err
    assert "mine.toml: unknown key trainer.lrr; did you mean lr?" in error
    assert "Traceback" not in error


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nowhere.toml"]) == 2
    assert "nowhere.toml: No such file" in capsys.readouterr().err


def test_resuming_what_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--resume", str(tmp_path / "gone")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_a_role_without_a_run_hears_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["worker", "--role", "reward"]) == 2
    assert "no CONFIG given" in capsys.readouterr().err


def test_a_command_that_is_gone_says_what_serves_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "my.toml", "-o", "trainer.lr=1e-6,1e-5"]) == 2
    assert "`rhymed sweep` is gone: call `rhymed run` or `rhymed.train` in a loop" in capsys.readouterr().err
    assert main(["queues", "runs/mine", "--watch"]) == 2
    assert "`rhymed queues --watch` is gone: `rhymed top`" in capsys.readouterr().err
    assert main(["history", "repair", "runs/mine"]) == 2
    assert "`rhymed history repair` is gone: put a copy of the store back" in capsys.readouterr().err
