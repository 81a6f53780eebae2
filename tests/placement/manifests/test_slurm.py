"""Batch scripts of Slurm: what each job asks for and starts, and what is refused. tests/stress/slurm.py runs them."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.placement import files, slurm
from rhymed.placement.slurm import Options
from rhymed.start.cli import main

GPUS: dict[str, dict[str, Any]] = {
    "run": {"name": "mine"},
    "rollout": {"workers": 3, "tensor_parallel": 2},
    "trainer": {"gpus": 4},
    "reward": {"workers": 2},
}
TRACE: dict[str, dict[str, Any]] = {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}}
ROWS: dict[str, dict[str, Any]] = {
    **TRACE,
    "run": {"name": "mine"},
    "rollout": {"engine": "trace", "prompts_per_step": 1},
    "data": {"path": "rows.jsonl"},
    "reward": {"scorer": "exact"},
}
OPTIONS = Options(Path("/shared/mine-slurm"), Path("/shared/work"), partition="gpu", cpu_partition="cpu", time="1:00")


def requests(text: str) -> set[str]:
    return {line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBATCH ")}


def test_each_job_asks_for_what_its_processes_need() -> None:
    found = {name: requests(text) for name, text in slurm.scripts(Config(**GPUS), OPTIONS).items()}
    assert set(found) == {"head.sbatch", "trainer.sbatch", "rollout.sbatch", "reward.sbatch", "submit.sh"}
    common = {"--requeue", "--open-mode=append", "--nodes=1", "--time=1:00", "--chdir=/shared/work"}
    assert all(common <= found[name] for name in found if name != "submit.sh")
    assert {"--cpus-per-task=2", "--mem=4096M", "--partition=cpu", "--job-name=mine-head"} <= found["head.sbatch"]
    assert {"--gpus-per-node=4", "--cpus-per-task=4", "--partition=gpu"} <= found["trainer.sbatch"]
    assert {"--gpus-per-node=2", "--array=0-2", "--partition=gpu"} <= found["rollout.sbatch"]
    assert {"--array=0-1", "--partition=cpu"} <= found["reward.sbatch"]
    assert not any("--array" in line for name in ("head.sbatch", "trainer.sbatch") for line in found[name])


@pytest.mark.parametrize("nodes", [1, 2])
def test_scripts_are_valid_shell_and_start_the_commands_of_the_plan(nodes: int) -> None:
    many = {"trainer": {"gpus": 4, "nodes": nodes}, "net": {"ranks": "tcp://trainer:5553"} if nodes > 1 else {}}
    texts = slurm.scripts(Config(**{**GPUS, **many}), OPTIONS)
    for name, text in texts.items():
        program = "sh" if name == slurm.SUBMIT else "bash"
        done = subprocess.run([program, "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), name
    assert 'exec rhymed store "$FOLDER/config.json"' in texts["head.sbatch"]
    assert 'exec rhymed broker "$FOLDER/config.json"' in texts["head.sbatch"]
    name = "rollout-$SLURM_ARRAY_TASK_ID"
    assert f'exec rhymed worker --role rollout --name {name} "$FOLDER/config.json"' in texts["rollout.sbatch"]
    trainer = texts["trainer.sbatch"]
    assert 'exec rhymed worker --role trainer --name trainer "$FOLDER/config.json"' in trainer
    other = "--node $SLURM_NODEID --name trainer-node-$SLURM_NODEID"
    assert (f'exec rhymed worker --role trainer {other} "$FOLDER/config.json"' in trainer) == (nodes > 1)
    assert ("RHYMED_NET__RANKS" in trainer) == ("srun " in trainer) == ("--nodes=2" in trainer) == (nodes > 1)


def test_two_runs_on_one_node_have_ports_of_their_own() -> None:
    moved = dataclasses.replace(OPTIONS, first_port=5600)
    several = Config(**{**GPUS, "trainer": {"nodes": 2, "gpus": 4}, "net": {"ranks": "tcp://trainer:5553"}})
    for text in slurm.scripts(several, moved).values():
        ports = set(re.findall(r"tcp://\$\w+:(\d+)", text))
        assert ports <= {"5600", "5601", "5602", "5603"}
        assert "5603" in ports or "srun" not in text


def test_a_role_without_processes_has_no_job() -> None:
    found = slurm.scripts(Config(**{**TRACE, "reward": {"workers": 0}}), OPTIONS)
    assert "reward" not in "".join(found) + found[slurm.SUBMIT]


def test_engines_on_the_trainers_gpus_and_names_that_slurm_does_not_read_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.colocate"):
        slurm.scripts(Config(schedule={"colocate": True}), OPTIONS)
    with pytest.raises(ConfigError, match="does not read '%'"):
        slurm.scripts(Config(), Options(Path("/a%j"), Path("/")))


def keep(folder: Path, process: str, *, end_after_s: float | None = None) -> tuple[int, str]:
    """Status and output of a job that keeps `process`; `end_after_s`: it is ended like a job of Slurm."""
    folder.mkdir(exist_ok=True)
    script = "\n".join(
        [f"FOLDER={folder}", *slurm.KEEP, f"process() {{ {process}; }}", "sleep() { :; }", "keep process"]
    )
    job = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if end_after_s is not None:
        assert job.stdout is not None
        assert job.stdout.readline() == "1\n"
        job.terminate()
    output = job.communicate(timeout=60)[0]
    return job.returncode, output


def test_a_process_that_fails_is_started_again_until_a_person_is_needed(tmp_path: Path) -> None:
    counts = f'echo x >> {tmp_path}/n; [ "$(wc -l < {tmp_path}/n)" -lt 3 ] && exit 1; exit'
    status, output = keep(tmp_path, f"{counts} 0")
    assert (status, output.count("starting it again")) == (0, 2)
    (tmp_path / "n").unlink()
    status, output = keep(tmp_path, f"{counts} 2")
    assert (status, output.count("starting it again")) == (2, 2)
    status, output = keep(tmp_path, "exit 7")
    assert (status, output.count("starting it again")) == (7, 9)


def test_nothing_starts_after_the_end_of_the_run_and_the_end_of_a_job_reaches_its_process(tmp_path: Path) -> None:
    program = "import signal, sys; signal.signal(15, lambda *_: sys.exit(print('gave back')));"
    trap = f'exec python3 -c "{program} print(1, flush=True); signal.pause()"'
    assert keep(tmp_path, trap, end_after_s=0) == (0, "gave back\n")
    (tmp_path / "ended").touch()
    assert keep(tmp_path, "echo started") == (0, "")


def test_the_command_prints_and_writes_everything_that_jobs_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.json").write_text(Config(**ROWS).model_dump_json())
    Path("rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    assert (
        main(["launch", "slurm", "my.json", "--sbatch", "all:--account=me", "--program", "apptainer exec a rhymed"])
        == 0
    )
    shown, out = capsys.readouterr().out, tmp_path / "mine-slurm"
    for job in ("head", "trainer", "rollout", "reward"):
        text = (out / f"{job}.sbatch").read_text()
        assert text in shown
        assert "#SBATCH --account=me" in text
        assert "apptainer exec a rhymed" in text
    for role in ("store", "broker", "trainer", "rollout", "reward"):
        assert {file.name for file in (out / "keys" / role).iterdir()} == {"public", f"{role}.secret"}
    assert main(["launch", "slurm", "my.json"]) == 2
    assert "not overwritten: " in capsys.readouterr().err
    assert main(["launch", "slurm", "my.json", "--force"]) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--first-port", "80"], "a port from 1024 to 65532 is expected"),
        (["--sbatch", "gpu:--qos=x"], "write JOB:OPTION with one of head"),
        (["-o", "net.keys=none"], "`rhymed keygen"),
        (["-o", "store.shards=2"], "store.shards is gone: one store takes"),
    ],
)
def test_mistakes_are_sentences(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    Path("my.json").write_text(Config(**ROWS).model_dump_json())
    Path("rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    assert main(["launch", "slurm", "my.json", *options]) == 2
    assert sentence in capsys.readouterr().err


SBATCH = """#!/bin/sh
case "$*" in *reward*) [ ! -e refuse ] || { echo "sbatch: error: Invalid node name specified" >&2; exit 1; } ;; esac
echo x >> jobs; wc -l < jobs
"""
SQUEUE = """#!/bin/sh
test ! -e down || { echo "squeue: error: cannot connect" >&2; exit 1; }
cat queue 2> /dev/null || true
"""
SCANCEL = """#!/bin/sh
echo "$@" > cancelled
"""


def test_a_job_that_slurm_refuses_leaves_none_of_the_run_and_a_run_is_not_submitted_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": SCANCEL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    files.write(tmp_path, slurm.scripts(Config(**TRACE), Options(tmp_path, tmp_path)), force=True)

    def submit() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", tmp_path / slurm.SUBMIT], capture_output=True, text=True)

    done = submit()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["1", "head", "2", "trainer", "3", "rollout", "4", "reward"]
    assert not (tmp_path / "cancelled").exists()
    (tmp_path / "refuse").touch()
    done = submit()
    assert done.returncode == 1
    assert "Invalid node name" in done.stderr
    assert (tmp_path / "cancelled").read_text() == "5 6 7\n"
    (tmp_path / "queue").write_text("7 run-head RUNNING\n")
    (tmp_path / "head").touch()
    done = submit()
    assert done.returncode == 1
    assert "in the queue already" in done.stderr
    assert (tmp_path / "head").exists(), "of the run that is in the queue"
    (tmp_path / "down").touch()
    done = submit()
    assert (done.returncode, done.stdout) == (1, ""), "whether it is in the queue is not known"
    assert (tmp_path / "head").exists()
