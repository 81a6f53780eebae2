"""Brings a prompt's earlier responses from the store to the engine, once a prompt and step, while others decode.

Nobody waits for it: what does not come is not drafted from. A store that is gone is told once, and again when it is
back. Knows nothing of what the engine does with history.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from rhymed.errors import EngineError, RhymedError
from rhymed.messages import SampleId
from rhymed_store.client import StoredSample

log = logging.getLogger(__name__)

REMEMBERED = 16384  # (prompt, step) pairs
WARNINGS = 5  # of history that does not fit
READERS = 4  # questions to the store at once

Read = Callable[[str, int], Awaitable[list[StoredSample]]]  # prompt, before this step
Tell = Callable[[str, Sequence[int], list[StoredSample]], Awaitable[None]]  # prompt, its tokens, newest step first


class Recall:
    def __init__(self, read: Read, tell: Tell) -> None:
        self._read, self._tell = read, tell
        self._brought: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._turns = asyncio.Semaphore(READERS)
        self._working: set[asyncio.Task[None]] = set()
        self._gone = False
        self._strangers = 0  # prompts with history that does not fit

    def bring(self, id: SampleId, prompt: Sequence[int]) -> None:
        """Start, unless a sibling of this sample has done so."""
        key = (id.prompt, id.step)
        if key in self._brought:
            return
        self._brought[key] = None
        while len(self._brought) > REMEMBERED:
            self._brought.popitem(last=False)
        task = asyncio.get_running_loop().create_task(self._bring(id, prompt))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    def close(self) -> None:
        for task in self._working:
            task.cancel()

    async def _bring(self, id: SampleId, prompt: Sequence[int]) -> None:
        try:
            async with self._turns:
                past = await self._read(id.prompt, id.step)
            fitting = [one for one in past if one.info.prompt_length == len(prompt)]
            if len(fitting) < len(past):
                self._tell_of_strangers(id.prompt, len(prompt), past)
            if fitting:
                await self._tell(id.prompt, prompt, fitting)
        except EngineError:
            return  # whoever generates will hear of it
        except RhymedError as error:
            self._brought.pop((id.prompt, id.step), None)  # its next sample tries again
            if not self._gone:
                log.warning("history is not drafted from while it cannot be read: %s", error)
            self._gone = True
        except Exception:
            log.exception("prompt %s goes without history", id.prompt)
        else:
            if self._gone:
                log.warning("history can be read again")
            self._gone = False

    def _tell_of_strangers(self, prompt: str, length: int, past: Sequence[StoredSample]) -> None:
        """A few times, for an imported run may be wholly of another tokenizer."""
        self._strangers += 1
        if self._strangers > WARNINGS:
            return
        others = [one.info.prompt_length for one in past if one.info.prompt_length != length]
        log.warning(
            "prompt %s: %d of %d earlier responses were to %d prompt tokens, now there are %d: history of another"
            " tokenizer or template, not drafted from%s",
            prompt, len(others), len(past), others[0], length,
            "; further prompts like it are not told" if self._strangers == WARNINGS else "",
        )  # fmt: skip
