"""`rhymed sweep`: what it plans and refuses, and a real one that is interrupted and continued."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.run import folder as folders
from rhymed.run import state
from rhymed.several import manifest
from rhymed.several.listing import Lister
from rhymed.several.rows import paths_of
from rhymed.sweep.check import check, check_together
from rhymed.sweep.folder import hold
from rhymed.sweep.plan import Job, plan
from tests.system.commands import SMALL, TRACE

OPTIONS = ["trainer.lr=1e-6,1e-5"]
SHORT = {
    "RHYMED_TRAINER__STEPS": "4",
    "RHYMED_ROLLOUT__MAX_PROMPT_LENGTH": "256",
    "RHYMED_ROLLOUT__MAX_RESPONSE_LENGTH": "32",
}
DEADLINE_S = 300


@pytest.fixture
def task(tmp_path: Path) -> Path:
    file = tmp_path / "task.toml"
    file.write_text(f"""
[run]
name = "t"
folder = "{tmp_path}/runs"
[data]
source = "reasoning_gym"
task = "chain_sum"
size = 8
[rollout]
engine = "trace"
prompts_per_step = 4
group_size = 2
[reward]
scorer = "exact"
[trainer]
engine = "trace"
""")
    return file


def begin(job: Job, **changes: object) -> None:
    """Its folder, as if it had been started with these changes."""
    config = job.config.model_copy(update=changes)
    folders.save(config)


def test_every_configuration_is_read_before_anything_is_written(task: Path, tmp_path: Path) -> None:
    sweep = plan(task, OPTIONS)
    assert sweep.folder == tmp_path / "runs" / "t-sweep"
    assert [(job.name, job.config.trainer.lr, job.state) for job in sweep.jobs] == [
        ("lr-1e-6", 1e-6, "waiting"), ("lr-1e-5", 1e-5, "waiting"),
    ]  # fmt: skip
    assert not sweep.folder.exists()
    with pytest.raises(ConfigError) as error:
        plan(task, ["trainer.lr=1e-6,x", "rollout.group_size=0,2"])
    assert len(str(error.value).splitlines()) == 4
    assert plan(task, OPTIONS, "mine").folder.name == "mine"


def test_what_is_wrong_with_all_runs_is_said_once(task: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plan(tmp_path / "none.toml", OPTIONS)
    assert str(error.value).startswith(f"{tmp_path / 'none.toml'}: No such file")
    assert len(str(error.value).splitlines()) == 1
    with pytest.raises(ConfigError) as error:
        plan(task, ["trainer.lr=1e-6,x", "rollout.group_size=0"])
    common, own = str(error.value).splitlines()
    assert common.startswith("-o rollout.group_size=0")
    assert own.startswith("lr-x: ")
    with pytest.raises(ConfigError, match=r"^lr-x: "):
        plan(task, ["trainer.lr=1e-6,x,1e-5"])


def test_a_sweep_stays_in_the_folder_of_runs(task: Path) -> None:
    for name in ("../x", "a/b", ".hidden", "a b", "x" * 101):
        with pytest.raises(ConfigError, match="letters, digits, dots"):
            plan(task, OPTIONS, name)
    with pytest.raises(ConfigError, match="the link to the newest run"):
        plan(task, OPTIONS, "latest")
    with pytest.raises(ConfigError, match=r"^-o trainer\.lr: write key=value"):
        plan(task, [*OPTIONS, "trainer.lr"])


def test_finished_runs_are_skipped_and_others_continued(task: Path) -> None:
    first = plan(task, OPTIONS)
    for job, status in zip(first.jobs, (0, 130), strict=True):
        begin(job)
        state.note_end(job.folder, status, "", 2)
    again = plan(task, ["trainer.lr=1e-6,1e-5,1e-4"])
    assert [(job.state, job.exists) for job in again.jobs] == [
        ("finished", True), ("interrupted", True), ("waiting", False),
    ]  # fmt: skip
    assert [job.name for job in again.todo()] == ["lr-1e-5", "lr-1e-4"]


def test_runs_of_other_settings_and_living_ones_are_refused(task: Path) -> None:
    first = plan(task, OPTIONS).jobs[0]
    begin(first, trainer=first.config.trainer.model_copy(update={"epochs": 7}))
    with pytest.raises(ConfigError, match=r"lr-1e-6 was started with trainer.epochs = 7 \(now \d+\)"):
        plan(task, OPTIONS)
    begin(first, run=first.config.run.model_copy(update={"seed": 3}))
    with pytest.raises(ConfigError, match=r"run.seed = 3 \(now 0\)"):
        plan(task, OPTIONS)
    begin(first)
    with folders.hold(paths_of(first.folder)), pytest.raises(ConfigError, match="lr-1e-6 is alive"):
        plan(task, OPTIONS)


def test_runs_that_an_earlier_call_planned_stay_in_the_manifest(task: Path) -> None:
    sweep = plan(task, OPTIONS)
    with hold(sweep.folder):
        manifest.write(sweep.folder, sweep.manifest)
        with pytest.raises(ConfigError, match="in use by another"), hold(sweep.folder):
            pass
    again = plan(task, ["trainer.lr=1e-5,1e-4"])
    assert [one.name for one in again.manifest.runs] == ["lr-1e-6", "lr-1e-5", "lr-1e-4"]
    again.refused(again.jobs[1], "no such model")
    rows = Lister(sweep.folder).read().runs
    assert [(row.name, row.state) for row in rows] == [
        ("lr-1e-6", "waiting"), ("lr-1e-5", "waiting"), ("lr-1e-4", "failed"),
    ]  # fmt: skip


@pytest.mark.thorough
def test_errors_of_the_check_name_the_runs_that_have_them(task: Path) -> None:
    sweep = plan(task, ["data.task=chain_sum,no_such_task"])
    said: list[str] = []
    with pytest.raises(ConfigError, match=r"^task-no_such_task: .*no_such_task"):
        check(sweep.jobs, said.append)
    assert said[:2] == ["check    1/2 task-chain_sum", "check    2/2 task-no_such_task"]


def test_runs_at_once_need_addresses_of_their_own(task: Path) -> None:
    check_together(plan(task, OPTIONS).jobs)
    with pytest.raises(ConfigError, match=r"net\.broker gives all runs the same address"):
        check_together(plan(task, [*OPTIONS, "net.broker=tcp://127.0.0.1:5999"]).jobs)


@pytest.mark.thorough
def test_a_sweep_that_is_interrupted_is_continued(
    task: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of the tiny model, which really train; the second one is started by the second call."""
    for name, value in {**SMALL, **TRACE, **SHORT}.items():
        monkeypatch.setenv(name, value)
    options = ["-o", *OPTIONS, "-o", f"model.path={tiny_model}", "-o", "trainer.engine=torch"]
    command = [sys.executable, "-m", "rhymed", "sweep", str(task), *options, "-o", "trainer.epochs=4", "--plain"]
    folder = tmp_path / "runs" / "t-sweep"
    log = tmp_path / "log"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        until = time.monotonic() + DEADLINE_S
        while "lr-1e-6: step " not in log.read_text():
            assert time.monotonic() < until, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.1)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 130, log.read_text()
    assert "ending 1 run; " in log.read_text()
    states = [row.state for row in Lister(folder).read().runs]
    assert states[0] in ("interrupted", "finished")
    assert states[1] == "waiting"
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = Lister(folder).read().runs
    assert [(row.name, row.state, row.step, row.steps) for row in rows] == [
        ("lr-1e-6", "finished", 4, 4), ("lr-1e-5", "finished", 4, 4),
    ]  # fmt: skip
    assert f"rhymed view {folder}" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert again.returncode == 0
    assert "2 runs: 2 finished" in again.stdout
    assert "check" not in again.stdout
    assert Config.model_validate_json((folder / "lr-1e-5" / "config.json").read_text()).trainer.lr == 1e-5
