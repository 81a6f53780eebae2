from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import DataError
from rhymed.inputs.render import Renderer
from rhymed_workers.rollout.turns import PromptCache

P = "0123456789abcdef"


async def test_siblings_fetch_and_render_once_and_errors_are_not_remembered() -> None:
    asked: list[str] = []

    async def fetch(prompts: Sequence[str]) -> list[dict[str, Any]]:
        asked.extend(prompts)
        await asyncio.sleep(0)
        return [{"prompt": "hi" if len(asked) > 1 else 7} for _ in prompts]

    cache = PromptCache(fetch, Renderer(Config().data, Config().rollout.max_prompt_length))
    with pytest.raises(DataError, match=f"prompt {P}: column `prompt`"):
        await cache.tokens(P)
    assert await asyncio.gather(*(cache.tokens(P) for _ in range(8))) == [list(b"hi")] * 8
    assert asked == [P, P]
    cache.close()
