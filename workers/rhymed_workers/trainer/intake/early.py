"""Groups of the next step on their way to the learner, one by one, until the whole step comes.

Without torch: the trainer's service imports it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from rhymed.errors import RhymedError
from rhymed.messages import BeginGroups
from rhymed_store.client import StoredSample
from rhymed_workers.trainer.intake.fetch import Fetch
from rhymed_workers.trainer.samples import groups_of

log = logging.getLogger(__name__)


class Early:
    def __init__(
        self,
        fetch: Fetch,
        turn: asyncio.Lock,
        wanted: Callable[[int], bool],
        compute: Callable[[int, list[StoredSample]], Awaitable[None]],
    ) -> None:
        """`turn`: is held while a group is computed. `wanted`: whether this step is the next one and not here yet."""
        self._fetch, self._turn, self._wanted, self._compute = fetch, turn, wanted, compute

    async def take(self, order: BeginGroups) -> None:
        """Groups that cannot be read are left to the step. Raises what `compute` raises."""
        if not self._wanted(order.step):
            return
        try:
            fetched = await self._fetch.samples(order.step, order.samples)
        except RhymedError as error:
            log.info("groups of step %d are not computed before the others: %s", order.step + 1, error)
            return
        for group in groups_of(fetched.samples).values():
            async with self._turn:
                if self._wanted(order.step):
                    await self._compute(order.step, group)
