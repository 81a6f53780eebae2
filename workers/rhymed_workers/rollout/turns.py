"""Samples in turns, as a rollout worker sees them: it writes a turn after what the store has.

The store has the prompt, which the sample's environment wrote, and everything since. Whether and how the sample goes
on is decided by its environment. `Sessions` has them, `PromptCache` the prompts of samples without turns. Knows no
tools.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from rhymed.core.config import Config
from rhymed.core.service.retry import retry
from rhymed.inputs.render import Render, load_renderer
from rhymed.inputs.rows import Row
from rhymed_store.client import StoreClient
from rhymed_store.sessions import get_session
from rhymed_workers.rollout.generation import ActiveSample

READY_SHARE = 8  # one sample in turns waits here for so many that the engine writes


def slots_of(config: Config) -> int:
    """Samples that a worker has at once. Where they have turns, a few of them wait for the engine: when a turn ends,
    the next one is here, and has been read."""
    most = config.rollout.max_concurrency
    return most + (most // READY_SHARE if config.environment.active else 0)


class Sessions:
    """Reads what a sample begins its next turn with. `context`: the tokens that a row of a program may have besides
    its response; None: samples have no program."""

    def __init__(self, store: StoreClient, context: int | None = None) -> None:
        self._store, self._context = store, context

    async def begin(self, sample: ActiveSample) -> bool:
        """False: its environment has to answer first, as when this turn was written before."""
        stored = await retry(lambda: get_session(self._store, sample.id), "reading a sample in turns")
        if stored.session.acts or stored.session.done:
            return False
        number = sample.turn = len(stored.turns)
        tokens, first = stored.before(number).tolist(), stored.prompt.tolist()
        size = len(first) if tokens[: len(first)] == first else len(tokens)
        sample.prompt, sample.prefix = tokens[:size], tokens[size:]
        if self._context is not None:
            sample.branches, sample.repeats = True, stored.repeats(number)
            answer = stored.session.answers[number]
            sample.spare, sample.most, sample.stop = self._context - size, answer.most, tuple(answer.stop)
        return True

    def close(self) -> None:
        """Nothing is open."""


# Tokens of prompts in a rollout worker: each is fetched and rendered once. Knows no engine.

CACHED_PROMPTS = 8192


async def contexts(
    config: Config, store: StoreClient, fetch: Callable[[Sequence[str]], Awaitable[list[Row]]]
) -> PromptCache | Sessions:
    """What samples begin with. `fetch`: rows of prompts."""
    if config.environment.active:
        return Sessions(store, config.rollout.max_prompt_length if config.environment.command else None)
    return PromptCache(fetch, await asyncio.to_thread(load_renderer, config))


class PromptCache:
    """The `CACHED_PROMPTS` most recently used prompts."""

    def __init__(self, fetch: Callable[[Sequence[str]], Awaitable[list[Row]]], render: Render) -> None:
        self._fetch = fetch
        self._render = render
        self._tasks: OrderedDict[str, asyncio.Task[list[int]]] = OrderedDict()

    async def tokens(self, prompt: str) -> list[int]:
        """Raises what fetching or rendering raised; an error is not cached."""
        task = self._tasks.get(prompt)
        if task is None:
            task = self._tasks[prompt] = asyncio.get_running_loop().create_task(self._load(prompt))
            while len(self._tasks) > CACHED_PROMPTS:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(prompt)
        try:
            return await asyncio.shield(task)  # siblings wait for the same task
        except BaseException:
            if task.done() and self._tasks.get(prompt) is task:
                del self._tasks[prompt]
            raise

    async def _load(self, prompt: str) -> list[int]:
        rows = await self._fetch([prompt])
        return await asyncio.to_thread(self._render, f"prompt {prompt}", rows[0])

    async def begin(self, sample: ActiveSample) -> bool:
        """Sets what the sample begins with."""
        sample.prompt = await self.tokens(sample.id.prompt)
        return True

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
