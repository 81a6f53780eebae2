"""Tokens of prompts in a rollout worker: each fetched and rendered once. Knows no engine."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

from rhymed.inputs.render import Render
from rhymed.inputs.rows import Row

CACHED_PROMPTS = 8192


class PromptCache:
    """Tokens of prompts, each fetched and rendered once while it is among the last `CACHED_PROMPTS` used."""

    def __init__(self, fetch: Callable[[Sequence[str]], Awaitable[list[Row]]], render: Render) -> None:
        self._fetch = fetch
        self._render = render
        self._known: OrderedDict[str, asyncio.Task[list[int]]] = OrderedDict()

    async def tokens(self, prompt: str) -> list[int]:
        """Raises what fetching or rendering raised; that is not remembered."""
        task = self._known.get(prompt)
        if task is None:
            task = self._known[prompt] = asyncio.get_running_loop().create_task(self._make(prompt))
            while len(self._known) > CACHED_PROMPTS:
                self._known.popitem(last=False)
        self._known.move_to_end(prompt)
        try:
            return await asyncio.shield(task)  # siblings wait for the same one
        except BaseException:
            if task.done() and self._known.get(prompt) is task:
                del self._known[prompt]
            raise

    async def _make(self, prompt: str) -> list[int]:
        rows = await self._fetch([prompt])
        return await asyncio.to_thread(self._render, f"prompt {prompt}", rows[0])

    def close(self) -> None:
        for task in self._known.values():
            task.cancel()
