"""Environments on an OpenEnv server: a session for each sample, which has the sample's environment.

`reset` gets `environment.args`, the row's columns, and a seed that is the same for all samples of a row, unless one
of these names it. What the server finds invalid in an action, the policy reads; whatever else the server cannot do
breaks the sample, and ends its session.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rhymed.core.errors import EnvironmentFailed
from rhymed.core.messages import Call
from rhymed.inputs.chats import Chat
from rhymed_workers.environment.hosting.runner import Runner
from rhymed_workers.environment.hosting.tool import encodable, explained, trl_error, unreadable
from rhymed_workers.environment.openenv import (
    LIST_TOOLS,
    Action,
    Observed,
    Refused,
    Server,
    Session,
    action_of,
    call_of,
    observed,
    tools_of,
)
from rhymed_workers.environment.protocol import Kind, Open, Step, Stepped
from rhymed_workers.sessions.calls import Wanted

if TYPE_CHECKING:
    from rhymed.core.config import Environment

SHARE = 0.8  # of the time limit of an answer, for a session and its reset: then the error says what was wrong
LONGEST = 1 << 16  # characters that the policy reads of an observation


class RemoteHost:
    """`seconds` of its calls are those of the server."""

    awaits = True

    def __init__(self, action: Action, tools: list[dict[str, Any]], settings: Environment, runner: Runner) -> None:
        self.kind: Kind = "text" if action.kind == "text" else "methods"
        self.tools, self.idempotent = tools, list[str]()
        self._names = [str(tool["function"]["name"]) for tool in tools]
        self._action, self._settings, self._runner = action, settings, runner
        self._server = Server(settings.url)
        self._sessions: dict[str, Session] = {}
        self._ended: set[str] = set()  # whose environment was done at its reset

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        await self.close(request.name)
        row = json.loads(request.row)
        given = {"seed": _seed(row), "episode_id": request.name, **self._settings.args, **row}
        first = {"type": "reset", "data": given}
        within_s = SHARE * self._settings.timeout_s
        try:
            session, answer = await self._runner.call(self._server.session, {"within_s": within_s, "first": first})
        except Refused as error:
            raise EnvironmentFailed(f"{self._settings.url} refuses reset: {error}") from None
        self._sessions[request.name] = session
        seen = self._observed(answer)
        if seen.done:
            self._ended.add(request.name)
        return _with_observation(request.chat, encodable(seen.text[:LONGEST])), self._names

    async def step(self, request: Step) -> Stepped:
        if request.name in self._ended:
            return Stepped(done=True)
        if self._action.kind == "text":
            return await self._say(request)
        if request.malformed:
            return unreadable(request.malformed)
        if not (asked := request.wanted):
            return Stepped(done=True)
        messages, calls, rewards = [], [], []
        done = False
        for wanted in asked:
            seen, call = await self._call(request.name, wanted)
            messages.append({"role": "tool", "name": wanted.name, "content": encodable(seen.text[:LONGEST])})
            calls.append(call)
            rewards += [] if seen.reward is None else [seen.reward]
            if done := seen.done:
                break
        return Stepped(messages, done, sum(rewards) if rewards else None, calls)

    async def close(self, name: str) -> None:
        self._ended.discard(name)
        if (session := self._sessions.pop(name, None)) is not None:
            await session.close()

    def explain(self, error: BaseException) -> str:
        return explained(self._settings.url, error)

    async def _say(self, request: Step) -> Stepped:
        began = time.monotonic()
        try:
            seen, error = await self._ask(request.name, {self._action.name: request.text}), ""
        except Refused as refused:
            seen, error = Observed(f"Invalid: {refused}", done=False, reward=None), str(refused)
        call = Call(name="step", seconds=time.monotonic() - began, error=error)
        message = {"role": "user", "content": encodable(seen.text[:LONGEST])}
        return Stepped([message], seen.done, seen.reward, [call])

    async def _call(self, name: str, wanted: Wanted) -> tuple[Observed, Call]:
        began = time.monotonic()
        if wanted.name not in self._names:
            why = f"there is no tool {wanted.name!r}; there are: {', '.join(self._names)}"
            return Observed(trl_error(wanted.name, why), done=False, reward=None), Call(name=wanted.name, error=why)
        mcp = self._action.kind == "mcp"
        try:
            seen = await self._ask(name, call_of(wanted.name, wanted.arguments) if mcp else wanted.arguments)
            error = seen.failed
        except Refused as refused:
            seen, error = Observed(str(refused), done=False, reward=None), str(refused)
        if error:
            seen = seen._replace(text=trl_error(wanted.name, error))
        return seen, Call(name=wanted.name, seconds=time.monotonic() - began, error=error)

    async def _ask(self, name: str, action: Mapping[str, Any]) -> Observed:
        """One step. Raises `Refused`; after any other error the session is closed, as it may answer late."""
        session = self._sessions.get(name)
        if session is None:
            raise EnvironmentFailed(f"{self._settings.url}: the session of {name} is lost")
        try:
            answer = await self._runner.call(session.ask, {"message": {"type": "step", "data": action}})
            return self._observed(answer)
        except Refused:
            raise
        except BaseException:
            await self.close(name)
            raise

    def _observed(self, answer: Mapping[str, Any]) -> Observed:
        try:
            return observed(answer)
        except EnvironmentFailed as error:
            raise EnvironmentFailed(f"{self._settings.url}: {error}") from None


def find_environment(settings: Environment, runner: Runner) -> RemoteHost:
    """Asks the server what it has. Blocking. Raises `EnvironmentFailed`."""

    async def find() -> tuple[Action, list[dict[str, Any]]]:
        server = Server(settings.url)
        try:
            action = action_of(await server.schema(settings.timeout_s), settings.action)
            if action.kind == "text":
                return action, []
            if action.kind == "tool":
                return action, [dict(action.schema)]
            session, answer = await server.session(settings.timeout_s, {"type": "step", "data": LIST_TOOLS})
            await session.close()
            return action, tools_of(answer)
        except Refused as error:
            raise EnvironmentFailed(f"it lists no tools: {error}") from None
        finally:
            await server.close()

    try:
        return RemoteHost(*asyncio.run(find()), settings, runner)
    except EnvironmentFailed as error:
        place = "" if settings.url in str(error) else f"{settings.url}: "
        raise EnvironmentFailed(f"environment.url: {place}{error}") from None


def _seed(row: Mapping[str, Any]) -> int:
    digest = hashlib.sha256(json.dumps(row, sort_keys=True).encode()).digest()
    return int.from_bytes(digest[:4]) >> 1


def _with_observation(chat: Chat, text: str) -> Chat:
    """What `reset` showed continues the last message."""
    if not text:
        return chat
    if not chat or chat[-1]["role"] != "user":
        return [*chat, {"role": "user", "content": text}]
    said = str(chat[-1]["content"])
    return [*chat[:-1], {**chat[-1], "content": f"{said}\n\n{text}" if said.strip() else text}]
