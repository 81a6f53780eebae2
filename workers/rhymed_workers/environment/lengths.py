"""How long prompts are with the words that tools add to them, as the environment worker renders them.

The schemas of tools are known once the user's code is loaded, so it is loaded here as well: in a cage. What an
environment says when a sample begins is not counted, because it is not known before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rhymed.config import Config
from rhymed.inputs import render
from rhymed.inputs.datasets import Placed
from rhymed.inputs.models import resolve_model
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sessions.dialogue import Dialogue

ANY = 1 << 30  # tokens


def prompt_lengths(config: Config) -> Callable[[Sequence[Placed]], list[int]]:
    """(where, row) of each prompt -> its tokens. Blocking. Raises `EnvironmentFailed` for code that cannot be loaded,
    `ConfigError`; what it returns raises `DataError`."""
    dialogue = asyncio.run(_dialogue(config))

    def lengths(rows: Sequence[Placed]) -> list[int]:
        return [len(dialogue.prompt(where, render.messages(config.data, where, row))) for where, row in rows]

    return lengths


async def _dialogue(config: Config) -> Dialogue:
    async with Environments(config) as pool:
        tools = pool.about.tools
    trace = config.rollout.engine == "trace"
    tokenizer = None if trace else render.load_tokenizer(config.model, resolve_model(config))
    return Dialogue(tokenizer, tools, ANY, config.environment.parser)
