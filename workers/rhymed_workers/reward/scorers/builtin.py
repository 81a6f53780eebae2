"""The built-in scorers. Each takes its `Setting` and checks it; unknown arguments are refused.

The reference answer is in the row (rhymed_workers.reward.scorers.answer). They may raise `RowUnsuitable`, and no
error about a response: every response gets a reward. One that makes a library fail, or work too long, is wrong.

To add a scorer: a function here with its entry in `BUILT_IN`, and its name in the description of `reward.scorer`.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rhymed.core.errors import ConfigError, RewardError, RowUnsuitable
from rhymed.inputs.gym import gym_dataset, gym_entry
from rhymed.inputs.rows import Row
from rhymed_workers.reward.scorers.answer import equal, references
from rhymed_workers.reward.scorers.result import FAULT, Logged
from rhymed_workers.reward.scorers.setting import EARNED, TURN_REWARDS, Setting
from rhymed_workers.sandbox.usercode import describe

if TYPE_CHECKING:
    from rhymed.core.config import Dataset

Raw: TypeAlias = Callable[[str, Row, Sequence[int]], Any]
"""(answer, row, response tokens) -> whatever a scorer returns."""

THOUGHT = (
    r"\s*<think>(?:(?!</?(?:think|answer)>).)*</think>"
    r"\s*<answer>(?:(?!</?(?:think|answer)>).)*</answer>\s*"
)
"""Both parts once, in this order, and nothing outside them."""

SCORED_BY = {"config", "datasets", "word_sets", "board_format_opts"}
"""Attributes of reasoning_gym's datasets that depend on their arguments and that some `score_answer` read."""


def _judge(setting: Setting) -> Raw:
    """A model on a server, which the reward worker itself asks (rhymed_workers.reward.judges)."""

    def score(answer: str, row: Row, tokens: Sequence[int]) -> Any:
        raise RewardError("scorer judge is asked by a reward worker, and not by a scoring process")

    return score


def _environment(setting: Setting) -> Raw:
    """The reward that the sample's environment gave, with each turn."""
    setting.allow_only()

    def score(answer: str, row: Row, tokens: Sequence[int]) -> Any:
        if row.get(EARNED) is None:
            raise RowUnsuitable(
                "scorer environment: the environment gave no reward: it needs get_reward() (TRL), or step() that"
                " returns a reward (SkyRL-Gym); for tools alone name another scorer"
            )
        turns = row.get(TURN_REWARDS)
        return row[EARNED] if turns is None else {"reward": row[EARNED], "turn_rewards": turns}

    return score


def _reasoning_gym(setting: Setting) -> Raw:
    """The task's official `score_answer`, of a dataset with the row's arguments: some tasks score by them."""
    setting.allow_only()
    if setting.datasets[0].source != "reasoning_gym":
        raise RewardError(
            f"{setting.key}.scorer is 'reasoning_gym' (the default), which needs data.source = 'reasoning_gym'; for"
            " rows of your own name math (numbers, formulas), exact or regex (text), environment (what the sample's"
            " environment gave), or file.py:function"
        )
    tasks: dict[str, Any] = {}
    for data in setting.datasets:
        if data.source == "reasoning_gym":
            _add_task(tasks, data, setting.key)

    def score(answer: str, row: Row, tokens: Sequence[int]) -> Any:
        dataset = tasks.get(str(row.get("data_source")))
        if dataset is None or "metadata" not in row:
            raise RowUnsuitable(
                f"scorer reasoning_gym: the row is none of {', '.join(tasks)} (its data_source:"
                f" {row.get('data_source')!r}); for rows of your own name another reward.scorer, e.g. math or exact"
            )
        # reasoning_gym represents "no answer found" as None.
        return _or_wrong(lambda: dataset.score_answer(answer.strip() or None, gym_entry(row)))

    return score


def _add_task(tasks: dict[str, Any], data: Dataset, key: str) -> None:
    try:
        dataset = gym_dataset(data.task, {**data.args, "size": 1, "seed": 0})
    except ConfigError as error:
        raise RewardError(str(error)) from None
    earlier = tasks.setdefault(data.task, dataset)
    if earlier.config != dataset.config and SCORED_BY.intersection(type(dataset).score_answer.__code__.co_names):
        raise RewardError(
            f"{key}.scorer = 'reasoning_gym': {data.task} scores by its arguments, but data and eval.datasets give it"
            " different ones, and a row does not record which are its own; give them the same"
        )


