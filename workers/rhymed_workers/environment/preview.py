"""What an environment is, and how the policy reads a row with it, for checks: its code is loaded as in a run.

No tool is called. An environment of factory or url is made for one row and closed again, no program is started.

`Preview` begins one row; `prompt_lengths` measures all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

from rhymed.core.config import Config
from rhymed.inputs import render
from rhymed.inputs.chats import ChatTemplate
from rhymed.inputs.datasets import Placed
from rhymed.inputs.rows import Row
from rhymed_workers.environment.pool import Environments
from rhymed_workers.environment.protocol import Ready
from rhymed_workers.sessions.dialogue import Dialogue, load_dialogue
from rhymed_workers.sessions.session import command_of


class Begun(NamedTuple):
    """A sample's prompt."""

    text: str  # as the policy reads it, with special tokens
    length: int  # tokens
    tools: list[str]  # names of those that it has


class Preview:
    """`with Preview(config) as preview:`; blocking, not for use on an event loop. Raises `EnvironmentFailed` if the
    code cannot be loaded, or there is no such command."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._runner, self._log = asyncio.Runner(), logging.getLogger("asyncio")
        self._pool = None if config.environment.command else Environments(config)
        self.about, self.slots = Ready(), config.environment.most_open

    def __enter__(self) -> Self:
        self._level = self._log.level
        self._log.setLevel(logging.ERROR)  # it warns of processes that ended before it looked
        try:
            if self._pool is None:
                command_of(self._config)
            else:
                self._runner.run(self._pool.__aenter__())
                self.about, self.slots = self._pool.about, self._pool.slots
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._runner.run(self._pool.__aexit__())
        self._close()

    def _close(self) -> None:
        self._runner.close()
        self._log.setLevel(self._level)

    @cached_property
    def dialogue(self) -> Dialogue:
        """Raises `ConfigError`."""
        return load_dialogue(self._config, self.about.tools, ANY)

    @property
    def template(self) -> ChatTemplate | None:
        return self.dialogue.template

    @property
    def has_template(self) -> bool:
        return self._config.rollout.engine != "trace"

    def __call__(self, where: str, row: Row) -> list[int]:
        """The tokens of a row, without what its environment says when it begins. Raises `DataError`."""
        chat = render.messages(self._config.data, where, row)
        return self.dialogue.prompt(where, chat, None, render.options_of(where, row))

    def lengths(self, rows: Sequence[Placed]) -> list[int]:
        return [len(self(where, row)) for where, row in rows]

    def shown(self, where: str, row: Row) -> str:
        return self.dialogue.shown(self(where, row))

    def begin(self, where: str, row: Row) -> Begun:
        """Raises `EnvironmentFailed` and `DataError`."""
        chat: list[dict[str, Any]] = list(render.messages(self._config.data, where, row))
        tools = None
        if self._pool is not None:
            chat, tools = self._runner.run(self._open(where, row, chat))
        tokens = self.dialogue.prompt(where, chat, tools, render.options_of(where, row))
        return Begun(self.dialogue.shown(tokens), len(tokens), tools or [])

    async def _open(self, where: str, row: Row, chat: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
        assert self._pool is not None, "it has no command"
        opened = await self._pool.open(where, row, chat)
        await self._pool.close(where)
        return opened.chat, opened.tools


# How long prompts are with the words that tools add to them, as the environment worker renders them.
#
# The schemas of tools are known once the user's code is loaded, so it is loaded here as well: in a jail. What an
# environment says when a sample begins is not counted, because it is not known before.

ANY = 1 << 30  # tokens


def prompt_lengths(config: Config) -> Callable[[Sequence[Placed]], list[int]]:
    """(where, row) of each prompt -> its tokens. Blocking. Raises `EnvironmentFailed` for code that cannot be loaded,
    `ConfigError`; what it returns raises `DataError`."""
    with Preview(config) as preview:
        _ = preview.dialogue
    return preview.lengths
