"""The scorers that come with rhymed. Each takes its `Setting` and checks it; unknown arguments are refused.

What they compare with stands in the row (rhymed_workers.scorers.answer). They may raise `RewardError` about a row, never
about a response: whatever a model writes has a reward.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from rhymed.config import Data
from rhymed.errors import ConfigError, RewardError
from rhymed.inputs.gym import gym_dataset, gym_entry
from rhymed.inputs.rows import Row
from rhymed_workers.scorers.answer import normal, reference_text
from rhymed_workers.scorers.setting import Setting

Raw: TypeAlias = Callable[[str, Row, Sequence[int]], Any]
"""(answer, row, response tokens) to whatever a scorer returns."""

THOUGHT = (
    r"\s*<think>(?:(?!</?(?:think|answer)>).)*</think>"
    r"\s*<answer>(?:(?!</?(?:think|answer)>).)*</answer>\s*"
)
"""Each of the two once, in this order, and nothing outside."""


SCORED_BY = {"config", "datasets", "word_sets", "board_format_opts"}
"""Attributes of reasoning_gym's datasets that follow from their arguments and that some `score_answer` read."""


def _reasoning_gym(setting: Setting) -> Raw:
    """The task's official `score_answer`, of a dataset with the row's arguments: some tasks score by them."""
    setting.only()
    config = setting.config
    if config.data.source != "reasoning_gym":
        raise RewardError(
            f"{setting.key}.scorer is 'reasoning_gym' (the default), which needs data.source = 'reasoning_gym'; for"
            " rows of your own name math (numbers, formulas), exact or regex (text), or file.py:function"
        )
    tasks: dict[str, Any] = {}
    for data in (config.data, *config.eval.datasets):
        if data.source == "reasoning_gym":
            _add_task(tasks, data, setting.key)

    def score(answer: str, row: Row, tokens: Sequence[int]) -> Any:
        dataset = tasks.get(str(row.get("data_source")))
        if dataset is None or "metadata" not in row:
            raise RewardError(f"scorer reasoning_gym: {_foreign(row, tasks)}")
        # The official reading of "no answer found" is None.
        return dataset.score_answer(answer.strip() or None, gym_entry(row))

    return score


def _add_task(tasks: dict[str, Any], data: Data, key: str) -> None:
    try:
        dataset = gym_dataset(data.task, {**data.args, "size": 1, "seed": 0})
    except ConfigError as error:
        raise RewardError(str(error)) from None
    known = tasks.setdefault(data.task, dataset)
    if known.config != dataset.config and SCORED_BY.intersection(type(dataset).score_answer.__code__.co_names):
        raise RewardError(
            f"{key}.scorer = 'reasoning_gym': {data.task} scores by its arguments, but data and eval.datasets give it"
            " different ones, and a row does not tell which are its own; give them the same"
        )


def _foreign(row: Row, tasks: dict[str, Any]) -> str:
    """What to score a row with that no task made."""
    what = f"the row is none of {', '.join(tasks)} (its data_source: {row.get('data_source')!r})"
    try:
        wanted = reference_text(row)
    except RewardError:
        return f"{what}; score it with file.py:function"
    scorer = "math" if re.search(r"[\d\\$]", wanted) else "exact"
    return f"{what}; reward.scorer = {scorer!r} suits its reference answer {wanted[:40]!r}"


def _math(setting: Setting) -> Raw:
    """1 if math-verify holds answer and reference for the same mathematical object.

    Its own alarms are off: they turn a time-out into "wrong". The pool's time limit counts it as a time-out.
    """
    setting.only("column")
    try:
        import math_verify
    except ImportError as error:
        raise RewardError(f"{setting.key}.scorer = 'math': {error}; pip install 'rhymed[reward]'") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # warns that it has no time limit of its own
    parse = functools.partial(math_verify.parse, parsing_timeout=None)
    bare = setting.scorer.answer in ("boxed", "tag")

    def score(answer: str, row: Row, tokens: Sequence[int]) -> float:
        wanted = reference_text(row, setting.column)
        gold = parse(wanted if "$" in wanted or "\\boxed" in wanted else f"\\boxed{{{wanted}}}")
        if not gold:
            raise RewardError(f"math-verify cannot read the row's reference answer {wanted!r}")
        if not answer.strip():
            return 0.0
        given = parse(f"\\boxed{{{answer}}}" if bare and "$" not in answer and "\\boxed" not in answer else answer)
        return float(math_verify.verify(gold, given, timeout_seconds=None))

    return score


def _exact(setting: Setting) -> Raw:
    """1 if the answer is the reference, as `normal` writes them."""
    setting.only("column", "ignore_case")
    fold = bool(setting.scorer.args.get("ignore_case", False))

    def score(answer: str, row: Row, tokens: Sequence[int]) -> float:
        given, wanted = normal(answer), normal(reference_text(row, setting.column))
        return float(given.casefold() == wanted.casefold() if fold else given == wanted)

    return score


def _regex(setting: Setting) -> Raw:
    """1 if `args.pattern` is found in the answer; if it has a group, the last find's must be the reference."""
    setting.only("pattern", "column")
    pattern = setting.pattern(re.MULTILINE)

    def score(answer: str, row: Row, tokens: Sequence[int]) -> float:
        wanted = reference_text(row, setting.column) if pattern.groups else ""
        found = list(pattern.finditer(answer))
        if not found or not pattern.groups:
            return float(bool(found))
        return float(normal(found[-1].group(1) or "") == normal(wanted))

    return score


def _format(setting: Setting) -> Raw:
    """1 if the whole response matches `args.pattern`; without it: <think>…</think>, then <answer>…</answer>."""
    setting.only("pattern")
    setting.whole()
    pattern = setting.pattern(re.DOTALL, THOUGHT)
    return lambda response, row, tokens: float(pattern.fullmatch(response) is not None)


def _length_penalty(setting: Setting) -> Raw:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4), by tokens: 0, then linear down to -1."""
    setting.only("buffer", "max_length")
    setting.whole()
    longest = setting.count("max_length", setting.config.rollout.max_response_length)
    buffer = setting.count("buffer", max(1, longest // 4))
    if buffer > longest:
        raise RewardError(f"{setting.key}.args: buffer = {buffer} is more than max_length = {longest}")
    free = longest - buffer
    return lambda response, row, tokens: max(-1.0, min(0.0, (free - len(tokens)) / buffer))


def _code(setting: Setting) -> Raw:
    """The tests of the row that the program in the answer passes: their part, or 1 for all."""
    from rhymed_workers.scorers.code import Code  # it looks for a sandbox

    return Code(setting)


BUILT_IN: dict[str, Callable[[Setting], Raw]] = {
    "reasoning_gym": _reasoning_gym,
    "math": _math,
    "code": _code,
    "exact": _exact,
    "regex": _regex,
    "format": _format,
    "length_penalty": _length_penalty,
}
