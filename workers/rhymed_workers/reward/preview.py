"""Answers to one row through every scorer of a configuration, for people who want to see it before a run.

Uses the same subprocess as a run does, so that a scorer that hangs or crashes does here what it would do there.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

from rhymed.config import Config
from rhymed.inputs.rows import Row
from rhymed_workers.reward.process import Child
from rhymed_workers.scoring.child import item
from rhymed_workers.scoring.verdict import Verdict


def try_scorers(
    config: Config, row: Row, answers: Sequence[tuple[str, Sequence[int]]], said: list[str] | None = None
) -> list[list[Verdict]]:
    """For each answer a verdict of each of `config.reward.all`, in their order, also when one of them fails.

    An answer is a response's text and its tokens. What holds the scorers, and what they say about themselves, is
    added to `said`. Raises `RewardError` when a scorer cannot be loaded. Takes as long
    as importing the scorers does, and at most `reward.timeout_s` a scorer and answer after that. Not for use on an
    event loop.
    """
    return asyncio.run(_try(config, row, answers, [] if said is None else said))


async def _try(
    config: Config, row: Row, answers: Sequence[tuple[str, Sequence[int]]], said: list[str]
) -> list[list[Verdict]]:
    """In one process as long as no scorer kills it."""
    child = await Child.start_patiently(config)
    said += child.said
    found: list[list[Verdict]] = []
    try:
        for response, tokens in answers:
            work = item(response, row, array("I", tokens).tobytes())
            found.append([])
            for number in range(len(config.reward.all)):
                if not child.usable:
                    child = await Child.start_patiently(config)
                found[-1].append(await child.score(work, number))
    finally:
        await child.kill()
    return found
