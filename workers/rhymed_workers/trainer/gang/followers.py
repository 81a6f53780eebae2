"""Ranks as child processes of this one: on rank 0's node those besides rank 0, on another node all of its ranks."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from rhymed.config import Config
from rhymed_workers.trainer.gang.size import Seat

LOOK_S = 0.2
MODULE = "rhymed_workers.trainer.gang.follower"


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
