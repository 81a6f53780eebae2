"""`rhymed.train` and `rhymed.open_run`: real processes, and the broker, store and scorers of a real run."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rhymed
from rhymed.core.errors import CheckpointError, ConfigError, DataError
from tests.system.test_loop import processes_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ROWS = [{"prompt": f"count to {number}", "answer": str(number)} for number in range(8)]
WITHOUT_MODEL = {
    "rollout": {
        "engine": "trace",
        "prompts_per_step": 4,
        "group_size": 2,
        "max_prompt_length": 64,
        "max_response_length": 16,
    },
    "trace": {"vocabulary": 258, "mean_length": 8, "step_s": 0.005},
    "schedule": {"heartbeat_s": 0.3},
    "reward.processes": 1,
    "net.http": "",
}


SHARE = 0.5


def halves(completions: list[str], answer: list[str], **columns: Any) -> list[float]:
    return [SHARE * int(right) + 0.0 * len(text) for text, right in zip(completions, answer, strict=True)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("api")


@pytest.fixture(scope="module")
def settings(home: Path, tiny_model: Path) -> dict[str, Any]:
    run = {"folder": str(home / "runs"), "name": "api"}
    return {**WITHOUT_MODEL, "model": str(tiny_model), "run": run, "trainer": {"engine": "trace", "steps": 3}}


@pytest.fixture(scope="module")
def trained(settings: dict[str, Any]) -> tuple[rhymed.Run, int]:
    """A run, and how often another coroutine went on meanwhile."""

    async def both() -> tuple[rhymed.Run, int]:
        ticks = 0
        task = asyncio.create_task(
            asyncio.to_thread(rhymed.train, dataset=ROWS, reward=halves, progress=False, **settings)
        )
        while not task.done():
            await asyncio.sleep(0.05)
            ticks += 1
        return await task, ticks

    return asyncio.run(both())


@pytest.fixture(scope="module")
def run(trained: tuple[rhymed.Run, int]) -> rhymed.Run:
    return trained[0]


def test_a_thread_trains_next_to_coroutines(trained: tuple[rhymed.Run, int]) -> None:
    run, ticks = trained
    assert (run.step, run.name) == (3, "api")
    assert ticks > 5, "of the other one"


def test_a_list_and_a_function_train_and_the_run_is_a_table(run: rhymed.Run) -> None:
    assert (run.name, run.state, run.step) == ("api", "finished", 3)
    assert [row["step"] for row in run.metrics()] == [0, 1, 2]
    samples = run.samples()
    assert len(samples) == 3 * 4 * 2
    answers = {row["prompt"]: row["answer"] for row in ROWS}
    for row in samples:
        assert row["reward"] == pytest.approx(halves([""], [answers[row["prompt"]]])[0])
    assert {row["step"] for row in run.samples(step=1)} == {1}
    assert {row["prompt"] for row in run.history("count to 3")} == {"count to 3"}
    assert run.checkpoint().is_dir()
    assert run.config.trainer.steps == 3
    assert "finished" in repr(run)


def test_pandas_and_arrow_take_the_tables_as_they_are(run: rhymed.Run) -> None:
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    assert list(pandas.DataFrame(run.metrics())["step"]) == [0, 1, 2]
    assert pyarrow.Table.from_pylist(run.samples()).num_rows == 24


def test_the_folder_is_enough_to_open_it_again(run: rhymed.Run) -> None:
    again = rhymed.open_run(run.folder)
    assert again.samples() == run.samples()
    (row, *_) = again.history("count to 5")
    assert row["prompt"] == "count to 5"


def test_a_run_is_continued_with_more_steps_and_a_finished_one_is_returned_at_once(run: rhymed.Run) -> None:
    assert rhymed.train(resume=run, progress=False).step == 3
    longer = rhymed.train(resume=run, progress=False, steps=4)
    assert (longer.folder, longer.step, longer.state) == (run.folder, 4, "finished")


def test_what_is_not_there_is_a_sentence(run: rhymed.Run, home: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a run's folder: it has no config\.json"):
        rhymed.open_run(home)
    with pytest.raises(CheckpointError, match="steps there: "):
        run.checkpoint(99)
    with pytest.raises(DataError):
        run.history("no such words")
    with pytest.raises(DataError, match="fits 8 prompts"):
        run.history("count")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"lr": -1}, ConfigError, "trainer.lr"),
        ({"learning_rate": 1e-5}, ConfigError, "learning_rate"),
        ({"reward_funcs": halves}, ConfigError, "rhymed.train calls it reward"),
        ({"dataset": [{"text": "x"}]}, ConfigError, "no column .prompt."),
        ({"dataset": []}, DataError, "rows"),
        ({"reward": len}, ConfigError, "neither TRL.s parameters"),
        ({"reward": "no/such.py:f"}, ConfigError, "no file .*no/such.py"),
        ({"model": object()}, ConfigError, "model is a object"),
        ({"dataset": None}, ConfigError, "no rows are named: pass dataset=…, or name a generated task"),
    ],
)
def test_mistakes_are_the_errors_of_the_command_line_and_leave_no_folder(
    settings: dict[str, Any], home: Path, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    before = sorted((home / "runs").iterdir()) if (home / "runs").exists() else []
    with pytest.raises(error, match=words):
        rhymed.train(**{"dataset": ROWS, "reward": halves, "progress": False, **settings, **given})
    after = sorted((home / "runs").iterdir()) if (home / "runs").exists() else []
    assert [path for path in after if path not in before] == []


SCRIPT = """
import json, signal, sys, rhymed

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a shell started the tests in the background

def reward(completions, **columns):
    return [float(len(text)) for text in completions]

rows = [{"prompt": f"say {n}"} for n in range(8)]
settings = json.loads(sys.argv[1])
try:
    run = rhymed.train(dataset=rows, reward=reward, **settings)
except KeyboardInterrupt as error:
    print("interrupted:", error, flush=True)
"""


def test_an_interrupted_script_ends_its_processes_and_its_run_can_be_continued(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    long = {
        **settings,
        "trainer": {"engine": "trace", "epochs": 10_000},
        "run": {"folder": str(tmp_path), "name": "long"},
    }
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), json.dumps(long)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as script:
        assert script.stdout is not None
        lines: list[str] = []
        while not any("/20000 " in line for line in lines):
            lines.append(line := script.stdout.readline())
            assert line, "".join(lines)
        script.send_signal(signal.SIGINT)
        rest = script.stdout.read()
        assert script.wait(120) == 0
    assert "interrupted: the run was stopped" in rest, rest
    assert processes_of(tmp_path / "long") == {}
    run = rhymed.open_run(tmp_path / "long")
    assert run.state == "stopped"
    wanted = run.step + 2
    assert rhymed.train(resume=run, progress=False, steps=wanted).step == wanted
