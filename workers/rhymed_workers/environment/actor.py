"""Lets a sample's environment answer: begin the sample, make its calls, and store what the policy reads next.

Everything is in the store before it counts: the prompt, each turn, that calls have begun, each answer. So a worker
that takes a sample over repeats nothing that was answered. It rebuilds an environment with state by making the
sample's earlier calls again. Calls that have begun and have no answer are made again only if all of their tools are
idempotent; otherwise the policy reads that they were interrupted. Those of an environment that may be rebuilt are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed, EnvironmentLost
from rhymed.core.service.logfile import cause
from rhymed.core.service.retry import retry
from rhymed.core.text import call_text, counted
from rhymed.inputs import render
from rhymed.inputs.rows import Row
from rhymed_store.client import StoreClient
from rhymed_store.sessions import StoredSession, begin_calls, get_session, put_answer
from rhymed_workers.engines.base import sampling_for
from rhymed_workers.environment.pool import Environments, Opened
from rhymed_workers.environment.protocol import Stepped
from rhymed_workers.sessions.calls import Read
from rhymed_workers.sessions.dialogue import BEGINNING, Dialogue
from rhymed_workers.sessions.finish import complete_sample

log = logging.getLogger(__name__)

INTERRUPTED = "interrupted: the call had begun when its process ended, and may have been made; it is not made again"

KEPT_OPTIONS = 4096  # prompts


class Actor:
    """`act` may run for many samples at once, once for each."""

    def __init__(self, config: Config, store: StoreClient, pool: Environments, dialogue: Dialogue) -> None:
        self._config, self._settings = config, config.environment
        self._store, self._pool, self._dialogue = store, pool, dialogue
        self._repeatable = pool.idempotent | (
            pool.names if self._settings.stateful and self._settings.replay else set()
        )
        self.calls = self.errors = self.rebuilt = 0
        self._options: OrderedDict[str, dict[str, Any]] = OrderedDict()  # of the chat template, by prompt
        self._opened: set[messages.SampleId] = set()  # of factory or url: tools have no state
        self._unmade: dict[messages.SampleId, tuple[int, str]] = {}  # number and attempt of calls that no code began
        self.unreported: dict[messages.SampleId, list[messages.Call]] = {}  # calls; who reports the sample takes them

    @property
    def open(self) -> list[messages.SampleId]:
        """Samples whose environments are here."""
        return list(self._opened)

    async def close(self, id: messages.SampleId) -> None:
        """Ends its environment, if it is here."""
        self._opened.discard(id)
        self._unmade.pop(id, None)
        await self._pool.close(str(id))

    async def act(self, id: messages.SampleId) -> messages.SampleInfo | None:
        """Answers the sample's last turn. Returns its record if it is complete; None: the policy continues.

        Raises `EnvironmentFailed` for an environment that is broken, and `DataError` for a row that it cannot use.
        """
        stored = await retry(lambda: get_session(self._store, id), "reading a sample in turns")
        session = stored.session
        done = session.done or session.stored  # a worker that ended before it could report it
        if session.acts and not done:
            done = await (self._answer(id, stored) if stored.turns else self._begin(id))
        if not done:
            return None
        info = await complete_sample(self._store, id)
        await self.close(id)
        return info

    async def _begin(self, id: messages.SampleId) -> bool:
        """The first answer is the prompt."""
        opened = await self._open(id)
        options = await self._template_options(id.prompt)
        tokens = self._dialogue.prompt(f"prompt {id.prompt}", opened.chat, opened.tools, options)
        await self._put(id, 0, messages.Answer(length=len(tokens)), tokens)
        return False

    async def _open(self, id: messages.SampleId) -> Opened:
        """Makes the sample's environment."""
        row = await self._row(id.prompt)
        if self._settings.stateful:
            self._opened.add(id)
        chat = render.messages(self._config.data, f"prompt {id.prompt}", row)
        return await self._pool.open(str(id), row, chat)

    async def _row(self, prompt: str) -> Row:
        (row,) = await retry(lambda: self._store.get_prompts([prompt]), "reading a prompt")
        self._options[prompt] = render.options_of(f"prompt {prompt}", row)
        self._options.move_to_end(prompt)
        while len(self._options) > KEPT_OPTIONS:
            self._options.popitem(last=False)
        found: Row = row
        return found

    async def _template_options(self, prompt: str) -> dict[str, Any]:
        if prompt not in self._options:
            await self._row(prompt)
        return self._options[prompt]

    async def _read(self, stored: StoredSession, number: int) -> Read:
        """A turn. In a thread: a parser of vLLM may take long."""
        turn, before = stored.turns[number].tolist(), stored.before(number)[-BEGINNING:].tolist()
        return await asyncio.to_thread(self._dialogue.read, turn, before)

    async def _answer(self, id: messages.SampleId, stored: StoredSession) -> bool:
        """Answers the last turn. Returns whether it was the sample's last one."""
        number, turn = len(stored.turns), stored.session.turns[-1]
        if not self._pool.has(str(id), number - 1):
            await self._rebuild(id, stored)
        read = await self._read(stored, number - 1)
        if turn.finish_reason == "length":  # it has no room for another token
            ended = await self._last_word(id, stored, read)
            answer = messages.Answer(
                length=0,
                done=True,
                reward=ended.reward,
                calls=list(ended.calls),
                cut=True,
                said=json.dumps([self._dialogue.message(read)]),
                state=ended.state,
            )
            await self._put(id, number, answer, [])
            return True
        last = number == self._settings.max_turns
        stepped = await self._step(id, stored, read, last=last)
        done, cut, tokens = stepped.done, last and not stepped.done, []
        reward, state = stepped.reward, stepped.state
        if not (done or last):
            options = await self._template_options(id.prompt)
            tokens = self._dialogue.suffix(stepped.messages, stored.turns[-1].tolist(), options)
            if cut := len(stored.response) + len(tokens) >= self._longest(id):
                ended = await self._pool.end(str(id))
                tokens, reward, state = [], _sum(reward, ended.reward), ended.state or state
        answer = messages.Answer(
            length=len(tokens),
            done=done or cut,
            reward=reward,
            calls=list(stepped.calls),
            cut=cut,
            said=json.dumps(conversation(self._dialogue.message(read), stepped if tokens else Stepped())),
            state=state if done or cut else "",
        )
        await self._put(id, number, answer, tokens)
        return done or cut

    async def _last_word(self, id: messages.SampleId, stored: StoredSession, read: Read) -> Stepped:
        """Of a turn that was cut. Its calls are not made; an environment that reads text gets what there is of it."""
        if self._pool.about.kind == "text":
            return await self._step(id, stored, read, last=True)
        return await self._pool.end(str(id))

    def _longest(self, id: messages.SampleId) -> int:
        """Most tokens of the sample's response; an evaluation's may have a limit of its own."""
        return sampling_for(self._config.rollout, self._config.eval, self._config.run.seed, id).max_tokens

    async def _step(self, id: messages.SampleId, stored: StoredSession, read: Read, *, last: bool) -> Stepped:
        number, attempt = len(stored.turns) - 1, ""
        if self._pool.about.kind != "text" and {call.name for call in read.calls} - self._repeatable:
            before, unmade = self._unmade.get(id, (-1, ""))
            attempt = unmade if before == number else secrets.token_hex(8)
            first = await retry(lambda: begin_calls(self._store, id, number, attempt), "recording that calls begin")
            if not first:
                return _interrupted(read)
        self._unmade.pop(id, None)
        try:
            stepped = await self._pool.step(str(id), read, last=last)
        except EnvironmentLost as error:
            if attempt and not error.begun:  # it waited in a process that was killed for another's call
                self._unmade[id] = number, attempt
            raise
        self.calls += len(stepped.calls)
        self.errors += sum(bool(call.error) for call in stepped.calls)
        return stepped

    async def _rebuild(self, id: messages.SampleId, stored: StoredSession) -> None:
        """An environment was lost with its process or its worker."""
        if not self._settings.replay:
            raise EnvironmentFailed("its environment was lost, and environment.replay is false")
        await self._open(id)
        repeated = len(stored.turns) - 1
        if repeated:
            more = cause("rebuilt", [id], turns=[repeated])
            log.info(
                "sample %s: its environment is made again, %s repeated", id, counted(repeated, "turn"), extra=more
            )
        for turn in range(repeated):
            await self._pool.step(str(id), await self._read(stored, turn), last=False)
        self.rebuilt += len(stored.turns) > 1

    async def _put(self, id: messages.SampleId, number: int, answer: messages.Answer, tokens: Sequence[int]) -> None:
        await retry(lambda: put_answer(self._store, id, number, answer, tokens), "storing an answer")
        if answer.calls:
            self.unreported[id] = answer.calls
        calls = [call_text(call) for call in answer.calls]
        more = cause("answered", [id], turns=[number], tokens=[answer.length], calls=[calls])
        log.info("answer %d of sample %s: %s", number, id, counted(answer.length, "token"), extra=more)


def conversation(turn: dict[str, Any], answer: Stepped) -> list[dict[str, Any]]:
    """A turn and its answer as messages, as TRL's reward functions get them: lists of tools as they were returned."""
    messages = list(answer.messages)
    for place, result in answer.lists.items():
        messages[place] = {**messages[place], "content": json.loads(result)}
    return [turn, *messages]


def _sum(*rewards: float | None) -> float | None:
    """None: none was given."""
    given = [reward for reward in rewards if reward is not None]
    return sum(given) if given else None


def _interrupted(read: Read) -> Stepped:
    """What the policy reads in place of the results."""
    content = json.dumps({"error": INTERRUPTED})
    return Stepped(
        messages=[{"role": "tool", "name": call.name, "content": content} for call in read.calls],
        calls=[messages.Call(name=call.name, error=INTERRUPTED) for call in read.calls],
    )
