"""Reward functions of the user: `file.py:function` or `module:function`, with TRL's or verl's signature, unchanged.

The parameters show which of the two it is. Sync or async; a function, a callable object or a partial. Whatever the
function raises becomes a `RewardError` that names the line; its cause is kept.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import importlib.util
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rhymed.errors import RewardError, RowUnsuitable
from rhymed.inputs.rows import Row
from rhymed.text import short
from rhymed_workers.scorers.answer import ground_truth
from rhymed_workers.scorers.builtin import Raw
from rhymed_workers.scorers.explain import defined_at, describe, raised_at

TRL_PARAMETERS: tuple[str, ...] = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
)
TRL_RESERVED = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on."""
VERL_PARAMETERS: tuple[str, ...] = ("data_source", "solution_str", "ground_truth", "extra_info")
TOKENS = "response_ids"
"""Parameter of a verl function that wants the response's token ids, e.g. to weight them; verl has none."""


def load_function(name: str, args: dict[str, Any], key: str) -> tuple[str, Raw]:
    """Its name in errors, and the function. `key`: in the configuration."""
    function = import_named(name, f"{key}.scorer")
    if inspect.isclass(function):
        raise RewardError(f"{key}.scorer: {name} is a class: name a function, or an object made of it in the module")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RewardError(f"{name}: its parameters cannot be read; wrap it in a plain function") from None
    if "completions" in parameters:
        supplied = TRL_PARAMETERS
    elif "solution_str" in parameters and "ground_truth" in parameters:
        supplied = (*VERL_PARAMETERS, TOKENS)
    else:
        raise RewardError(
            f"{name}({', '.join(parameters)}) has neither TRL's parameters (prompts, completions, **columns) nor"
            " verl's (data_source, solution_str, ground_truth, extra_info=None)"
        )
    custom = Custom(name, function, args, supplied)
    for argument in args:
        if argument in supplied or not custom.takes(argument):
            raise RewardError(f"{key}.args.{argument}: {name}({', '.join(parameters)}) cannot take it")
    return custom.title, custom.trl if supplied is TRL_PARAMETERS else custom.verl(key)


class Custom:
    """A user's function and the two ways to call it. `supplied`: parameters whose values come from us."""

    def __init__(
        self, name: str, function: Callable[..., Any], args: dict[str, Any], supplied: tuple[str, ...]
    ) -> None:
        parameters = inspect.signature(function).parameters.values()
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        required = {each.name for each in parameters if each.default is each.empty and each.kind in by_name}
        self.name = name
        self._args = args
        self._call = _synchronous(function)
        self._names = {each.name for each in parameters}
        self._open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters)
        self._required = required - set(supplied) - args.keys()
        self._file, line = defined_at(function) or ("", 0)
        self._short = name.rpartition(":")[2]
        self.title = f"{self._short} ({self._file}, line {line})" if self._file else name

    def takes(self, parameter: str) -> bool:
        return self._open_ended or parameter in self._names

    def verl(self, key: str) -> Raw:
        """verl's convention: one sample per call, `args` as further keywords, the tokens where they are named."""
        if self._required:
            raise RewardError(f"{self.title} also needs {', '.join(sorted(self._required))}: give it in {key}.args")

        def score(answer: str, row: Row, tokens: Sequence[int]) -> Any:
            values = {
                "data_source": row.get("data_source"),
                "solution_str": answer,
                "ground_truth": ground_truth(row),
                "extra_info": row.get("extra_info"),
            }
            if TOKENS in self._names:
                values[TOKENS] = list(tokens)
            return self._run(values)

        return score

    def trl(self, answer: str, row: Row, tokens: Sequence[int]) -> Any:
        """TRL's convention: a batch, here of one sample; the columns that the function takes, as lists.

        Completions are as in TRL: text for a text prompt, a list with the assistant's message for a conversation.
        `trainer_state` is None, and what the function logs is dropped.
        """
        if missing := sorted(self._required - row.keys()):
            raise RowUnsuitable(f"{self.title} needs column {', '.join(missing)}; the row has: {', '.join(row)}")
        chat = isinstance(row.get("prompt"), list)
        values: dict[str, Any] = {key: [value] for key, value in row.items() if key not in TRL_RESERVED}
        values |= {
            "prompts": [row.get("prompt")],
            "completions": [[{"role": "assistant", "content": answer}] if chat else answer],
            "completion_ids": [list(tokens)],
            "trainer_state": None,
            "log_extra": _ignore,
            "log_metric": _ignore,
        }
        return self._only_one(self._run(values))

    def _only_one(self, result: Any) -> Any:
        try:
            count = -1 if isinstance(result, str | bytes | dict) else len(result)
        except TypeError:
            count = -1
        if count < 0:
            raise RewardError(
                f"{self.title} returned {short(result)}: TRL's functions return a list, one reward per completion"
            )
        if count != 1:
            raise RewardError(f"{self.title} returned {count} rewards for 1 completion: return one for each")
        return result[0]

    def _run(self, values: dict[str, Any]) -> Any:
        chosen = {key: value for key, value in values.items() if self.takes(key)}
        try:
            return self._call(**(chosen | self._args))
        except BaseException as error:  # SystemExit is user code's too
            place = raised_at(error, self._file)
            what = f"{self._short} raised {describe(error)}" if place else f"{self.title} raised {describe(error)}"
            raise RewardError(f"{what} ({place})" if place else what) from error


