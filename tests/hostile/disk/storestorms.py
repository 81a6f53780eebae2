"""A store under load on a failing disk: what it acknowledged must be there, what it refused it refused in words."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path
from typing import Any

import uvloop

from rhymed.core.config import Config
from rhymed.core.errors import RhymedError
from rhymed_store.client import StoreClient
from tests.hostile.crash import StoreHistory, Tally, zygote
from tests.hostile.disk import interposed
from tests.hostile.disk.cuts import MAP_GIB
from tests.hostile.disk.interposed import Faults

RATES = (20_000, 200_000, 1_000_000)  # of a million system calls
STORM_S, CALM_S = 0.3, 0.3  # at most
MOST_SAMPLES, SAMPLES_A_TRY = 2_700, 30  # of one caller and store
FAULT_S = 15.0  # a storm lasts until there was a fault, at most this long
AT_START = 0.3  # share of the stores whose disk fails while they start


class StormyHistory(StoreHistory):
    """Each store process has one storm, then some time without; then it is killed, and all is compared."""

    EARLY = 0.0

    def __init__(self, *arguments: Any, faults: Faults) -> None:
        super().__init__(*arguments)
        self._faults = faults

    def _fork(self) -> int:
        if self._rng.random() < AT_START:
            self._faults.set(self._rng.choice(RATES))
        return super()._fork()

    async def _work(self, client: StoreClient, step: int, number: int, first: int = 0) -> None:
        """A caller that is refused tries again."""
        for again in range(first, MOST_SAMPLES, SAMPLES_A_TRY):
            try:
                await super()._work(client, step, number, again)
            except RhymedError as error:
                self.ends.append(error)
            await asyncio.sleep(0.02)

    async def started(self) -> bool:
        """A store that cannot start ends with a sentence; on a disk that works it is started again."""
        if self._faults.is_storm:
            await asyncio.sleep(self._rng.uniform(0, 2 * STORM_S))
            self._faults.set(0)
            return False
        return await super().started()

    async def under_load(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, CALM_S))
        earlier, until = self._faults.counts(), time.monotonic() + FAULT_S
        self._faults.set(self._rng.choice(RATES))
        await asyncio.sleep(self._rng.uniform(0, STORM_S))
        while self._faults.counts() == earlier and time.monotonic() < until:
            await asyncio.sleep(0.02)
        self._faults.set(0)
        await asyncio.sleep(self._rng.uniform(0, CALM_S))


def storms_of_store(folder: Path, library: Path, storms: int, seed: int) -> tuple[Tally, list[str], dict[str, int]]:
    """`folder`: an empty one, for this alone. Returns also what was lost, and the faults by kind."""
    tally, faults = Tally(), Faults(folder / "faults", seed)
    root, output = folder / "disk", folder / "stores.log"
    root.mkdir()
    store = {"map_gib": MAP_GIB, "durability": "sync"}
    config = Config.model_validate({"run": {"folder": str(folder), "name": root.name}, "store": store})
    with zygote(output, interposed.environment(library, root, faults=faults.file)) as stores:
        history = StormyHistory(config, stores, random.Random(seed), tally, faults=faults)
        uvloop.run(history.play(storms))
    lost = [f"store, seed {seed}: {line}" for line in tally.lost]
    lost += [
        f"a client got {end!r}" for end in history.ends if not isinstance(end, RhymedError | asyncio.CancelledError)
    ]
    if "Fatal Python error" in (said := output.read_text(errors="replace")):
        lost.append(f"a store process was ended by a signal: {said[-3000:]}")
    return tally, lost, faults.counts()
