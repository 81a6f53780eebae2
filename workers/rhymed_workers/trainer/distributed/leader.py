"""Rank 0, which leads the others: starts the followers of its node, waits for all ranks, and sees when one dies.

A group of ranks is never repaired: with one dead the process of rank 0 ends with an error, and what restarts it
starts all of them. The newest checkpoint, the store's samples and the broker's journal are what is left; nothing is
generated again. `generation` distinguishes the logs of one group from those of the next.

`Leader` is rank 0's side; `Followers` starts the processes of a node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.core.config import Config, Trainer
from rhymed.core.errors import CheckpointError, ConfigError, RhymedError, TrainerError
from rhymed.core.run.layout import layout_of
from rhymed.core.service.children import exit_reason
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.distributed import orders
from rhymed_workers.trainer.distributed.orders import Order
from rhymed_workers.trainer.distributed.rendezvous import Gone, Rendezvous, join, listen
from rhymed_workers.trainer.distributed.seats import Seat, seats, too_few
from rhymed_workers.trainer.learner import TorchLearner
from rhymed_workers.trainer.ranks import LONG, Group
from rhymed_workers.trainer.samples import Progress
from rhymed_workers.trainer.saving import Finish

log = logging.getLogger(__name__)

# Ranks as child processes of this one: on rank 0's node those besides rank 0, on another node all of its ranks.

MODULE = "rhymed_workers.trainer.distributed.follower"


@dataclass(frozen=True)
class Follower:
    seat: Seat
    process: subprocess.Popen[bytes]


class Followers:
    """They end with this process, and all at once by `close`."""

    def __init__(self, config: Config, address: str, seats: Sequence[Seat]) -> None:
        """Call it on the main thread: children die with the thread that started them."""
        self._all = [Follower(seat, _start(address, seat)) for seat in seats]
        for one in self._all:
            assert one.process.stdin is not None, "it is a pipe"
            with one.process.stdin as stream:
                stream.write(config.model_dump_json().encode())

    def ended(self) -> tuple[int, int] | None:
        """Rank and exit status of one that has ended; one that failed by itself rather than one that lost others."""
        found = [(one.seat.rank, status) for one in self._all if (status := one.process.poll()) is not None]
        return min(found, key=lambda one: one[1] == 1) if found else None

    async def first_ended(self) -> tuple[int, int]:
        while True:
            await asyncio.sleep(LOOK_S)
            if found := self.ended():
                return found

    def close(self) -> None:
        for one in self._all:
            one.process.kill()
        for one in self._all:
            one.process.wait()


def _start(address: str, seat: Seat) -> subprocess.Popen[bytes]:
    place = [str(number) for number in (seat.node, seat.local, seat.each, seat.nodes, os.getpid())]
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, "--name", f"trainer-{seat.rank}", address, *place],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )


# Rank 0.

LOOK_S = 0.2
LOST_S = 2.0
JOIN_S = 600.0  # for all ranks to arrive
REMIND_S = 30.0
SILENT_S = 60.0  # of a rank on another machine; a process that dies closes its connections, which shows at once


class Leader:
    def __init__(self, config: Config, generation: str) -> None:
        """Starts the processes; call it on the main thread. Raises `ConfigError`, `TrainerError`."""
        self._config = config
        self._seat, *others = seats(config.trainer, 0)
        self._device = device_of(config.trainer, self._seat)
        listener, self.address = listen(config.net.ranks, config.net.bind)
        self._rendezvous = Rendezvous(self.address, listener)
        self._rendezvous.begin(generation)
        self._token = token_of(config, generation)
        if self._seat.nodes > 1:
            self._token.parent.mkdir(parents=True, exist_ok=True)
            for left in self._token.parent.glob(f"{TOKEN}*"):  # of a leader that was killed
                left.unlink(missing_ok=True)
            self._token.touch()
        self._watched, self._saving = self._rendezvous.again(), self._rendezvous.again()
        try:
            self._followers = Followers(config, self.address, others)
        except BaseException:
            self._token.unlink(missing_ok=True)
            raise
        self._heard: dict[int, tuple[int, float]] = {}  # ranks elsewhere: signs of life, when last
        self._closed = False

    @property
    def size(self) -> int:
        return self._seat.size

    def close(self) -> None:
        """Ends all ranks but this one."""
        self._closed = True
        self._token.unlink(missing_ok=True)
        self._followers.close()

    async def watch(self) -> None:
        """Raises the error of the first rank that dies."""
        while True:
            await asyncio.sleep(LOOK_S)
            if error := self._problem():
                raise error

    def enter(self) -> Group:
        """Waits for all ranks. Blocking. Raises `TrainerError`."""
        threads(self._config.trainer)
        self._rendezvous.arrive(0)
        try:
            self._wait_for_all()
        finally:
            self._token.unlink(missing_ok=True)
        return Group(join(self._rendezvous, self._seat, self._device, self._config.trainer.stall_s))

    def order(self, order: Order) -> None:
        self._rendezvous.give(order)

    def digests(self, folder: Path) -> dict[str, str]:
        """Of the files that the other ranks write there, when they have. Raises `TrainerError`."""
        return self._saving.get_digests(self.size, str(folder), LONG)

    def lost(self) -> RhymedError | None:
        """Which rank's death an exchange may have failed of, if one is seen within a moment. Blocking."""
        until = time.monotonic() + LOST_S
        while (error := self._problem()) is None and time.monotonic() < until:
            time.sleep(LOOK_S)
        return error

    def _wait_for_all(self) -> None:
        started = reminded = time.monotonic()
        while len(here := self._rendezvous.arrived(self.size)) < self.size:
            now, missing = time.monotonic(), sorted(set(range(self.size)) - set(here))
            nodes = sorted({rank // self._seat.each for rank in missing} - {0})
            start = "; start there: " + ", ".join(f"rhymed worker --role trainer --node {node}" for node in nodes)
            waiting = f"ranks {', '.join(map(str, missing))} of the trainer are missing{start if nodes else ''}"
            if now - started > JOIN_S:
                raise TrainerError(f"{waiting}: waited {JOIN_S:g} s for them at {self.address}")
            if now - reminded > REMIND_S:
                log.info("%s", waiting)
                reminded = now
            time.sleep(LOOK_S)

    def _problem(self) -> RhymedError | None:
        if self._closed:
            return None
        if ended := self._followers.ended():
            rank, status = ended
            return self._watched.error_of(rank) or TrainerError(
                f"rank {rank} of the trainer ended ({exit_reason(status)}): all ranks begin again at the newest"
                " checkpoint"
            )
        return self._silent()

    def _silent(self) -> RhymedError | None:
        """A rank on another node that has been silent for too long."""
        now = time.monotonic()
        for rank in range(self._seat.each, self.size):
            beats, before = self._watched.beats_of(rank), self._heard.get(rank)
            if beats and (before is None or beats != before[0]):
                self._heard[rank] = beats, now
            elif before is not None and now - before[1] > SILENT_S:
                return self._watched.error_of(rank) or TrainerError(
                    f"rank {rank} of the trainer has been silent for {SILENT_S:g} s: all ranks begin again at the"
                    " newest checkpoint"
                )
        return None


# The device and the threads of a rank, and what is wrong with the number of ranks on this machine.


def device_of(trainer: Trainer, seat: Seat) -> Any:
    """Raises `ConfigError` if there are fewer devices than ranks."""
    import torch

    if trainer.device == "cpu":
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if found < seat.each:
        raise ConfigError(too_few(seat.each, found))
    return torch.device("cuda", seat.local)


TOKEN = ".ranks-"


def token_of(config: Config, generation: str) -> Path:
    """A file of rank 0 while ranks arrive, by which those of other nodes see that they share its folder."""
    return layout_of(config).folder / f"{TOKEN}{generation}"


def check_folder(config: Config, seat: Seat, generation: str) -> None:
    """Raises `ConfigError` on a node without the run's folder: it could write no part of a checkpoint."""
    if seat.node and not token_of(config, generation).exists():
        raise ConfigError(
            f"run.folder: {layout_of(config).folder} on node {seat.node} is not the folder of the trainer's node: put"
            " it on a file system that all nodes share"
        )


def threads(trainer: Trainer) -> None:
    """Ranks on one machine share its processors, unless `trainer.threads` is set."""
    import torch

    if not trainer.threads and trainer.device == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // trainer.ranks_per_node))


# The learner of several ranks as the trainer's service sees it: every call becomes an order to all ranks.


class DistributedLearner:
    """Rank 0's. An error in any method leaves the ranks at different places, so all of them have to end."""

    def __init__(self, leader: Leader, learner: TorchLearner) -> None:
        self._leader, self._learner = leader, learner
        self.reads_logprobs, self.reads_rows = learner.reads_logprobs, learner.reads_rows
        self.dtype = learner.dtype

    @classmethod
    def restore(cls, config: Config, folder: Path | None, leader: Leader) -> DistributedLearner:
        """From a checkpoint's folder, or without one from the model. Raises `CheckpointError`, `ConfigError`."""
        ranks = leader.enter()
        leader.order(orders.Load(str(folder) if folder else None))
        return cls(leader, TorchLearner.restore(config, folder, ranks))

    def __str__(self) -> str:
        return f"{self._learner} on {self._leader.size} ranks"

    @property
    def steps(self) -> int:
        return self._learner.steps

    def allowed(self, step: int, samples: Sequence[StoredSample]) -> list[StoredSample]:
        return self._learner.allowed(step, samples)

    def begin(self, step: int, samples: Sequence[StoredSample], progress: Progress) -> None:
        with self._exchanges():
            self._leader.order(orders.Begin(step))
            orders.exchange(samples)
            self._learner.begin(step, samples, progress)

    def train(self, samples: Sequence[StoredSample], progress: Progress, run_steps: int) -> dict[str, float]:
        with self._exchanges():
            self._leader.order(orders.Train(run_steps))
            orders.exchange(samples)
            return self._learner.train(samples, progress, run_steps)

    def tensors(self) -> dict[str, Any]:
        with self._exchanges():
            self._leader.order(orders.Gather())
            return self._learner.tensors()

    def metadata(self) -> dict[str, str]:
        return self._learner.metadata()

    def digest(self) -> str:
        return self._learner.digest()

    def snapshot(self, folder: Path, *, copy: bool) -> Finish:
        """Each rank writes its part, and computes the digests of its files."""
        with self._exchanges():
            self._leader.order(orders.Save(str(folder), copy))
            finish = orders.snapshot(self._learner, folder, 0, copy=copy)
        written = list[str]()

        def finish_once() -> dict[str, str]:
            if written:  # the other ranks would not come
                raise CheckpointError(
                    f"{folder} cannot be written a second time by one of several ranks, so all of them begin again:"
                    " the log says why the first time failed"
                )
            written.append(str(folder))
            return self._finish(folder, finish)

        return finish_once

    def _finish(self, folder: Path, finish: Finish) -> dict[str, str]:
        with self._exchanges():
            mine, others = finish(), self._leader.digests(folder)
        if missing := [name for name in others if not (folder / name).is_file()]:
            raise CheckpointError(
                f"{folder / missing[0]} was written by another rank and is not here: put run.folder on a file system"
                " that all nodes share"
            )
        return {**mine, **others}

    @contextlib.contextmanager
    def _exchanges(self) -> Iterator[None]:
        """Raises `TrainerError` where tensors could not be exchanged."""
        try:
            yield
        except RuntimeError as error:  # gloo's are of no other kind
            if loss := self._leader.lost():
                raise loss from error
            if isinstance(error, Gone) or "gloo" in str(error):
                raise TrainerError(f"a rank of the trainer is lost: {str(error).splitlines()[0]}") from error
            raise