def _ignore(*_: Any, **__: Any) -> None:
    """TRL's `log_extra` and `log_metric`."""


def _close(runner: asyncio.Runner) -> None:
    """Also where garbage is collected while another loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        runner.close()
    else:
        closing = threading.Thread(target=runner.close)
        closing.start()
        closing.join()


def _synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Awaits the result if it is awaitable, on one event loop for all calls, so that its sessions stay usable."""
    runner: list[asyncio.Runner] = []

    async def await_it(awaitable: Any) -> Any:
        return await awaitable

    def call(**arguments: Any) -> Any:
        result = function(**arguments)
        if not inspect.isawaitable(result):
            return result
        if not runner:
            runner.append(asyncio.Runner())
            weakref.finalize(call, _close, runner[0])
        return runner[0].run(await_it(result))

    return call


# Import


def import_named(
    name: str, key: str, accepts: Callable[[Any], bool] = callable, loaded: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """`file.py:name` or `module:name`. `key`: the setting. `loaded`: modules of earlier calls, which are not executed
    again. Raises `RewardError` for what it does not accept."""
    place, _, attribute = name.rpartition(":")
    path = Path(place).expanduser().resolve() if place.endswith(".py") else None
    if path is not None and not path.is_file():
        raise RewardError(f"{key}: no file {path}")
    try:
        module = (loaded or {}).get(place)
        if module is None:
            module = _from_file(path) if path is not None else importlib.import_module(place)
    except BaseException as error:  # whatever a module does when it is imported, sys.exit included
        where = raised_at(error, str(path or ""))
        text = f"{key}: importing {place} failed: {describe(error)}"
        raise RewardError(f"{text} ({where})" if where else text) from error
    if loaded is not None:
        loaded[place] = module
    function: Any = getattr(module, attribute, None)
    if function is not None and accepts(function):
        found: Callable[..., Any] = function
        return found
    if hasattr(module, attribute):
        raise RewardError(
            f"{key}: {attribute!r} in {place} is {short(function)} ({type(function).__name__}), not a function"
        )
    names = [each for each, value in vars(module).items() if callable(value) and not each.startswith("_")]
    close = difflib.get_close_matches(attribute, names, n=1)
    guess = f"did you mean {close[0]}?" if close else f"it has: {', '.join(names) or 'none'}"
    raise RewardError(f"{key}: {place} has no function {attribute!r}; {guess}")


def _from_file(path: Path) -> Any:
    sys.path.insert(0, str(path.parent))  # as when it is run: it can import its neighbours
    name = f"rhymed_scorer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    spec.loader.exec_module(module)
    return module
