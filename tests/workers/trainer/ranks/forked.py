"""Ranks over gloo as forked processes of one interpreter, which imports torch once for all tests of a session.

    python -m tests.workers.trainer.ranks.forked

It reads a line of jobs and answers with a line of what they reported, until its input ends. A job trains some steps
with some ranks and saves a checkpoint: see `Job`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

MODULE = "tests.workers.trainer.ranks.forked"
ROOT = Path(__file__).parents[4]
ROW = {"prompt": "What is 2+2?", "answer": "4"}  # of all samples; for teachers that are shown more


@dataclass
class Job:
    ranks: int
    config: dict[str, Any]
    out: str  # folder of the checkpoint
    start: str = ""  # folder of the checkpoint that it starts from
    first: int = 0
    last: int = 10
    begin: int = 0  # samples of each step that are given before the step: whole groups
    metrics: list[dict[str, float]] = field(default_factory=list)  # of every step, filled in


class Forker:
    """The interpreter. It ends with this process, and with the first job that fails."""

    def __init__(self) -> None:
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [sys.executable, "-m", MODULE]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=ROOT
        )
        atexit.register(self.close)

    def run(self, jobs: Sequence[Job], timeout_s: float) -> list[Job]:
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([asdict(job) for job in jobs]), file=self._process.stdin, flush=True)
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self.close()
            self._log.seek(0)
            raise AssertionError(f"{'' if ready else f'no answer within {timeout_s} s'}{self._log.read()[-4000:]}")
        return [Job(**job) for job in json.loads(line)]

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


_forkers: list[Forker] = []


def train(jobs: Sequence[Job], timeout_s: float = 280) -> list[Job]:
    """One after another; returns them with their metrics."""
    if not _forkers or _forkers[-1].over:
        _forkers.append(Forker())
    return _forkers[-1].run(jobs, timeout_s)


def enter(count: int, rank: int, rendezvous: str) -> Any:
    """The ranks as the learner sees them. `rendezvous`: a file that they share."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from rhymed_workers.trainer.ranks import ALONE, Group

    if count == 1:
        return ALONE
    torch.distributed.init_process_group(
        "cpu:gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=120),
    )
    return Group(init_device_mesh("cpu", (count,)))


def _rank(job: Job, rank: int, rendezvous: str) -> None:
    import torch

    from rhymed.core.config import Config
    from rhymed_workers.trainer.learner import TorchLearner
    from tests.workers.trainer.test_learner import samples

    ranks = enter(job.ranks, rank, rendezvous)
    learner = TorchLearner.restore(Config.model_validate(job.config), Path(job.start) if job.start else None, ranks)
    for number in range(job.first, job.last):
        step = [replace(sample, row=ROW) for sample in samples(number)]
        if job.begin:
            learner.begin(number, step[-job.begin :])
        job.metrics.append(learner.train(step, run_steps=job.last))
    out = Path(job.out)
    if rank == 0:
        out.mkdir()
    ranks.sum([0.0])  # it is there
    learner.save(out)
    published = learner.tensors()
    if rank == 0:
        torch.save({name: tensor.clone() for name, tensor in published.items()}, out / "published.pt")
        (out / "metrics.json").write_text(json.dumps(job.metrics))
    else:
        assert not published, "only the first rank holds whole weights"
    ranks.sum([0.0])


def fork(count: int, work: Callable[[int, str], None]) -> None:
    """Each rank is a child that does `work` with its number and the file where all meet. One that fails ends this."""
    children = []
    with tempfile.TemporaryDirectory() as folder:
        for rank in range(count):
            child = os.fork()
            if child == 0:
                try:
                    work(rank, f"{folder}/rendezvous")
                except BaseException:
                    import traceback

                    traceback.print_exc()
                    os._exit(1)
                os._exit(0)
            children.append(child)
        failed = False
        while children:
            child, status = os.wait()
            children.remove(child)
            if status and not failed:
                failed = True
                for other in children:
                    os.kill(other, 9)
    if failed:
        sys.exit(1)


def _run(job: Job) -> None:
    fork(job.ranks, partial(_rank, job))
    job.metrics = json.loads((Path(job.out) / "metrics.json").read_text())


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what jobs print is no answer
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import transformers.models.llama.modeling_llama  # noqa: F401

    import rhymed_workers.trainer.learner  # noqa: F401
    import tests.workers.trainer.test_learner  # noqa: F401

    torch.set_num_threads(1)
    for line in sys.stdin:
        jobs = [Job(**job) for job in json.loads(line)]
        if any("lora" in job.config["trainer"] for job in jobs):
            import peft  # noqa: F401
        for job in jobs:
            _run(job)
        print(json.dumps([asdict(job) for job in jobs]), file=answers, flush=True)


if __name__ == "__main__":
    main()
