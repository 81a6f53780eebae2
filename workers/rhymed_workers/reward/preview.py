"""Scores answers to one row with every scorer of a configuration, for `rhymed check`.

Uses the scoring process of a run, so a scorer that hangs or crashes behaves here as it would there.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from rhymed.config import Config
from rhymed.inputs.rows import Row
from rhymed_workers.reward.process import ScoringProcess
from rhymed_workers.scoring.child import item
from rhymed_workers.scoring.verdict import Verdict

Result = TypeVar("Result")


@dataclass(frozen=True)
class Preview:
    verdicts: list[list[Verdict]]  # of each answer, of each scorer of `reward.all`
    notes: list[str]  # how the scorers are isolated, and what they report about themselves
    warnings: list[str]


def preview(config: Config, row: Row, answers: Sequence[tuple[str, Sequence[int]]]) -> Preview:
    """Scores every answer (text, tokens) with every scorer, also after one has failed.

    Raises `RewardError` when a scorer cannot be loaded. Blocking, not for use on an event loop: takes as long as
    importing the scorers, then at most `reward.timeout_s` per scorer and answer.
    """
    return _run(_preview(config, row, answers))


async def _preview(config: Config, row: Row, answers: Sequence[tuple[str, Sequence[int]]]) -> Preview:
    process = await ScoringProcess.start_with_retries(config)
    result = Preview([], process.notes, process.warnings)
    try:
        for response, tokens in answers:
            work = item(response, row, array("I", tokens).tobytes())
            result.verdicts.append([])
            for scorer in range(len(config.reward.all)):
                if not process.usable:
                    await process.kill()
                    process = await ScoringProcess.start_with_retries(config)
                result.verdicts[-1].append(await process.score(work, scorer))
    finally:
        await process.kill()
    return result


def check_scorers(config: Config) -> None:
    """Load the scorers and unload them. Blocking. Raises `RewardError` if the scorers cannot be loaded."""

    async def load() -> None:
        await (await ScoringProcess.start_with_retries(config)).kill()

    _run(load())


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    # asyncio warns about a process that ended and was reaped before it looked; nothing has configured a log yet
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    return asyncio.run(work)