def _math(setting: Setting) -> Raw:
    """1 if math-verify finds answer and reference mathematically equal.

    Its own alarms are off: they would turn a time-out into "wrong", which the pool's limit counts as a time-out.
    """
    setting.allow_only("column")
    try:
        import math_verify
    except ImportError as error:
        raise RewardError(f"{setting.key}.scorer = 'math': {error}; pip install 'rhymed[reward]'") from None
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # else it warns that its time limit is off
    parse = functools.partial(math_verify.parse, parsing_timeout=None)
    bare = setting.scorer.answer in ("boxed", "tag")

    def score(answer: str, row: Row, tokens: Sequence[int]) -> Any:
        texts = references(row, setting.column)
        golds = [parse(one if "$" in one or "\\boxed" in one else f"\\boxed{{{one}}}") for one in texts]
        if not all(golds):
            raise RowUnsuitable(
                f"math-verify cannot read the row's reference answer {texts[list(map(bool, golds)).index(False)]!r}"
            )
        if not answer.strip():
            return 0.0
        written = f"\\boxed{{{answer}}}" if bare and "$" not in answer and "\\boxed" not in answer else answer

        def right() -> float:
            parsed = parse(written)
            return float(any(math_verify.verify(gold, parsed, timeout_seconds=None) for gold in golds))

        return _or_wrong(right)

    return score


def _or_wrong(score: Callable[[], Any]) -> Any:
    """0, and the reason as a note, for a response that makes a library fail: no policy learns to write such ones."""
    try:
        return score()
    except Exception as error:
        return Logged(0.0, {FAULT: describe(error)}, {})


def _exact(setting: Setting) -> Raw:
    """1 if the answer equals the reference, or one of them."""
    setting.allow_only("column", "ignore_case")
    fold = bool(setting.scorer.args.get("ignore_case", False))

    def score(answer: str, row: Row, tokens: Sequence[int]) -> float:
        texts = references(row, setting.column)
        if fold:
            answer, texts = answer.casefold(), [text.casefold() for text in texts]
        return float(any(equal(answer, text) for text in texts))

    return score


def _regex(setting: Setting) -> Raw:
    """1 if `args.pattern` matches in the answer; if it has a group, that of the last match must be the reference."""
    setting.allow_only("pattern", "column")
    pattern = setting.pattern(re.MULTILINE)

    def score(answer: str, row: Row, tokens: Sequence[int]) -> float:
        texts = references(row, setting.column) if pattern.groups else []
        matches = list(pattern.finditer(answer))
        if not matches or not pattern.groups:
            return float(bool(matches))
        return float(any(equal(matches[-1].group(1) or "", text) for text in texts))

    return score


def _format(setting: Setting) -> Raw:
    """1 if the whole response matches `args.pattern`; without it: <think>…</think>, then <answer>…</answer>."""
    setting.allow_only("pattern")
    setting.require_whole_response()
    pattern = setting.pattern(re.DOTALL, THOUGHT)
    return lambda response, row, tokens: float(pattern.fullmatch(response) is not None)


def _none(setting: Setting) -> Raw:
    """0 for every response: for a run that learns from answers or from a teacher."""
    setting.allow_only()
    return lambda response, row, tokens: 0.0


def _length_penalty(setting: Setting) -> Raw:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4), by tokens: 0, then linear down to -1."""
    setting.allow_only("buffer", "max_length")
    setting.require_whole_response()
    longest = setting.count("max_length", setting.max_response_length)
    buffer = setting.count("buffer", max(1, longest // 4))
    if buffer > longest:
        raise RewardError(f"{setting.key}.args: buffer = {buffer} is more than max_length = {longest}")
    return lambda response, row, tokens: max(-1.0, min(0.0, (longest - buffer - len(tokens)) / buffer))


def _code(setting: Setting) -> Raw:
    """1 if the program in the answer passes the row's tests, or the fraction that it passes."""
    from rhymed_workers.reward.scorers.code import Code  # imports the sandbox

    return Code(setting)


LATE_BY_RESPONSE = frozenset({"math", "exact", "regex", "format", "reasoning_gym"})
"""Scorers that take long only because of a response: one that keeps the process busy to the time limit gets 0."""

BUILT_IN: dict[str, Callable[[Setting], Raw]] = {
    "environment": _environment,
    "reasoning_gym": _reasoning_gym,
    "math": _math,
    "code": _code,
    "exact": _exact,
    "regex": _regex,
    "format": _format,
    "length_penalty": _length_penalty,
    "judge": _judge,
    "none": _none,
}
