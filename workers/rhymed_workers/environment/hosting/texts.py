"""SkyRL-Gym's `BaseTextEnv`, unchanged: `init`, `step`, `close`. It parses the policy's text itself."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from rhymed.errors import EnvironmentFailed
from rhymed.messages import Call
from rhymed_workers.environment.hosting.host import explained, number_of
from rhymed_workers.environment.hosting.runner import Runner, is_async
from rhymed_workers.environment.hosting.tool import is_pure, text_of
from rhymed_workers.environment.protocol import STEP, Chat, Kind, Open, Step, Stepped
from rhymed_workers.scorers.explain import defined_at


class TextHost:
    """`max_turns`: the environment reads it in `extras`, as SkyRL's generator gives it."""

    kind: Kind = "text"

    def __init__(
        self, factory: Callable[..., Any], args: dict[str, Any], max_turns: int, runner: Runner, setting: str
    ) -> None:
        self.tools: list[dict[str, Any]] = []
        self.idempotent: list[str] = []
        self.pure = [STEP] if is_pure(factory) else []
        self.awaits = any(is_async(getattr(factory, name)) for name in ("init", "step"))
        self._factory, self._args, self._setting = factory, args, setting
        self._max_turns, self._runner = max_turns, runner
        self._parameters = inspect.signature(factory).parameters
        self._instances: dict[str, Any] = {}
        self._file = (defined_at(getattr(factory, "step", explained)) or ("", 0))[0]

    async def open(self, request: Open) -> tuple[Chat, list[str]]:
        await self.close(request.name)
        given = dict(self._args)
        if "env_config" in self._parameters:
            given.setdefault("env_config", {})
        if "extras" in self._parameters:
            row = {"max_turns": self._max_turns, **json.loads(request.row)}
            given["extras"] = {**row, **given.get("extras", {})}
        instance = await self._runner.call(self._factory, given)
        self._instances[request.name] = instance
        result = await self._runner.call(instance.init, {"prompt": request.chat})
        return _checked(result[0] if isinstance(result, tuple) else result, f"{self._setting}.init()"), []

    async def step(self, request: Step) -> Stepped:
        began, what = time.monotonic(), f"{self._setting}.step()"
        result = await self._runner.call(self._instances[request.name].step, {"action": request.text})
        call = Call(name=STEP, seconds=time.monotonic() - began)
        messages, done, reward = (_field(result, name) for name in ("observations", "done", "reward"))
        given = None if reward is None else number_of(reward, what)
        return Stepped(_checked(messages or [], what), bool(done), given, [call])

    async def close(self, name: str) -> None:
        close = getattr(self._instances.pop(name, None), "close", None)
        if close is not None:
            await self._runner.call(close, {})

    def explain(self, error: BaseException) -> str:
        return explained(self._setting, error, self._file)


def _checked(messages: Any, what: str) -> Chat:
    def is_message(part: Any) -> bool:
        return isinstance(part, Mapping) and {"role", "content"} <= part.keys()

    if not isinstance(messages, list | tuple) or not all(map(is_message, messages)):
        raise EnvironmentFailed(f"{what} returned {messages!r:.80}: a list of {{role, content}} expected")
    return [{**message, "content": text_of(message["content"], what)} for message in messages]


def _field(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)
