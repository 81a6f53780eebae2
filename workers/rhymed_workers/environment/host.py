"""The environments of one process: an instance of the user's class for each sample, or the same tools for all.

A `Host` knows its users' convention: plain functions; TRL's `environment_factory` (`reset(**row)`, public methods as
tools, `get_reward()`); SkyRL-Gym's `BaseTextEnv` (`init`, `step`, `close`). Runs in a cage.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rhymed.errors import EnvironmentFailed
from rhymed.messages import Call
from rhymed_workers.environment.calling import Caller, schema_of
from rhymed_workers.environment.protocol import Chat, Kind, Open, Step, Stepped
from rhymed_workers.scorers.explain import defined_at, describe, raised_at

NOT_TOOLS = frozenset({"reset", "get_reward", "close", "init", "step"})


class Host(Protocol):
    kind: Kind
    tools: list[dict[str, Any]]
    idempotent: list[str]

    def open(self, request: Open) -> Chat: ...

    def step(self, request: Step) -> Stepped: ...

    def close(self, name: str) -> None: ...

    def explain(self, error: BaseException) -> str:
        """Of the user's code, with file and line."""


class ToolsHost:
    """Functions without state."""

    kind: Kind = "tools"

    def __init__(self, tools: Mapping[str, Callable[..., Any]], setting: str) -> None:
        self.tools = [schema_of(tool) for tool in tools.values()]
        self.idempotent = [name for name, tool in tools.items() if getattr(tool, "idempotent", False)]
        self._tools, self._caller, self._setting = tools, Caller(), setting

    def open(self, request: Open) -> Chat:
        return request.chat

    def step(self, request: Step) -> Stepped:
        return self._caller.answer(request, self._tools)

    def close(self, name: str) -> None:
        """Nothing is open."""

    def explain(self, error: BaseException) -> str:
        return f"{self._setting} raised {describe(error)}"


class MethodsHost:
    """A class whose public methods are tools."""

    kind: Kind = "methods"

    def __init__(self, factory: Callable[..., Any], args: dict[str, Any], setting: str) -> None:
        self._factory, self._args, self._setting = factory, args, setting
        self._caller = Caller()
        self._instances: dict[str, Any] = {}
        first = factory(**args)
        methods = _methods(first)
        self.tools = [schema_of(method) for method in methods.values()]
        self.idempotent = list(methods) if getattr(first, "idempotent", False) else []
        self._file = (defined_at(type(first).__init__) or defined_at(getattr(first, "reset", _none)) or ("", 0))[0]
        _close(first)

    def open(self, request: Open) -> Chat:
        self.close(request.name)
        instance = self._instances[request.name] = self._factory(**self._args)
        reset = getattr(instance, "reset", None)
        observed = self._caller.run(reset, _accepted(reset, json.loads(request.row))) if reset else None
        return _with_observation(request.chat, observed, self._setting)

    def step(self, request: Step) -> Stepped:
        instance = self._instances[request.name]
        stepped = self._caller.answer(request, _methods(instance))
        if not (stepped.done or request.last):
            return stepped
        give = getattr(instance, "get_reward", None)
        reward = _number(self._caller.run(give, {}), f"{self._setting}.get_reward()") if give else None
        return Stepped(stepped.messages, stepped.done, reward, stepped.calls)

    def close(self, name: str) -> None:
        _close(self._instances.pop(name, None))

    def explain(self, error: BaseException) -> str:
        return _explained(self._setting, error, self._file)


class TextHost:
    """SkyRL-Gym's `BaseTextEnv`: it reads the policy's text and parses calls itself."""

    kind: Kind = "text"

    def __init__(self, factory: Callable[..., Any], args: dict[str, Any], setting: str) -> None:
        self.tools: list[dict[str, Any]] = []
        self.idempotent: list[str] = []
        self._factory, self._args, self._setting = factory, args, setting
        self._parameters = inspect.signature(factory).parameters
        self._caller = Caller()
        self._instances: dict[str, Any] = {}
        self._file = (defined_at(getattr(factory, "step", _none)) or ("", 0))[0]

    def open(self, request: Open) -> Chat:
        self.close(request.name)
        given = dict(self._args)
        if "env_config" in self._parameters:
            given.setdefault("env_config", {})
        if "extras" in self._parameters:
            given["extras"] = {**json.loads(request.row), **given.get("extras", {})}
        instance = self._instances[request.name] = self._factory(**given)
        result = self._caller.run(instance.init, {"prompt": request.chat})
        messages = result[0] if isinstance(result, tuple) else result
        return _checked(messages, f"{self._setting}.init()")

    def step(self, request: Step) -> Stepped:
        result = self._caller.run(self._instances[request.name].step, {"action": request.text})
        messages, done, reward = (_field(result, name) for name in ("observations", "done", "reward"))
        call = Call(name="step", seconds=self._caller.seconds)
        given = None if reward is None else _number(reward, f"{self._setting}.step()")
        return Stepped(_checked(messages or [], f"{self._setting}.step()"), bool(done), given, [call])

    def close(self, name: str) -> None:
        _close(self._instances.pop(name, None))

    def explain(self, error: BaseException) -> str:
        return _explained(self._setting, error, self._file)


def _none() -> None: ...


def _methods(instance: Any) -> dict[str, Callable[..., Any]]:
    names = [name for name in dir(type(instance)) if not name.startswith("_") and name not in NOT_TOOLS]
    return {name: getattr(instance, name) for name in names if inspect.isroutine(getattr(type(instance), name))}


def _accepted(function: Callable[..., Any], row: dict[str, Any]) -> dict[str, Any]:
    """The row's columns that the function takes."""
    parameters = inspect.signature(function).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return row
    return {name: value for name, value in row.items() if name in parameters}


def _with_observation(chat: Chat, observed: Any, setting: str) -> Chat:
    """What `reset` returned continues the last user message, as in TRL."""
    if observed is None:
        return chat
    if not isinstance(observed, str):
        raise EnvironmentFailed(f"{setting}.reset() returned {observed!r:.80}: text or None expected")
    place = max((place for place, message in enumerate(chat) if message["role"] == "user"), default=None)
    if place is None:
        return [*chat, {"role": "user", "content": observed}]
    message = {**chat[place], "content": chat[place]["content"] + observed}
    return [*chat[:place], message, *chat[place + 1 :]]


def _checked(messages: Any, what: str) -> Chat:
    def is_message(part: Any) -> bool:
        return isinstance(part, Mapping) and {"role", "content"} <= part.keys()

    if not isinstance(messages, list | tuple) or not all(map(is_message, messages)):
        raise EnvironmentFailed(f"{what} returned {messages!r:.80}: a list of {{role, content}} expected")
    return [dict(message) for message in messages]


def _number(value: Any, what: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise EnvironmentFailed(f"{what} gave the reward {value!r:.80}: a finite number expected")
    return number


def _field(result: Any, name: str) -> Any:
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)


def _close(instance: Any) -> None:
    if (close := getattr(instance, "close", None)) is not None:
        close()


def _explained(setting: str, error: BaseException, file: str) -> str:
    if isinstance(error, EnvironmentFailed):
        return str(error)
    place = raised_at(error, file)
    return f"{setting} raised {describe(error)}{f' ({place})' if place else ''}"
