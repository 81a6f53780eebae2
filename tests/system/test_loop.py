"""Whole runs through `rhymed run`: every kind of process, real sockets, a real store, a real (tiny) policy."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import psutil
import pytest

from rhymed.core.messages import EVAL, GetHistory
from rhymed.core.run.checkpoint import best, damage
from rhymed.inputs.rows import prompt_id
from rhymed_store.database.reads import Reads
from rhymed_store.database.transactions import Database

REWARD = """
def reward(completions, **columns):
    return [min(1.0, len(set(text)) / 20) for text in completions]
"""

CONFIG = """
[run]
name = "loop"
folder = "{folder}"
[model]
path = "{model}"
dtype = "float32"
[data]
source = "jsonl"
path = "{folder}/rows.jsonl"
[rollout]
engine = "{engine}"
prompts_per_step = 4
group_size = 4
max_prompt_length = 32
max_response_length = 24
max_concurrency = 16
kv_cache_gib = 0.2
[trace]
mean_length = 12
step_s = 0.005
vocabulary = 258
[reward]
scorer = "{folder}/reward.py:reward"
processes = 1
[trainer]
epochs = 2
lr = 1e-3
checkpoint_every = 2
threads = 1
[schedule]
heartbeat_s = 0.3
lost_after_s = 20
[store]
map_gib = 0.25
"""


NO_MODEL = ("-o", "trainer.engine=trace")
"""For tests of which no claim is about weights: torch alone takes four seconds of CPU in a run."""

ENDLESS = ("-o", "trainer.epochs=1000")
"""For tests that do something in the middle of a run, however fast the machine is; they interrupt it."""


HELD_OUT = """
[eval]
every = 2
samples = 2
threshold = 0.1
[[eval.datasets]]
name = "other"
path = "{folder}/held_out.jsonl"
"""


def write_in(folder: Path, model: Path) -> Callable[..., Path]:
    (folder / "reward.py").write_text(REWARD)
    rows = [{"prompt": f"count to {number}"} for number in range(12)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held_out = [{"prompt": f"count down from {number}"} for number in range(5)]
    (folder / "held_out.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held_out))

    def config(engine: str, more: str = "") -> Path:
        file = folder / "loop.toml"
        file.write_text((CONFIG + more).format(folder=folder, model=model, engine=engine))
        return file

    return config


@pytest.fixture
def write(tmp_path: Path, tiny_model: Path) -> Callable[..., Path]:
    return write_in(tmp_path, tiny_model)


@pytest.fixture(scope="module")
def unread(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """The folder of a run whose output nothing reads, and whose terminal is closed."""
    home = tmp_path_factory.mktemp("unread")
    folder = home / "loop"
    with started(write_in(home, tiny_model)("trace"), *NO_MODEL) as run:
        assert run.stdout is not None
        while not (line := run.stdout.readline()).startswith("starting"):
            assert line, tails(folder)
        run.stdout.close()
        run.send_signal(signal.SIGHUP)
        assert run.wait(240) == 0, tails(folder)
    return folder


@contextlib.contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "rhymed", "run", "--plain", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                process.communicate(timeout=60)


def finish(process: subprocess.Popen[str], folder: Path, deadline_s: float = 240) -> str:
    try:
        out, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the run did not end; {tails(folder)}")
    assert process.returncode == 0, out + tails(folder)
    return out


def interrupt(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    return out


def tails(folder: Path) -> str:
    return "".join(f"\n== {file.name}\n{file.read_text()[-1500:]}" for file in sorted(folder.glob("logs/*")))


def metrics(folder: Path) -> list[dict[str, Any]]:
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = 180) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"no {what} within {deadline_s} s"
        time.sleep(0.05)


def processes_of(folder: Path) -> dict[int, str]:
    """Living processes that were started for this run, by their command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes()
                if str(folder) in command or f"RHYMED_SUPERVISED={folder}".encode() in environment:
                    found[int(entry.name)] = command
    return found


def pid_of(folder: Path, name: str) -> int:
    return next(row["pid"] for row in queues(folder)["workers"] if row["worker"] == name)


def queues(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "rhymed", "queues", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_interrupted_run_trains_every_step_after_its_resume_and_leaves_nothing_behind(
    write, tmp_path: Path
) -> None:
    folder = tmp_path / "loop"
    with started(write("trace"), *ENDLESS, *NO_MODEL) as run:
        wait_for(lambda: len(metrics(folder)) >= 3, "third step")
        interrupt(run)
    assert processes_of(folder) == {}
    epochs = len(metrics(folder)) // 3 + 2
    with started("--resume", folder, "-o", f"trainer.epochs={epochs}") as run:
        out = finish(run, folder)
    rows = metrics(folder)
    assert sorted({row["step"] for row in rows}) == list(range(3 * epochs))
    assert all(row["staleness/max"] == 0 for row in rows)
    assert f"{3 * epochs} steps" in out
    summary = json.loads((folder / "summary.json").read_text())["epochs"]
    places = [(row["epoch"], row["first_step"], row["steps"]) for row in summary]
    assert places == [(epoch, 3 * epoch, 3) for epoch in range(epochs)]
    assert processes_of(folder) == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_run_outlives_who_reads_it(unread: Path) -> None:
    """`rhymed run … | head`, and a terminal that is closed."""
    assert [row["step"] for row in metrics(unread)] == list(range(6))
    assert "output cannot be written" in (unread / "logs/run.log").read_text()
    assert processes_of(unread) == {}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(500)
def test_the_real_engine_follows_every_update_and_survives_a_kill(write, tmp_path: Path) -> None:
    """Engine and trainer agree on the sampled tokens' log-probs after every update: stale weights would differ."""
    folder = tmp_path / "loop"
    with started(write("vllm"), *ENDLESS, "-o", "trainer.lr=1e-2") as run:
        wait_for(lambda: len(metrics(folder)) >= 2, "second step", 240)
        killed = pid_of(folder, "rollout-0")
        engines = [child.pid for child in psutil.Process(killed).children(recursive=True)]
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: not any(psutil.pid_exists(pid) for pid in engines), "end of the engine's processes", 60)
        done = len(metrics(folder))
        wait_for(lambda: len(metrics(folder)) >= done + 3, "steps of the next engine")
        interrupt(run)
    rows = metrics(folder)
    assert engines
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert all(0 <= row["mismatch_kl/mean"] < 1e-4 for row in rows), [row["mismatch_kl/mean"] for row in rows]
    assert all(row["staleness/max"] == 0 for row in rows)
    assert processes_of(folder) == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_one_step_of_staleness_is_used_and_never_more(write, tmp_path: Path) -> None:
    changes = ("-o", "schedule.max_staleness=1", "-o", "trace.step_s=0.02", "-o", "trace.train_s=0.5")
    with started(write("trace"), *NO_MODEL, *changes) as run:
        finish(run, tmp_path / "loop")
    rows = metrics(tmp_path / "loop")
    assert [row["step"] for row in rows] == list(range(6))
    assert max(row["staleness/max"] for row in rows) == 1
    assert sum(row["rollout/dropped"] for row in rows) == 0


