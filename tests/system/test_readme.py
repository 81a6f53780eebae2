"""Every command of the README and every example, as they are written: only the sizes come from the environment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_S = 300
CORE = ("make quickstart", "make test", ". .venv/bin/activate")
"""What sets up, and what runs this test: not run from here."""

SMALL = {
    "RHYMED_ROLLOUT__PROMPTS_PER_STEP": "4",
    "RHYMED_ROLLOUT__GROUP_SIZE": "2",
    "RHYMED_ROLLOUT__KV_CACHE_GIB": "0.2",
    "RHYMED_REWARD__PROCESSES": "1",
    "RHYMED_TRAINER__STEPS": "2",
    "RHYMED_TRAINER__THREADS": "1",
    "RHYMED_SCHEDULE__HEARTBEAT_S": "0.3",
    "RHYMED_SCHEDULE__LOST_AFTER_S": "20",
}
TRACE = {
    "RHYMED_ROLLOUT__ENGINE": "trace",
    "RHYMED_TRACE__VOCABULARY": "258",
    "RHYMED_TRACE__MEAN_LENGTH": "8",
    "RHYMED_TRACE__STEP_S": "0.005",
}

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


def blocks() -> list[list[str]]:
    """The commands of each bash block, comments left out."""
    found = re.findall(r"^```bash\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    lines = [[re.split(r"\s#\s", line)[0].strip() for line in block.splitlines()] for block in found]
    return [[line for line in block if line and line not in CORE] for block in lines]


@pytest.fixture
def home(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone as far as the commands see it."""
    for name in ("configs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    settings = {**SMALL, "RHYMED_MODEL__PATH": str(tiny_model), "RHYMED_MODEL__DTYPE": "float32"}
    for key, value in settings.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def do(command: str, home: Path) -> str:
    done = subprocess.run(shlex.split(command), cwd=home, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


@contextlib.contextmanager
def beside(command: str, home: Path) -> Iterator[subprocess.Popen[str]]:
    """The command goes on while something else happens; it has to end well by itself."""
    with subprocess.Popen(
        shlex.split(command), cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
            out, _ = process.communicate(timeout=DEADLINE_S)
            assert process.returncode == 0, f"{command}\n{out}"
        finally:
            if process.poll() is None:
                process.terminate()
                process.communicate(timeout=60)


def until(word: str, process: subprocess.Popen[str]) -> None:
    """Reads what the process says, as far as a line with this word."""
    assert process.stdout is not None
    said = ""
    while word not in (line := process.stdout.readline()):
        said += line
        assert line, f"it ended without a word of {word}:\n{said}"


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_readme_has_no_other_commands() -> None:
    assert [len(block) for block in blocks()] == [0, 5, 7, 5], "a test of this file runs each block: tell it"


def test_own_data_and_reward_from_check_to_history(home: Path) -> None:
    check, run, evaluate, stats, show = blocks()[1]
    assert "ready to run" in do(check, home)
    assert "2 steps" in do(run, home)
    assert "held-out: 16 prompts, 4 responses each" in do(evaluate, home)
    assert "arithmetic: " in do(stats, home)
    assert "reward" in do(show, home)


def test_run_watch_resume_export_import_and_measure(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in TRACE.items():
        monkeypatch.setenv(key, value)
    run, watch, resume, export, bring, simulate, bench = blocks()[2]
    (home / "held.py").write_text(HELD)
    held = {"REWARD__SCORER": "held.py:reward", "REWARD__TIMEOUT_S": "300", "SCHEDULE__STUCK_AFTER_S": "3000"}
    for key, value in held.items():
        monkeypatch.setenv(f"RHYMED_{key}", value)
    with beside(run, home) as running:
        until("rollout-0", running)
        with beside(watch, home) as watching:
            until("rollout-0", watching)
            (home / "seen").touch()
    assert len(metrics(home / "runs/quickstart")) == 2
    assert "2 steps" in do(resume, home)
    do(export, home)
    assert (home / "responses.parquet").read_bytes().startswith(b"PAR1")
    assert "16 samples of 8" in do(bring, home)
    assert "flow, staleness 0 + run-ahead" in do(simulate, home)
    assert (home / "sim/gantt.png").stat().st_size > 1000
    assert "rest_300_bytes_a_token" in do(bench, home)


def test_separate_processes_meet_and_leave_when_the_run_is_over(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in TRACE.items():
        monkeypatch.setenv(key, value)
    store, *others = blocks()[3]
    with subprocess.Popen(shlex.split(store), cwd=home) as process, contextlib.ExitStack() as stack:
        try:
            for command in others:
                stack.enter_context(beside(command, home))
            stack.close()
        finally:
            process.terminate()
    assert process.returncode == 0
    assert len(metrics(home / "runs/quickstart")) == 2


@pytest.mark.parametrize("engine", ["trace", pytest.param("vllm", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("example", ["gsm8k", "verl"])
def test_example(home: Path, example: str, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`arithmetic` is the README's own, and runs with the real engine."""
    for key, value in (TRACE if engine == "trace" else {}).items():
        monkeypatch.setenv(key, value)
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


def test_make_quickstart_runs_the_quickstart(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in TRACE.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("RHYMED_RUN__FOLDER", str(home / "runs"))
    out = do(f"make --old-file=setup VENV={sys.prefix} quickstart", ROOT)
    assert "2 steps" in out
    assert len(metrics(home / "runs/quickstart")) == 2
