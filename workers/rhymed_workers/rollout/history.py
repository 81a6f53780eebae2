"""Loads a prompt's earlier responses from the store into the engine, once per prompt and step, in the background.

Nothing waits for it: a response that does not arrive is not drafted from. An unreachable store is logged once, and
once more when it is back. Knows nothing of how the engine uses history.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from rhymed.config import Config
from rhymed.errors import EngineError, RhymedError
from rhymed.messages import SampleId
from rhymed_store.client import StoreClient, StoredSample

log = logging.getLogger(__name__)

REMEMBERED = 16384  # (prompt, step) pairs
WARNINGS = 5  # about history with another prompt length
READERS = 4  # concurrent requests to the store

Read = Callable[[str, int], Awaitable[list[StoredSample]]]
"""(prompt, step) -> responses of earlier steps, newest step first."""
Remember = Callable[[str, Sequence[int], list[StoredSample]], Awaitable[None]]
"""(prompt, its tokens, responses): the engine's `remember`."""


class HistoryLoader:
    def __init__(self, read: Read, remember: Remember) -> None:
        self._read, self._remember = read, remember
        self._requested: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._readers = asyncio.Semaphore(READERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._unreachable = False  # the store, at the last attempt
        self._mismatches = 0  # prompts with history of another prompt length

    def load(self, id: SampleId, prompt: Sequence[int]) -> None:
        """Start loading, unless a sibling of this sample has done so."""
        key = (id.prompt, id.step)
        if key in self._requested:
            return
        self._requested[key] = None
        while len(self._requested) > REMEMBERED:
            self._requested.popitem(last=False)
        task = asyncio.get_running_loop().create_task(self._load(id, prompt))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _load(self, id: SampleId, prompt: Sequence[int]) -> None:
        try:
            async with self._readers:
                past = await self._read(id.prompt, id.step)
            matching = [sample for sample in past if sample.info.prompt_length == len(prompt)]
            if len(matching) < len(past):
                self._warn_of_mismatch(id.prompt, len(prompt), past)
            if matching:
                await self._remember(id.prompt, prompt, matching)
        except EngineError:
            return  # `generate` raises it too
        except RhymedError as error:
            self._requested.pop((id.prompt, id.step), None)  # its next sample tries again
            if not self._unreachable:
                log.warning("no drafts from history while the store cannot be read: %s", error)
            self._unreachable = True
        except Exception:
            log.exception("prompt %s: no drafts from history", id.prompt)
        else:
            if self._unreachable:
                log.warning("history can be read again")
            self._unreachable = False

    def _warn_of_mismatch(self, prompt: str, length: int, past: Sequence[StoredSample]) -> None:
        """A few times only: every prompt of an imported run may be of another tokenizer."""
        self._mismatches += 1
        if self._mismatches > WARNINGS:
            return
        others = [sample.info.prompt_length for sample in past if sample.info.prompt_length != length]
        log.warning(
            "prompt %s: %d of %d earlier responses were to %d prompt tokens, now there are %d: they are of another"
            " tokenizer or template and are not used as drafts%s",
            prompt, len(others), len(past), others[0], length,
            "; further prompts like it are not logged" if self._mismatches == WARNINGS else "",
        )  # fmt: skip


def history_loader(config: Config, store: StoreClient, remember: Remember) -> HistoryLoader | None:
    """None: the engine does not draft from history."""
    drafts = config.drafts
    if config.rollout.engine != "vllm" or drafts.method == "none" or not drafts.responses:
        return None
    return HistoryLoader(lambda prompt, step: store.history(prompt, step, drafts.responses), remember)
