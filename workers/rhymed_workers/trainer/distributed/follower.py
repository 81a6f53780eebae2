"""The process of a rank that follows rank 0: meets it, then follows its orders until one of them dies.

python -m rhymed_workers.trainer.distributed.follower --name NAME ADDRESS NODE LOCAL EACH NODES PARENT < config.json

`Saver` writes its part of checkpoints.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import setproctitle

from rhymed.core.config import Config
from rhymed.core.errors import HOPELESS, TrainerError
from rhymed.core.run.layout import layout_of
from rhymed.core.service import logfile
from rhymed.core.service.service import EX_HOPELESS
from rhymed.core.unloadable import hide_unloadable
from rhymed_workers.trainer.distributed.seats import Seat

if TYPE_CHECKING:  # torch is imported when the process ends with its parent and has its log
    from rhymed_workers.trainer.distributed import orders
    from rhymed_workers.trainer.distributed.rendezvous import Rendezvous
    from rhymed_workers.trainer.learner import TorchLearner
    from rhymed_workers.trainer.saving import Finish

log = logging.getLogger(__name__)

# A following rank's part of checkpoints: copied in turn with its other orders, written on a thread of its own.


class Saver:
    """`rendezvous`: a connection that nothing else uses."""

    def __init__(self, rendezvous: Rendezvous, rank: int) -> None:
        self._rendezvous, self._rank = rendezvous, rank
        self._thread = ThreadPoolExecutor(1, "checkpoint")

    def save(self, learner: TorchLearner, order: orders.Save) -> None:
        """Returns when the next order may be taken. A part that cannot be written ends the process."""
        from rhymed_workers.trainer.distributed import orders

        finish = orders.snapshot(learner, Path(order.folder), self._rank, copy=order.copy)
        written = self._thread.submit(self._write, order.folder, finish)
        written.add_done_callback(self._check)

    def _write(self, folder: str, finish: Finish) -> None:
        self._rendezvous.put_digests(self._rank, folder, finish())

    def _check(self, written: Future[None]) -> None:
        if (error := written.exception()) is None:
            return
        log.error("ended: its part of a checkpoint: %s: %s", type(error).__name__, error, exc_info=error)
        self._rendezvous.fail(self._rank, error)
        logging.shutdown()
        os._exit(EX_HOPELESS if isinstance(error, HOPELESS) else 1)


# The process of the rank.

PR_SET_PDEATHSIG = 1


def main(arguments: Sequence[str]) -> int:
    _, name, address, *place = arguments
    setproctitle.setproctitle(f"rhymed {name}")
    node, local, each, nodes, parent = map(int, place)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1  # it has died already
    faulthandler.enable()
    hide_unloadable()
    config = Config.model_validate_json(sys.stdin.buffer.read())
    logfile.configure(layout_of(config).log(name), config.run.log_level)
    return _meet(config, Seat(node, local, each, nodes), address)


def _meet(config: Config, seat: Seat, address: str) -> int:
    from rhymed_workers.trainer.distributed.rendezvous import Gone, Rendezvous

    try:
        rendezvous = Rendezvous(address)
    except TrainerError as error:
        log.warning("%s", error)
        return 1
    rendezvous.beat_for(seat.rank)
    try:
        _follow(config, seat, rendezvous)
    except Gone as error:
        log.warning("rank 0 is gone: %s", error)
        return 1
    except Exception as error:
        log.error("ended: %s: %s", type(error).__name__, error, exc_info=error)
        rendezvous.fail(seat.rank, error)
        return EX_HOPELESS if isinstance(error, HOPELESS) else 1


def _follow(config: Config, seat: Seat, rendezvous: Rendezvous) -> NoReturn:
    """Never returns."""
    from rhymed_workers.trainer.distributed import orders
    from rhymed_workers.trainer.distributed.leader import check_folder, device_of, threads
    from rhymed_workers.trainer.distributed.rendezvous import join
    from rhymed_workers.trainer.learner import TorchLearner
    from rhymed_workers.trainer.ranks import Group

    device = device_of(config.trainer, seat)
    threads(config.trainer)
    check_folder(config, seat, rendezvous.generation())
    rendezvous.arrive(seat.rank)
    ranks = Group(join(rendezvous, seat, device, config.trainer.stall_s))
    log.info("rank %d of %d on %s, generation %s", seat.rank, seat.size, device, rendezvous.generation())
    learner: TorchLearner | None = None
    saver = Saver(rendezvous.again(), seat.rank)
    while True:
        order = rendezvous.take()
        if isinstance(order, orders.Load):
            learner = TorchLearner.restore(config, Path(order.folder) if order.folder else None, ranks)
            continue
        assert learner is not None, "the first order is to load"
        match order:
            case orders.Begin():
                learner.begin(order.step, orders.exchange(None))
            case orders.Train():
                learner.train(orders.exchange(None), run_steps=order.run_steps)
            case orders.Gather():
                learner.tensors()
            case orders.Save():
                saver.save(learner, order)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)
