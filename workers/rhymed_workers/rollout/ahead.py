"""Writes on after a turn that ran ahead of its weights, where the sample's environment is pure.

Such a turn waits for newer weights, which verify it. Most of its tokens come out again, so what its environment will
answer is known now, if a call changes nothing and always has the same answer. The worker asks an environment of its
own, in the same jails as others, and the engine writes the next turn. None of that is a part of the sample, or is
stored. Once the store has the sample's real answer, and the next turn begins with the expected tokens, the engine
verifies what was written here, as it does with tokens of another worker. Invariant: a guess decides no token.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rhymed.core.config import Config
from rhymed.core.errors import DataError, EnvironmentFailed
from rhymed.core.messages import SampleId
from rhymed.core.tasks import watched
from rhymed.inputs import render
from rhymed.inputs.rows import Row
from rhymed_workers.engines.base import Output
from rhymed_workers.environment.pool import Environments
from rhymed_workers.sessions.calls import Read
from rhymed_workers.sessions.dialogue import BEGINNING, Dialogue, load_dialogue

log = logging.getLogger(__name__)

KEPT = 4096  # samples whose guesses are kept until their turns begin

ReadRows = Callable[[Sequence[str]], Awaitable[Sequence[Any]]]
"""Of prompts."""

Write = Callable[[list[int]], Awaitable[Output | None]]
"""Given the response so far, writes a turn; None: there is something else to do."""


class Guess(NamedTuple):
    prefix: list[int]  # the response before the turn
    tokens: NDArray[np.uint32]


class TurnsAhead:
    """`pool` has pure tools, or a pure environment."""

    def __init__(self, config: Config, pool: Environments, dialogue: Dialogue, read_rows: ReadRows) -> None:
        self._config, self._pool, self._dialogue, self._read_rows = config, pool, dialogue, read_rows
        self._guesses: OrderedDict[SampleId, list[Guess]] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, id: SampleId, prefix: Sequence[int]) -> Sequence[int]:
        """What was written here of the turn that begins after `prefix`; empty: nothing."""
        if not (guesses := self._guesses.pop(id, [])):
            return ()
        number = next((number for number, guess in enumerate(guesses) if guess.prefix == [*prefix]), len(guesses))
        if later := guesses[number + 1 :]:
            self._guesses[id] = later
        return guesses[number].tokens.tolist() if number < len(guesses) else ()

    async def write(
        self, id: SampleId, turn: int, guess: Guess, write: Write, longest: int, prompt: Sequence[int] = ()
    ) -> None:
        """`guess`: turn number `turn`, as it was written ahead. `longest`: most tokens of a response. Returns when
        the sample would end, its environment is not pure, or `write` ends it. May be cancelled at any time: what was
        written is kept."""
        if turn and self._pool.about.kind != "tools":  # its environment has seen turns, and one here would not
            return
        guesses: list[Guess] = []
        try:
            (row,) = await self._read_rows([id.prompt])
            options = render.options_of(f"prompt {id.prompt}", row)
            async with self._environment(id, row):
                while after := await self._after(id, turn, guess, longest, prompt, options):
                    if (output := await write(after)) is None:
                        break
                    guess, turn = Guess(after, output.tokens), turn + 1
                    guesses.append(guess)
                    self._keep(id, guesses)
                    if output.finish_reason != "stop":
                        break
        except (EnvironmentFailed, DataError) as error:  # if it is the environment's fault, its own worker says so
            log.info("sample %s is not written on after turn %d: %s", id, turn, error)

    def _keep(self, id: SampleId, guesses: list[Guess]) -> None:
        self._guesses[id] = guesses
        while len(self._guesses) > KEPT:
            self._guesses.popitem(last=False)

    @contextlib.asynccontextmanager
    async def _environment(self, id: SampleId, row: Row) -> AsyncIterator[None]:
        """One that has seen nothing; tools need none."""
        if self._pool.about.kind == "tools":
            yield
            return
        try:
            await self._pool.open(str(id), row, render.messages(self._config.data, f"prompt {id.prompt}", row))
            yield
        finally:  # in the background: it may wait for calls of other samples
            watched(self._pool.close(str(id)), keep=self._closing)

    async def _after(
        self, id: SampleId, turn: int, guess: Guess, longest: int, prompt: Sequence[int], options: Mapping[str, Any]
    ) -> list[int]:
        """The response with the environment's answer; empty: there is none, or nothing comes after it. `options`: the
        row's own, of the chat template."""
        written: list[int] = guess.tokens.tolist()
        read = await asyncio.to_thread(self._dialogue.read, written, [*prompt, *guess.prefix][-BEGINNING:])
        if turn + 1 >= self._config.environment.max_turns or not self._is_pure(read):
            return []
        stepped = await self._pool.step(str(id), read, last=False)
        if stepped.done:
            return []
        after = [*guess.prefix, *written, *self._dialogue.suffix(stepped.messages, written, options)]
        return after if len(after) < longest else []

    def _is_pure(self, read: Read) -> bool:
        return self._pool.about.kind != "tools" or {call.name for call in read.calls} <= self._pool.pure


@contextlib.asynccontextmanager
async def turns_ahead(config: Config, read_rows: ReadRows) -> AsyncIterator[TurnsAhead | None]:
    """None: the run does not run ahead of its weights, or its environment is not pure or cannot be loaded here."""
    settings = config.environment
    if (
        not (settings.active and config.schedule.run_ahead and config.carries)
        or settings.command
        or settings.url
        or settings.mcp
    ):
        yield None
        return
    async with contextlib.AsyncExitStack() as stack:
        found = None
        try:
            pool = await stack.enter_async_context(Environments(config))
            if pool.pure:
                dialogue = await asyncio.to_thread(load_dialogue, config, pool.about.tools)
                found = TurnsAhead(config, pool, dialogue, read_rows)
        except EnvironmentFailed as error:
            log.warning("samples do not run ahead past their first calls: %s", error)
        if found is None:
            await stack.aclose()
        yield found
