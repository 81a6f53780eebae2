"""Jobs of Slurm, run by a shell with a program that only notes what it was called for, or fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.placement import slurm
from rhymed.placement.slurm import Options

PROGRAM = """#!/bin/sh
# $1: store, broker or upload. Ends, when all are there, with the status in the file of that name, or when told to.
cd "$(dirname "$0")" || exit 9
trap 'echo "$1 was told" >> called; exit 0' TERM
echo "$*" >> called
until [ "$(wc -l < called)" -ge "$(cat all)" ] && [ -e "$1.$2" -o -e "$1" ]; do sleep 0.02; done
exit "$(cat "$1.$2" "$1" 2> /dev/null)"
"""


def head(folder: Path, statuses: dict[str, int], *, remote: str = "s3://bucket/runs") -> tuple[int, list[str], str]:
    """Status of the job, what was called, and its errors. `statuses`: of what ends by itself."""
    folder.mkdir()
    (folder / "program").write_text(PROGRAM)
    (folder / "program").chmod(0o755)
    for name, content in {"all": 3 if remote else 2, **statuses}.items():
        (folder / name).write_text(f"{content}")
    config = Config(run={"remote": remote})
    options = Options(folder, folder, (str(folder / "program"),))
    script = slurm.scripts(config, options)["head.sbatch"]
    fast = f"sleep() {{ command sleep 0.05; }}; {script}"
    done = subprocess.run(["bash", "-c", fast], capture_output=True, text=True, timeout=60)
    called = (folder / "called").read_text().replace(f"{folder}/", "").splitlines()
    return done.returncode, called, done.stderr


def test_the_copy_is_kept_up_next_to_the_store_and_completed_at_the_end_of_the_run(tmp_path: Path) -> None:
    status, called, _ = head(tmp_path / "job", {"broker": 0, "upload.--once": 0})
    assert status == 0
    assert {"store config.json", "broker config.json", "upload --take-over config.json"} <= set(called)
    assert set(called[-3:-1]) == {"store was told", "upload was told"}
    assert called[-1] == "upload --once config.json"
    assert (tmp_path / "job" / "ended").exists()


def test_without_a_copy_nothing_is_uploaded(tmp_path: Path) -> None:
    status, called, errors = head(tmp_path / "job", {"broker": 0}, remote="")
    assert (status, sorted(called)) == (0, ["broker config.json", "store config.json", "store was told"])
    assert errors == ""


@pytest.mark.parametrize("lost", ["store", "upload"])
def test_a_store_that_only_a_person_can_cure_or_another_head_ends_the_run(tmp_path: Path, lost: str) -> None:
    status, called, errors = head(tmp_path / "job", {lost: 2})
    assert status == 2
    assert f"the run ends because {lost.replace('upload', 'uploader')} did, with status 2" in errors
    assert "broker was told" in called
    assert (tmp_path / "job" / "ended").exists(), "the other jobs end with it"
    assert "upload --once config.json" not in called


WORKERS = {"rollout": {"engine": "trace"}, "trainer": {"engine": "trace"}, "reward": {"workers": 2}}


def worker(folder: Path, job: str, program: str, element: int = 0) -> int:
    """Status of a worker's job, whose program is this shell script."""
    folder.mkdir(exist_ok=True)
    (folder / "head").write_text("here")
    script = slurm.scripts(Config(**WORKERS), Options(folder, folder, ("sh", "-c", program)))[f"{job}.sbatch"]
    environ = {"PATH": "/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": f"{element}"}
    return subprocess.run(["bash", "-c", f"sleep() {{ :; }}; {script}"], env=environ, timeout=60).returncode


def test_a_trainer_that_only_a_person_can_cure_ends_the_run(tmp_path: Path) -> None:
    assert worker(tmp_path, "trainer", "exit 1") == 1
    assert not (tmp_path / "ended").exists()
    assert worker(tmp_path, "trainer", "exit 2") == 2
    assert (tmp_path / "ended").read_text() == "2 trainer-0\n"
    assert worker(tmp_path, "rollout", f"touch {tmp_path}/started") == 0
    assert not (tmp_path / "started").exists()


def test_workers_of_a_run_that_another_one_has_ended_leave(tmp_path: Path) -> None:
    ends = f"trap 'touch {tmp_path}/left; exit 0' TERM; echo 2 trainer-0 > {tmp_path}/ended"
    assert worker(tmp_path, "rollout", f"{ends}; while :; do sleep 0.02; done") == 0
    assert (tmp_path / "left").exists()
    assert not (tmp_path / "failed" / "rollout-0").exists()


def test_a_worker_that_started_when_the_broker_had_just_left_does_not_wait_for_it_and_a_trainer_may_save(
    tmp_path: Path,
) -> None:
    waits = f"trap 'touch {tmp_path}/left; exit 0' TERM; touch {tmp_path}/ended"
    assert worker(tmp_path, "rollout", f"{waits}; while :; do sleep 0.02; done") == 0
    assert (tmp_path / "left").exists()
    (tmp_path / "left").unlink()
    (tmp_path / "ended").unlink()
    assert worker(tmp_path, "trainer", f"{waits}; sleep 0.5; exit 0") == 0
    assert not (tmp_path / "left").exists()


def test_elements_of_an_array_end_the_run_when_as_many_as_were_asked_for_cannot_be_cured(tmp_path: Path) -> None:
    assert worker(tmp_path, "reward", "exit 2", element=0) == 2
    assert worker(tmp_path, "reward", "exit 2", element=0) == 2
    assert worker(tmp_path, "rollout", "exit 0") == 0
    assert worker(tmp_path, "reward", "exit 0", element=0) == 0, "somebody has cured this one"
    assert worker(tmp_path, "reward", "exit 2", element=7) == 2
    assert not (tmp_path / "ended").exists()
    assert worker(tmp_path, "reward", "exit 2", element=1) == 2
    assert (tmp_path / "ended").read_text() == "2 reward-1\n"


def test_the_head_ends_with_a_worker_that_ended_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    ends = f"until [ -e {folder}/called ]; do sleep 0.02; done; echo 2 trainer-0 > {folder}/ended"
    with subprocess.Popen(["sh", "-c", ends]) as other:
        status, called, errors = head(folder, {})
    assert other.returncode == 0
    assert (status, "broker was told" in called, "upload --once config.json" in called) == (2, True, False)
    assert "the run ends because trainer-0 did, with status 2: its output in" in errors


def test_a_copy_that_cannot_be_completed_is_no_success(tmp_path: Path) -> None:
    assert head(tmp_path / "job", {"broker": 0, "upload.--once": 1})[0] == 1


def test_a_second_head_of_a_run_waits_for_the_first_and_no_job_ends_because_an_earlier_run_did(
    tmp_path: Path,
) -> None:
    texts = slurm.scripts(Config(), Options(tmp_path, tmp_path))
    assert "#SBATCH --dependency=singleton\n" in texts["head.sbatch"]
    assert not any("singleton" in text for name, text in texts.items() if name != "head.sbatch")
    for name in ("ended", "head"):
        (tmp_path / name).touch()
    for tool, says in (("sbatch", "echo 1"), ("squeue", "true")):
        (tmp_path / tool).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / tool).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh", "-c", texts[slurm.SUBMIT]], env=environ, check=True, stdout=subprocess.DEVNULL)
    assert not (tmp_path / "ended").exists()
    assert not (tmp_path / "head").exists()
