"""Every command of the README and every example, as they are written: only the sizes come from the environment.

Commands that the README leaves to a page of docs/ are run from there.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.commands import NO_MODEL, ROOT, SMALL, TRACE, background, clone, do, environment, settings, until

CORE = ("make quickstart", "make test", ". .venv/bin/activate")
"""What sets up, and what runs this test: not run from here."""

HELD = """
import time
from pathlib import Path

def reward(completions):
    while Path("runs/quickstart").exists() and not Path("seen").exists():
        time.sleep(0.05)
    return [float(len(text)) for text in completions]
"""
"""Nothing of a run is scored, so it does not end, before somebody has seen it; the check's trial passes."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def blocks(page: str = "README.md") -> list[list[str]]:
    """The commands of each bash block, comments left out."""
    found = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    lines = [[re.split(r"\s#\s", line)[0].strip() for line in block.splitlines()] for block in found]
    return [[line for line in block if line and line not in CORE] for block in lines]


def block(page: str, start: str) -> list[str]:
    """The commands of the page's only bash block whose first one begins so."""
    (found,) = (commands for commands in blocks(page) if commands and commands[0].startswith(start))
    return found


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    environment(monkeypatch, SMALL | {"RHYMED_MODEL__PATH": str(tiny_model)})
    return clone(tmp_path)


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_readme_has_no_other_commands() -> None:
    assert [len(block) for block in blocks()] == [0, 5], "a test of this file runs each block: add the new one"


ENGINES = pytest.mark.parametrize("engine", ["trace", pytest.param("vllm", marks=pytest.mark.thorough)])


@ENGINES
def test_own_data_and_reward_from_check_to_history(home: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, TRACE if engine == "trace" else {})
    check, run, evaluate, stats, show = blocks()[1]
    assert "ready to run" in do(check, home)
    assert "2 steps" in do(run, home)
    assert "held-out: 16 prompts, 4 responses each" in do(evaluate, home)
    assert "arithmetic: " in do(stats, home)
    assert "reward" in do(show, home)


@pytest.mark.thorough
def test_another_algorithm_with_adapters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, TRACE)
    run, export = block("docs/algorithms.md", "rhymed run examples/arithmetic")
    assert "2 steps" in do(run, home)
    do(export, home)
    assert json.loads((home / "adapter/adapter_config.json").read_text())["r"] == 16


@pytest.mark.thorough
def test_run_watch_resume_export_import_and_measure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, NO_MODEL)
    run, watch, resume, export, bring, simulate, bench = block(
        "docs/quickstart.md", "rhymed run configs/quickstart.toml -o"
    )
    (home / "held.py").write_text(HELD)
    held = {"REWARD__SCORER": "held.py:reward", "REWARD__TIMEOUT_S": "300", "SCHEDULE__STUCK_AFTER_S": "3000"}
    settings(monkeypatch, {f"RHYMED_{key}": value for key, value in held.items()})
    with background(run, home) as running:
        until("rollout-0", running)
        with background(watch, home) as watching:
            until("rollout-0", watching)
            (home / "seen").touch()
    assert len(metrics(home / "runs/quickstart")) == 2
    assert "2 steps" in do(resume, home)
    do(export, home)
    assert (home / "responses.parquet").read_bytes().startswith(b"PAR1")
    assert "16 samples of 8" in do(bring, home)
    smaller = simulate.replace("--prompts 32 --steps 4", "--prompts 8 --steps 2")
    assert smaller != simulate
    assert "flow, staleness 0 + run-ahead" in do(smaller, home)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # as in a checkout
    assert "rest_300_bytes_a_token" in do(bench, home)


@pytest.mark.thorough
def test_separate_processes_meet_and_leave_when_the_run_is_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, NO_MODEL)
    store, *others = block("docs/quickstart.md", "rhymed store")
    with subprocess.Popen(shlex.split(store), cwd=home) as process, contextlib.ExitStack() as stack:
        try:
            for command in others:
                stack.enter_context(background(command, home))
            stack.close()
        finally:
            process.terminate()
    assert process.returncode == 0
    assert len(metrics(home / "runs/quickstart")) == 2


@pytest.mark.parametrize("example", [pytest.param("gsm8k", marks=pytest.mark.thorough), "verl"])
def test_example(home: Path, example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, NO_MODEL)
    if example == "verl":
        do("python examples/verl/prepare.py", home)
    out = do(f"rhymed run examples/{example}/config.toml -o trainer.steps=1", home)
    rows = metrics(home / "runs" / example)
    assert "dropped samples 0" in out
    assert any("reward/mean" in row for row in rows)
    if example == "gsm8k":
        assert "val/test/acc/pass@4" in rows[-1]


def test_the_readme_shows_the_example_as_it_is() -> None:
    assert len((ROOT / "examples/arithmetic/reward.py").read_text().splitlines()) < 40
    readme = (ROOT / "README.md").read_text()
    for file in re.findall(r"examples/[\w./]+", readme):
        assert (ROOT / file.rstrip("./")).exists(), file


@pytest.mark.thorough
def test_make_quickstart_runs_the_quickstart(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(monkeypatch, NO_MODEL)
    monkeypatch.setenv("RHYMED_RUN__FOLDER", str(home / "runs"))
    out = do(f"make --old-file=setup VENV={sys.prefix} quickstart", ROOT)
    assert "2 steps" in out
    assert len(metrics(home / "runs/quickstart")) == 2
