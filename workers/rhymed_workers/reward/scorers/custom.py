"""Reward functions of the user: `file.py:function` or `module:function`, with TRL's or verl's signature, unchanged.

The parameters show which of the two it is: any of TRL's, or verl's for one sample or for a batch. Sync or async; a
function, a callable object or a partial. What the function raises becomes a `RewardError` that names the line and
keeps its cause.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from rhymed.core.errors import NotPlayed, RewardError, RowUnsuitable
from rhymed.core.text import counted, short
from rhymed_workers.reward.scorers.answer import ground_truth
from rhymed_workers.reward.scorers.result import LONGEST_NAME, MOST_PARTS, Logged, finite_or_none, list_of
from rhymed_workers.reward.scorers.setting import MESSAGES, STATE, TRANSCRIPT, Response, Setting
from rhymed_workers.sandbox.usercode import defined_at, describe, import_named, raised_at

log = logging.getLogger(__name__)

TRL_PARAMETERS: tuple[str, ...] = (
    "prompts",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
)
TRL_RESERVED = ("prompt", "completion", "completion_ids")
"""Columns that TRL does not pass on."""
VERL_PARAMETERS: tuple[str, ...] = ("data_source", "solution_str", "ground_truth", "extra_info")
VERL_BATCH: tuple[str, ...] = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
TOKENS = "response_ids"
"""Parameter of a verl function that wants the response's token ids, e.g. to weight them; verl has none."""


def load_function(setting: Setting) -> Custom:
    name, key, args = setting.scorer.scorer, setting.key, setting.scorer.args
    function = import_named(name, f"{key}.scorer")
    if inspect.isclass(function):
        raise RewardError(f"{key}.scorer: {name} is a class: name a function, or an object made of it in the module")
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RewardError(f"{name}: its parameters cannot be read; wrap it in a plain function") from None
    custom = Custom(name, function, parameters, setting)
    for argument in args:
        if argument in custom.supplied or not custom.takes(argument):
            raise RewardError(f"{key}.args.{argument}: {name}({', '.join(parameters)}) cannot take it")
    if custom.required and not custom.has_columns:
        raise RewardError(f"{custom.title} also needs {', '.join(sorted(custom.required))}: give it in {key}.args")
    return custom


