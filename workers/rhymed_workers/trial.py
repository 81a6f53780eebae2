"""One answer through every scorer of a configuration, for people who want to see it before a run.

Uses the same subprocess as a run does, so that a scorer that hangs or crashes does here what it would do there.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from rhymed.config import Config
from rhymed.data import Row
from rhymed_workers.child import item
from rhymed_workers.outcome import Verdict
from rhymed_workers.pool import Child


def try_scorers(config: Config, response: str, row: Row, tokens: Sequence[int] = ()) -> list[Verdict]:
    """A verdict for each of `config.reward.all`, in their order, also when one of them fails.

    `tokens` are the response's. Raises `RewardError` when a scorer cannot be loaded. Takes as long as importing the
    scorers does, and at most `reward.timeout_s` a scorer after that. Not for use on an event loop.
    """
    return asyncio.run(_try(config, response, row, tokens))


async def _try(config: Config, response: str, row: Row, tokens: Sequence[int]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    work = item(response, row, array("I", tokens).tobytes())
    child = await Child.start(config)
    try:
        for number in range(len(config.reward.all)):
            if not child.usable:
                child = await Child.start(config)
            verdicts.append(await child.score(work, number))
    finally:
        await child.kill()
    return verdicts