def tokens_of(folder: Path) -> dict[str, list[int]]:
    """Every training sample of the run: its tokens."""
    database = Database(folder / "store", 1 << 28)
    found = {}
    try:
        for row in map(json.loads, (folder.parent / "rows.jsonl").read_text().splitlines()):
            question = GetHistory(prompt=prompt_id(row), before_step=EVAL, limit=1000)
            samples, (tokens,) = Reads(database).history(question)
            ends = list(accumulate(info.length for info in samples.samples))
            for info, end in zip(samples.samples, ends, strict=True):
                found[str(info.id)] = tokens[end - info.length : end].tolist()
    finally:
        database.close()
    return found


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_evaluations_come_when_they_are_due_and_change_no_training_sample(
    write, unread: Path, tmp_path: Path
) -> None:
    with started(write("trace", HELD_OUT), *NO_MODEL, "-o", "trainer.keep_best=true") as run:
        out = finish(run, tmp_path / "loop")
    made = tokens_of(tmp_path / "loop")
    assert made == tokens_of(unread)
    assert len(made) == 96
    rows = metrics(tmp_path / "loop")
    graded = [row for row in rows if "val/other/acc/mean@2" in row]
    assert [row["step"] for row in graded] == [0, 2, 4, 6]
    assert all(row["val/other/prompts"] == 5 for row in graded)
    assert "eval v6   other   mean@2 " in out
    found = best(tmp_path / "loop")
    assert found is not None
    assert found.reward == max(row["val/other/reward/mean"] for row in graded if row["step"])
    assert f"best     step {found.checkpoint.step}, held-out reward {found.reward:.3f}: " in out
    assert not damage(found.checkpoint.folder)


COMPARING = """
from pathlib import Path

def reward(completions, log_metric, trainer_state, **columns):
    log_metric("group", len(completions))
    log_metric("step", trainer_state.global_step)
    order = sorted(range(len(completions)), key=lambda place: completions[place])
    return [order.index(place) / 3 for place in range(len(completions))]

def broken(completions, **columns):
    best = max(completions)
    raise ValueError("cannot score " + best[:1])
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killed_workers_cost_time_and_no_sample_and_a_reward_that_compares_gets_whole_groups(
    write, tmp_path: Path
) -> None:
    file = write("trace")
    (tmp_path / "reward.py").write_text(COMPARING)
    folder = tmp_path / "loop"
    with started(file, *NO_MODEL, *ENDLESS) as run:
        wait_for(lambda: len(metrics(folder)) >= 2, "step")
        os.kill(pid_of(folder, "rollout-0"), signal.SIGKILL)
        os.kill(pid_of(folder, "reward-0"), signal.SIGKILL)
        killed = len(metrics(folder))
        wait_for(lambda: len(metrics(folder)) >= killed + 3, "steps after the kill")
        out = interrupt(run)
    assert "rollout-0 ended (signal SIGKILL); starting it again" in out
    assert "reward-0 ended (signal SIGKILL); starting it again" in out
    rows = metrics(folder)
    assert [row["step"] for row in rows] == list(range(len(rows)))
    assert sum(row["rollout/dropped"] for row in rows) == 0
    assert {row["reward/metric/group"] for row in rows} == {4.0}
    assert [row["reward/metric/step"] for row in rows] == list(range(len(rows)))
    assert {round(row["reward/mean"], 6) for row in rows} == {0.5}, "the ranks of each group"
    assert {row["rollout/samples"] for row in rows} == {16.0}


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_run_whose_samples_were_all_dropped_fails(write, tmp_path: Path) -> None:
    file = write("trace", "").read_text().replace("reward.py:reward", "reward.py:broken")
    (tmp_path / "loop.toml").write_text(file.replace("epochs = 2", "steps = 1\nepochs = 1"))
    (tmp_path / "reward.py").write_text(COMPARING)
    with started(tmp_path / "loop.toml", *NO_MODEL, "-o", "rollout.group_size=2") as run:
        out, _ = run.communicate(timeout=300)
    assert run.returncode == 1, out
    assert "all samples were dropped, and nothing was learned" in out
    assert "gain +nan" not in out
