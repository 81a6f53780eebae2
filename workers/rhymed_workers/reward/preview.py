"""Scores answers to one row with every scorer of a configuration, for `rhymed check`.

Uses the scoring process of a run, so a scorer that hangs or crashes behaves here as it would there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Thread

from rhymed.core.config import Config
from rhymed.inputs.rows import Row
from rhymed_workers.reward.child import item
from rhymed_workers.reward.judges import Judges
from rhymed_workers.reward.process import ScoringProcess
from rhymed_workers.reward.scorers.result import Verdict
from rhymed_workers.reward.worker import as_if_answered

PATIENCE_S = 5.0  # for a judge: somebody waits


@dataclass(frozen=True)
class Preview:
    verdicts: list[list[Verdict]]  # of each answer, of each scorer of `reward.all`
    notes: list[str]  # how the scorers are isolated, and what they report about themselves
    whole: list[int]  # scorers that get all samples of a group in one call
    warnings: list[str]


class Loading:
    """A scoring process that loads its scorers at once, on an event loop in a daemon thread: its owner does other
    work meanwhile, and an interrupt waits for nothing. Leaving the block ends it."""

    def __init__(self, config: Config) -> None:
        # asyncio warns about a process that ended and was reaped before it looked; nothing has configured a log yet
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        self._config, self._loop = config, asyncio.new_event_loop()
        Thread(target=self._run, name="scorers", daemon=True).start()
        self._process = asyncio.run_coroutine_threadsafe(ScoringProcess.start_with_retries(config), self._loop)

    def __enter__(self) -> Loading:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        ended.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._loop.stop))
        if kind is None:
            ended.result()

    def loaded(self) -> bool:
        """True. Blocking. Raises `RewardError` if the scorers cannot be loaded."""
        return self._process.result() is not None

    def preview(self, row: Row, answers: Sequence[str]) -> Preview:
        """Scores every answer with every scorer, also after one has failed. Once.

        Raises `RewardError` when a scorer cannot be loaded, or a judge cannot be asked. Blocking: at most
        `reward.timeout_s` per scorer and answer; for a judge, its own `timeout_s` and `PATIENCE_S`.
        """
        work = self._preview(self._process.result(), row, answers)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _preview(self, process: ScoringProcess, row: Row, answers: Sequence[str]) -> Preview:
        """Kills the process."""
        result = Preview([], process.notes, process.whole, process.warnings)
        try:
            async with Judges(self._config, patience_s=PATIENCE_S) as judges:
                for response in answers:
                    shown = as_if_answered(row, response) if self._config.environment.active else row
                    work = item(response, shown)
                    result.verdicts.append([])
                    for scorer in range(len(self._config.reward.all)):
                        if scorer in judges:
                            result.verdicts[-1].append(await judges.score(work, scorer))
                            continue
                        if not process.usable:
                            await process.kill()
                            process = await ScoringProcess.start_with_retries(self._config)
                        result.verdicts[-1] += await process.score([work], scorer)
        finally:
            await process.kill()
        return result

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if not self._process.cancelled() and self._process.exception() is None:
            await self._process.result().kill()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()


def preview(config: Config, row: Row, answers: Sequence[str]) -> Preview:
    """As `Loading.preview`, and as long as importing the scorers takes."""
    with Loading(config) as scorers:
        return scorers.preview(row, answers)
