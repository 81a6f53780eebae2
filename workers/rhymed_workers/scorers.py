"""From `reward.scorer` to one function `(response text, row) -> finite float`.

Built in: `reasoning_gym`, `math`, `exact`, `regex`. Else `file.py:function` or `module:function`, with TRL's
parameters or verl's, sync or async, unchanged. A scorer that cannot be used raises `RewardError` when it is loaded,
and one that answers with no finite number raises it then. Neither ever becomes a zero.

Runs in a scoring subprocess (rhymed_workers.pool), which bounds its time; it knows nothing of processes itself.
"""

from __future__ import annotations

import asyncio
import difflib
import functools
import importlib
import importlib.util
import inspect
import logging
import math
import re
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from rhymed.config import Config
from rhymed.data import Row
from rhymed.errors import ConfigError, RewardError
from rhymed.sources import gym_dataset, gym_entry
from rhymed_workers.answer import extract, reference, reference_text

Scorer: TypeAlias = Callable[[str, Row], float]

TRL_GIVEN: tuple[str, ...] = ("prompts", "completions", "completion_ids")
VERL_GIVEN: tuple[str, ...] = ("data_source", "solution_str", "ground_truth", "extra_info")


def load_scorer(config: Config) -> Scorer:
    """The scorer of this run. Raises `RewardError` that says what to do."""
    name = config.reward.scorer
    if name in BUILT_IN:
        raw = BUILT_IN[name](config)
    elif ":" in name:
        raw = _user(name, config.reward.args)
    else:
        close = difflib.get_close_matches(name, BUILT_IN, n=1)
        guess = f"did you mean {close[0]}?" if close else f"known: {', '.join(BUILT_IN)}"
        raise RewardError(f"reward.scorer: no scorer {name!r}; {guess} Your own is written as file.py:function")
    kind = config.reward.answer

    def score(response: str, row: Row) -> float:
        return finite(raw(extract(response, kind), row), name)

    return score


def finite(value: Any, name: str) -> float:
    """The reward that a scorer meant; what is none is an error that says what came."""
    if isinstance(value, dict):
        if "score" not in value:
            raise RewardError(f"{name} returned a dict without 'score'; its keys: {', '.join(map(str, value))}")
        value = value["score"]
    if value is None:
        raise RewardError(f"{name} returned None: no reward for this sample")
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"{name} returned {_short(value)} ({type(value).__name__}) where a number is due")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RewardError(f"{name} returned {_short(value)}, which is no number: {error}") from None
    if not math.isfinite(number):
        raise RewardError(f"{name} returned {number}: a reward must be finite")
    return number


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# Built in


def _reasoning_gym(config: Config) -> Callable[[str, Row], Any]:
    """The task's official `score_answer`, of a dataset with this run's arguments: some tasks score by them."""
    _only(config, ())
    if config.data.source != "reasoning_gym":
        raise RewardError("reward.scorer = 'reasoning_gym' needs data.source = 'reasoning_gym'")
    try:
        dataset = gym_dataset(config.data.task, {"size": 1, "seed": 0, **config.data.args})
    except ConfigError as error:
        raise RewardError(str(error)) from None
    # The official reading of "no answer found" is None.
    return lambda answer, row: dataset.score_answer(answer.strip() or None, gym_entry(row))


def _math(config: Config) -> Callable[[str, Row], Any]:
    """1 if math-verify holds answer and reference for the same mathematical object.

    Its own alarms are off: they turn a time-out into "wrong". The pool's time limit counts it as a time-out.
    """
    _only(config, ("column",))
    try:
        import math_verify
    except ImportError as error:
        raise RewardError(f"reward.scorer = 'math': {error}; pip install 'rhymed[reward]'") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns that it has no time limit of its own
    parse = functools.partial(math_verify.parse, parsing_timeout=None)
    column = str(config.reward.args.get("column", ""))
    bare = config.reward.answer in ("boxed", "tag")

    def score(answer: str, row: Row) -> float:
        wanted = reference_text(row, column)
        gold = parse(wanted if "$" in wanted or "\\boxed" in wanted else f"\\boxed{{{wanted}}}")
        if not gold:
            raise RewardError(f"math-verify cannot read the row's reference answer {wanted!r}")
        if not answer.strip():
            return 0.0
        given = parse(f"\\boxed{{{answer}}}" if bare and "$" not in answer and "\\boxed" not in answer else answer)
        return float(math_verify.verify(gold, given, timeout_seconds=None))

    return score


def _exact(config: Config) -> Callable[[str, Row], Any]:
    """1 if the answer is the reference, blanks at the ends and runs of them inside aside."""
    _only(config, ("column", "ignore_case"))
    column, fold = str(config.reward.args.get("column", "")), bool(config.reward.args.get("ignore_case", False))

    def normal(text: str) -> str:
        text = " ".join(text.split())
        return text.casefold() if fold else text

    return lambda answer, row: float(normal(answer) == normal(reference_text(row, column)))


def _regex(config: Config) -> Callable[[str, Row], Any]:
    """1 if `args.pattern` is found in the answer; if it has a group, the last find's must be the reference."""
    _only(config, ("pattern", "column"))
    text = config.reward.args.get("pattern")
    if not isinstance(text, str) or not text:
        raise RewardError(r"reward.scorer = 'regex' needs reward.args.pattern, e.g. 'Answer: (\S+)'")
    try:
        pattern = re.compile(text, re.MULTILINE)
    except re.error as error:
        raise RewardError(f"reward.args.pattern: {error}") from None
    column = str(config.reward.args.get("column", ""))

    def score(answer: str, row: Row) -> float:
        wanted = reference_text(row, column) if pattern.groups else ""
        found = list(pattern.finditer(answer))
        if not found or not pattern.groups:
            return float(bool(found))
        return float((found[-1].group(1) or "").strip() == wanted)

    return score


