"""The ranks of one node that is not rank 0's: `rhymed worker --role trainer --node N`.

They follow one rank 0 after another: when one ends, its ranks here end with it, and new ones wait for the next.
Knows neither broker nor store; rank 0 is at `net.ranks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from urllib.parse import urlsplit

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.service.children import exit_reason
from rhymed.core.service.service import EX_HOPELESS, Service
from rhymed_workers.trainer.distributed.leader import Followers
from rhymed_workers.trainer.distributed.seats import seats

log = logging.getLogger(__name__)

AGAIN_S = 2.0  # after rank 0 has ended, or could not be reached


class TrainerNode(Service):
    def __init__(self, config: Config, node: int, name: str) -> None:
        """Raises `ConfigError` for a node that the trainer does not have."""
        super().__init__(name)
        if not 0 < node < config.trainer.nodes:
            have = f"1 to {config.trainer.nodes - 1}" if config.trainer.nodes > 1 else "only the trainer's own"
            raise ConfigError(
                f"--node {node}: trainer.nodes = {config.trainer.nodes}, so there is {have}; node 0 is the trainer"
                " itself, without --node"
            )
        self._config, self._node = config, node
        self._followers: Followers | None = None

    async def open(self) -> None:
        self.spawn(self._follow())

    async def close(self) -> None:
        if self._followers:
            self._followers.close()

    async def _follow(self) -> None:
        """Raises `ConfigError` if a rank cannot work here."""
        where = self._config.net.ranks
        while True:
            await self._wait_for_trainer(where)
            self._followers = Followers(self._config, where, seats(self._config.trainer, self._node))
            rank, status = await self._followers.first_ended()
            self._followers.close()
            if status == EX_HOPELESS:
                raise ConfigError(f"rank {rank} of the trainer cannot work here: its reason is in trainer-{rank}.log")
            log.warning("rank %d of the trainer ended (%s): waiting for the next rank 0", rank, exit_reason(status))
            await asyncio.sleep(AGAIN_S)

    async def _wait_for_trainer(self, where: str) -> None:
        """Without a deadline: rank 0 may start much later."""
        parts = urlsplit(where)
        log.info("waiting for rank 0 of the trainer at %s", where)
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(parts.hostname, parts.port)
                writer.close()
                return
            await asyncio.sleep(AGAIN_S)