def _convention(name: str, parameters: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    """The parameters of the convention that it follows, whose values come from rhymed."""
    if "solution_str" in parameters and "ground_truth" in parameters:
        return (*VERL_PARAMETERS, TOKENS)
    if "solution_strs" in parameters:
        return (*VERL_BATCH, TOKENS)
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if anything or any(each in parameters for each in TRL_PARAMETERS):
        return TRL_PARAMETERS
    raise RewardError(
        f"{name}({', '.join(parameters)}) has neither TRL's parameters (prompts, completions, **columns) nor"
        " verl's (data_source, solution_str, ground_truth, extra_info=None)"
    )


class Custom:
    """A user's function, and how it is called.

    `supplied`: parameters whose values come from rhymed. `whole`: it gets all samples of a group in one call.
    """

    def __init__(
        self, name: str, function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], setting: Setting
    ) -> None:
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        required = {each.name for each in parameters.values() if each.default is each.empty and each.kind in by_name}
        self.name, self.supplied = name, _convention(name, parameters)
        self._args = setting.scorer.args
        self._extracted = setting.scorer.answer != "full"
        self._max_steps = setting.steps
        self._needs_environments = "environments" in required and self.supplied is TRL_PARAMETERS
        if self._needs_environments and not setting.environments:
            raise RewardError(f"{name} takes environments, and the run has none: name a class in environment.factory")
        self._call = _synchronous(function)
        self._names = set(parameters)
        self._open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
        self.required = required - set(self.supplied) - self._args.keys()
        self._file, line = defined_at(function) or ("", 0)
        self._short = name.rpartition(":")[2]
        self.title = f"{self._short} ({self._file}, line {line})" if self._file else name
        self.has_columns = self.supplied is TRL_PARAMETERS
        self.whole = self._is_whole(setting.reward.call)

    def takes(self, parameter: str) -> bool:
        return self._open_ended or parameter in self._names

    def _is_whole(self, asked: str) -> bool:
        """A function of lists may compare their elements."""
        lists = self.has_columns or self.supplied[0] in VERL_BATCH
        if asked == "group" and not lists:
            raise RewardError(f"reward.call = 'group': {self.title} has parameters for one sample, and no lists")
        return lists and asked != "sample"

    def score(self, responses: Sequence[Response]) -> list[Any]:
        """The result for each sample: of one sample, or of all samples of a group, which have the same row."""
        if not self.has_columns:
            return self._verl(responses)
        row = responses[0].row
        if missing := sorted(self.required - row.keys()):
            raise RowUnsuitable(f"{self.title} needs column {', '.join(missing)}; the row has: {', '.join(row)}")
        logged = Log(len(responses), self._short)
        values: dict[str, Any] = {
            key: [each.row.get(key) for each in responses] for key in row if key not in (*TRL_RESERVED, STATE)
        }
        values |= {
            "prompts": [each.row.get("prompt") for each in responses],
            "completions": [self._completion(each) for each in responses],
            "completion_ids": [list(each.tokens) for each in responses],
            "trainer_state": SimpleNamespace(global_step=responses[0].step, max_steps=self._max_steps),
            "log_extra": logged.extra,
            "log_metric": logged.metric,
        }
        if any(STATE in each.row for each in responses):
            values["environments"] = [EnvironmentState(**(each.row.get(STATE) or {})) for each in responses]
        elif self._needs_environments:
            raise NotPlayed(f"{self.title} reads environments, and no episode was played")
        return logged.attached(self._one_each(self._run(values), len(responses)))

    def _completion(self, response: Response) -> Any:
        """As in TRL: text for a text prompt, and messages for a conversation, those of tools included."""
        if not isinstance(response.row.get("prompt"), list):
            return self._all_of(response)
        transcript = None if self._extracted else response.row.get(MESSAGES)
        return transcript or [{"role": "assistant", "content": response.text}]

    def _all_of(self, response: Response) -> str:
        """The whole text of a sample in turns, its environment's text included."""
        return response.text if self._extracted else str(response.row.get(TRANSCRIPT, response.text))

    def _verl(self, responses: Sequence[Response]) -> list[Any]:
        """verl's conventions: one sample, or lists; `args` as further keywords, the tokens if a parameter names
        them."""
        values: dict[str, list[Any]] = {
            "data_source": [each.row.get("data_source") for each in responses],
            "solution_str": [self._all_of(each) for each in responses],
            "ground_truth": [ground_truth(each.row) for each in responses],
            "extra_info": [each.row.get("extra_info") for each in responses],
        }
        if TOKENS in self._names:
            values[TOKENS] = [list(each.tokens) for each in responses]
        if self.supplied[0] in VERL_BATCH:
            plural = {name if name == TOKENS else f"{name}s": each for name, each in values.items()}
            return self._one_each(self._run(plural), len(responses))
        return [self._run({name: each[place] for name, each in values.items()}) for place in range(len(responses))]

    def _one_each(self, result: Any, count: int) -> list[Any]:
        if (listed := list_of(result)) is None:
            raise RewardError(
                f"{self.title} returned {short(result)}: functions of lists return a list, one reward per completion"
            )
        if len(listed) != count:
            rewards, completions = counted(len(listed), "reward"), counted(count, "completion")
            raise RewardError(f"{self.title} returned {rewards} for {completions}: return one for each")
        return listed

    def _run(self, values: dict[str, Any]) -> Any:
        chosen = {key: value for key, value in values.items() if self.takes(key)}
        try:
            return self._call(**(chosen | self._args))
        except BaseException as error:  # SystemExit is user code's too
            place = raised_at(error, self._file)
            what = f"{self._short} raised {describe(error)}" if place else f"{self.title} raised {describe(error)}"
            raise RewardError(f"{what} ({place})" if place else what) from error


class EnvironmentState(SimpleNamespace):
    """An environment when its sample ended: the public attributes that JSON can represent, and no methods."""


class Log:
    """Values that a function logs by TRL's `log_metric` and `log_extra` in one call. Unusable ones are left out, and
    the score stays valid."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._metrics: dict[str, list[float]] = {}
        self._columns: dict[str, list[Any]] = {}

    def metric(self, name: str, value: Any) -> None:
        if (number := finite_or_none(value)) is None:
            self._left_out(f"log_metric({short(name)}, {short(value)}): it is no finite number")
        elif name in self._metrics or len(self._metrics) < MOST_PARTS:
            self._metrics.setdefault(str(name)[:LONGEST_NAME], []).append(number)

    def extra(self, column: str, values: Any) -> None:
        try:
            listed = [values] * self._count if isinstance(values, str | bytes | dict) else list(values)
        except TypeError:
            listed = []
        if len(listed) != self._count:
            self._left_out(f"log_extra({short(column)}, ...): {len(listed)} values for {self._count} completions")
        elif column in self._columns or len(self._columns) < MOST_PARTS:
            self._columns[str(column)[:LONGEST_NAME]] = listed

    def attached(self, results: Sequence[Any]) -> list[Any]:
        """The results as dicts with the logged values; unchanged if nothing was."""
        if not (self._metrics or self._columns):
            return list(results)
        metrics = {name: sum(values) / len(values) for name, values in self._metrics.items()}
        # One sample has the metrics, so that they count once.
        bearer = next((place for place, result in enumerate(results) if result is not None), 0)
        return [
            Logged(
                result,
                {name: values[place] for name, values in self._columns.items()},
                metrics if place == bearer else {},
            )
            for place, result in enumerate(results)
        ]

    def _left_out(self, why: str) -> None:
        log.warning("%s: %s; left out", self._name, why)


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
            atexit.register(runner[0].close)
        return runner[0].run(await_it(result))

    return call