def _only(config: Config, known: tuple[str, ...]) -> None:
    for name in config.reward.args:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {close[0]}?" if close else f"it takes: {', '.join(known) or 'none'}"
            raise RewardError(f"reward.args: scorer {config.reward.scorer} has no argument {name!r}; {guess}")


BUILT_IN: dict[str, Callable[[Config], Callable[[str, Row], Any]]] = {
    "reasoning_gym": _reasoning_gym,
    "math": _math,
    "exact": _exact,
    "regex": _regex,
}


# The user's own


def _user(name: str, args: dict[str, Any]) -> Callable[[str, Row], Any]:
    function = _import(name)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RewardError(f"{name}: its parameters cannot be read; wrap it in a plain function") from None
    open_ended = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if "completions" in parameters:
        given, adapt = TRL_GIVEN, _trl
    elif "solution_str" in parameters and "ground_truth" in parameters:
        given, adapt = VERL_GIVEN, _verl
    else:
        raise RewardError(
            f"{name}({', '.join(parameters)}) has neither TRL's parameters (prompts, completions, **columns) nor"
            " verl's (data_source, solution_str, ground_truth, extra_info=None)"
        )
    for key in args:
        if key in given or (key not in parameters and not open_ended):
            raise RewardError(f"reward.args.{key}: {name}({', '.join(parameters)}) cannot take it")
    required = {
        one.name
        for one in parameters.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    return adapt(name, _synchronous(function), set(parameters), required - set(given) - set(args), open_ended, args)


def _verl(
    name: str, call: Callable[..., Any], known: set[str], required: set[str], open_ended: bool, args: dict[str, Any]
) -> Callable[[str, Row], Any]:
    """verl's custom reward functions: one sample a call, `reward.args` as further keywords."""
    if required:
        raise RewardError(f"{name} also needs {', '.join(sorted(required))}: give it in reward.args")

    def score(answer: str, row: Row) -> Any:
        values = {
            "data_source": row.get("data_source"),
            "solution_str": answer,
            "ground_truth": reference(row),
            "extra_info": row.get("extra_info"),
        }
        return call(**{key: value for key, value in values.items() if open_ended or key in known}, **args)

    return score


def _trl(
    name: str, call: Callable[..., Any], known: set[str], required: set[str], open_ended: bool, args: dict[str, Any]
) -> Callable[[str, Row], Any]:
    """TRL's reward functions, called with a batch of one; columns as lists, as far as the function takes them.

    Completions look as in TRL: text for a text prompt, a list with the assistant's message for a conversation.
    `completion_ids` are not given (None): tokens stay with the store.
    """

    def score(answer: str, row: Row) -> Any:
        if missing := sorted(required - row.keys()):
            raise RewardError(f"{name} needs column {', '.join(missing)}; the row has: {', '.join(row)}")
        chat = isinstance(row.get("prompt"), list)
        values = {key: [value] for key, value in row.items() if key != "prompt"}
        values |= {
            "prompts": [row.get("prompt")],
            "completions": [[{"role": "assistant", "content": answer}] if chat else answer],
        }
        chosen: dict[str, Any] = {key: value for key, value in values.items() if open_ended or key in known}
        if "completion_ids" in known:
            chosen["completion_ids"] = None
        result = call(**(chosen | args))
        if isinstance(result, str | bytes | dict) or not hasattr(result, "__len__"):
            raise RewardError(f"{name} returned {_short(result)}: TRL's functions return a list, one reward a sample")
        if len(result) != 1:
            raise RewardError(f"{name} returned {len(result)} rewards for 1 completion")
        return result[0]

    return score


def _synchronous(function: Callable[..., Any]) -> Callable[..., Any]:
    """Whether it is async shows in what it returns. One event loop for all calls, so its sessions stay usable."""
    runner: list[asyncio.Runner] = []

    async def await_it(awaitable: Any) -> Any:
        return await awaitable

    def call(**given: Any) -> Any:
        result = function(**given)
        if not inspect.isawaitable(result):
            return result
        if not runner:
            runner.append(asyncio.Runner())
            weakref.finalize(call, runner[0].close)
        return runner[0].run(await_it(result))

    return call


def _import(name: str) -> Callable[..., Any]:
    place, _, attribute = name.rpartition(":")
    try:
        module = _from_file(Path(place).expanduser()) if place.endswith(".py") else importlib.import_module(place)
    except RewardError:
        raise
    except BaseException as error:  # whatever a module does when it is imported, sys.exit included
        raise RewardError(f"reward.scorer: importing {place} failed: {type(error).__name__}: {error}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        close = difflib.get_close_matches(attribute, names, n=1)
        guess = f"did you mean {close[0]}?" if close else f"it has: {', '.join(names) or 'none'}"
        raise RewardError(f"reward.scorer: {place} has no function {attribute!r}; {guess}")
    return found


def _from_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise RewardError(f"reward.scorer: no file {path}")
    sys.path.insert(0, str(path.parent))  # its neighbours can be imported, as when it is run
    name = f"rhymed_scorer_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a .py file has a spec"
    assert spec.loader is not None, "and a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    spec.loader.exec_module(module)
    return module
