"""The process of a rank that follows rank 0: meets it, then follows its orders until one of them dies.

python -m rhymed_workers.trainer.gang.follower --name NAME ADDRESS NODE LOCAL EACH NODES PARENT < config.json
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import setproctitle

from rhymed.config import Config
from rhymed.errors import HOPELESS
from rhymed.run.layout import layout_of
from rhymed.service import logfile
from rhymed.service.service import EX_HOPELESS
from rhymed.unloadable import hide_unloadable
from rhymed_workers.trainer.gang.size import Seat

if TYPE_CHECKING:
    from rhymed_workers.trainer.gang.meeting import Meeting

log = logging.getLogger(__name__)

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
    from rhymed_workers.trainer.gang.meeting import Gone, Meeting

    try:
        meeting = Meeting(address)
    except Gone as error:
        log.warning("%s", error)
        return 1
    meeting.beat_for(seat.rank)
    try:
        _follow(config, seat, meeting)
    except Gone as error:
        log.warning("rank 0 is gone: %s", error)
        return 1
    except Exception as error:
        log.error("ended: %s: %s", type(error).__name__, error, exc_info=error)
        meeting.fail(seat.rank, error)
        return EX_HOPELESS if isinstance(error, HOPELESS) else 1


def _follow(config: Config, seat: Seat, meeting: Meeting) -> NoReturn:
    """Never returns."""
    from rhymed_workers.trainer.gang import orders, work
    from rhymed_workers.trainer.gang.meeting import join
    from rhymed_workers.trainer.gang.place import check_folder, device_of, threads
    from rhymed_workers.trainer.gang.saver import Saver
    from rhymed_workers.trainer.learner import TorchLearner
    from rhymed_workers.trainer.ranks.group import Group

    device = device_of(config.trainer, seat)
    threads(config.trainer)
    check_folder(config, seat, meeting.generation())
    meeting.arrive(seat.rank)
    ranks = Group(join(meeting, seat, device, config.trainer.stall_s))
    log.info("rank %d of %d on %s, generation %s", seat.rank, seat.size, device, meeting.generation())
    learner: TorchLearner | None = None
    saver = Saver(meeting.again(), seat.rank)
    while True:
        order = meeting.take()
        if isinstance(order, orders.Load):
            learner = TorchLearner.restore(config, Path(order.folder) if order.folder else None, ranks)
            continue
        assert learner is not None, "the first order is to load"
        match order:
            case orders.Begin():
                learner.begin(order.step, work.exchange(None))
            case orders.Train():
                learner.train(work.exchange(None), run_steps=order.run_steps)
            case orders.Gather():
                learner.tensors()
            case orders.Save():
                saver.save(learner, order)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    logging.shutdown()
    os._exit(status)
