"""Tokens of prompts in a rollout worker: each is fetched and rendered once. Knows no engine."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from rhymed.config import Config
from rhymed.inputs.render import Render, load_renderer
from rhymed.inputs.rows import Row
from rhymed_store.client import StoreClient
from rhymed_workers.rollout.generation import ActiveSample
from rhymed_workers.rollout.turns import Sessions

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
