"""Scores answers to one row with every scorer of a configuration, for `rhymed check`.

Uses the scoring process of a run, so a scorer that hangs or crashes behaves here as it would there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar

from rhymed.core.config import Config
from rhymed.inputs.rows import Row
from rhymed_workers.reward.child import item
from rhymed_workers.reward.judges import Judges
from rhymed_workers.reward.process import ScoringProcess
from rhymed_workers.reward.scorers.result import Verdict
from rhymed_workers.reward.worker import as_if_answered

Result = TypeVar("Result")

PATIENCE_S = 5.0  # for a judge: somebody waits


@dataclass(frozen=True)
class Preview:
    verdicts: list[list[Verdict]]  # of each answer, of each scorer of `reward.all`
    notes: list[str]  # how the scorers are isolated, and what they report about themselves
    whole: list[int]  # scorers that get all samples of a group in one call
    warnings: list[str]


def preview(config: Config, row: Row, answers: Sequence[str]) -> Preview:
    """Scores every answer with every scorer, also after one has failed.

    Raises `RewardError` when a scorer cannot be loaded, or a judge cannot be asked. Blocking, not for use on an event
    loop: takes as long as importing the scorers, then at most `reward.timeout_s` per scorer and answer; for a judge,
    its own `timeout_s` and `PATIENCE_S`.
    """

    async def work() -> Preview:
        return await _preview(await ScoringProcess.start_with_retries(config), config, row, answers)

    return _run(work())


async def _preview(process: ScoringProcess, config: Config, row: Row, answers: Sequence[str]) -> Preview:
    """Kills the process."""
    result = Preview([], process.notes, process.whole, process.warnings)
    try:
        async with Judges(config, patience_s=PATIENCE_S) as judges:
            for response in answers:
                shown = as_if_answered(row, response) if config.environment.active else row
                work = item(response, shown)
                result.verdicts.append([])
                for scorer in range(len(config.reward.all)):
                    if scorer in judges:
                        result.verdicts[-1].append(await judges.score(work, scorer))
                        continue
                    if not process.usable:
                        await process.kill()
                        process = await ScoringProcess.start_with_retries(config)
                    result.verdicts[-1] += await process.score([work], scorer)
    finally:
        await process.kill()
    return result


class Loading:
    """The scoring process of one preview. It loads its scorers in a daemon thread: its owner does other work, and an
    interrupt waits for nothing. Leaving the block ends it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._ready, self._result = Future[bool](), Future[Preview]()
        self._asked = Future[tuple[Row, Sequence[str]] | None]()  # None: there will be no preview
        self._thread = Thread(target=lambda: _run(self._serve()), name="scorers", daemon=True)
        self._thread.start()

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, kind: type[BaseException] | None, *ended: object) -> None:
        if not self._asked.done():
            self._asked.set_result(None)
        if kind is None and self._ready.done():
            self._thread.join()

    def loaded(self) -> bool:
        """True. Blocking. Raises `RewardError` if the scorers cannot be loaded."""
        return self._ready.result()

    def preview(self, row: Row, answers: Sequence[str]) -> Preview:
        """As `preview`. Once."""
        self._asked.set_result((row, answers))
        return self._result.result()

    async def _serve(self) -> None:
        try:
            process = await ScoringProcess.start_with_retries(self._config)
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(True)
        if asked := await asyncio.wrap_future(self._asked):
            try:
                self._result.set_result(await _preview(process, self._config, *asked))
            except BaseException as error:
                self._result.set_exception(error)
        else:
            await process.kill()


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    # asyncio warns about a process that ended and was reaped before it looked; nothing has configured a log yet
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    return asyncio.run(work)
