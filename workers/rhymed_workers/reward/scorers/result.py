"""What a scorer returns, checked: a finite reward, and what turns or tokens earned of it.

A scorer returns a number, or a dict with it as `score` (verl's name) or `reward`. The dict may have `turn_rewards`,
one number per turn of the policy, and `token_rewards`, one per response token: the reward is their sum. Finite
numbers under other keys are parts of the reward, to be shown; what else lies there is left out. Whatever else comes
raises `RewardError` that quotes it, and never becomes a zero. Knows no scorers.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from rhymed.core.errors import RewardError
from rhymed.core.messages import TokenReward
from rhymed.core.messages.fields import Report, Word, Worded
from rhymed.core.text import short

LARGEST = 1e12  # of a reward, up or down
TOO_LARGE = f"too large: a reward is at most {LARGEST:g}, up or down, so that its square fits a number of 32 bits"
REWARDS = ("score", "reward")
EARNED = ("turn_rewards", "token_rewards")
TOLERANCE = 1e-6  # relative, of a reward next to those of turns or tokens
MOST_PARTS = 32  # that one function names
LONGEST_NAME = 64  # characters of a part's name
LONGEST_NOTE = 1000  # characters of a text of a sample
FAULT = "fault"
"""The note of a response that gets 0 because it makes a scorer fail, or work to the time limit: why."""


class Logged(NamedTuple):
    """A result and the logged values: those of its sample, and those of the call (in one of its samples)."""

    value: Any
    extras: Mapping[str, Any]
    metrics: dict[str, float]


class Result(Worded, msgspec.Struct, frozen=True):
    """What a sample got, from one scorer (`Verdict`) or from all (`rhymed_workers.reward.outcome.Outcome`)."""

    reward: float | None = None
    token_rewards: list[TokenReward] = []  # where parts of the reward were earned, as in `Score`
    named: dict[Word, float] = {}  # parts of a scorer's reward that it names; they only inform
    notes: dict[Word, Report] = {}  # texts of the sample, by the scorer's names
    metrics: dict[Word, float] = {}  # of the scoring call; in one sample of that call
    error: Report | None = None
    timeout: bool = False
    seconds: float = 0.0  # of scoring alone


class Verdict(Result, frozen=True):
    """One scorer's result; `reward` is before its weight. Neither reward nor error: it does not apply."""

    label: str = ""  # of the scorer, see rhymed.core.config.Scorer
    unsuitable: bool = False  # the error is the row's: no response to it can be scored
    unplayed: bool = False  # the error is that there was no episode, as in a check

    @property
    def of_row(self) -> bool:
        """Whether the error is that of all samples of the prompt."""
        return self.unsuitable or self.unplayed


def read(value: Any, name: str, tokens: Sequence[int], turn_ends: Sequence[int], *, optional: bool) -> Verdict | None:
    """`name`: of the scorer, in errors. `turn_ends`: the last token of each turn. `optional`: None is allowed and
    means that the scorer does not apply."""
    value, extras, metrics = value if isinstance(value, Logged) else Logged(value, {}, {})
    given = value if isinstance(value, dict) else {}
    if "token_weights" in given:
        raise RewardError(f"{name} returned token_weights: no weight in the loss is read; leave a sample out by None")
    earned = _earned(given, name, len(tokens), turn_ends)
    reward = _reward(value, name, earned)
    if reward is None and optional:
        return None
    number = finite(reward, name)
    return Verdict(
        number,
        [] if list(earned) == list(turn_ends[-1:]) else list(earned.items()),
        _named({**given, **{str(each): found for each, found in extras.items()}}),
        {each: text for each, found in extras.items() if (text := _note(found))},
        metrics,
    )


def _note(value: Any) -> str:
    """A text that was logged for a sample; empty for a number, which is one of its parts."""
    with contextlib.suppress(Exception):  # of the user's objects
        return "" if value is None or finite_or_none(value) is not None else str(value)[:LONGEST_NOTE]
    return ""


def finite(value: Any, name: str) -> float:
    """A reward as a finite float of at most `LARGEST`."""
    if value is None:
        raise RewardError(f"{name} returned None: no reward for this sample (None needs several reward.scorers)")
    number = _number(value, name, "")
    if not math.isfinite(number):
        raise RewardError(f"{name} returned {number}: a reward must be finite")
    if abs(number) > LARGEST:
        raise RewardError(f"{name} returned {number:g}: {TOO_LARGE}")
    return number


def _reward(value: Any, name: str, earned: Mapping[int, float]) -> Any:
    if not isinstance(value, dict):
        return value
    total = math.fsum(earned.values())
    has_earned = any(value.get(key) is not None for key in EARNED)
    for key in REWARDS:
        if key not in value:
            continue
        if has_earned and value[key] is not None:
            size = max(1.0, math.fsum(map(abs, earned.values())))
            if not abs(finite(value[key], name) - total) <= TOLERANCE * size:
                raise RewardError(
                    f"{name} returned {key} = {short(value[key])} and rewards of turns or tokens with the sum"
                    f" {total:g}: a reward is their sum, so leave {key} out"
                )
        return value[key]
    if has_earned:
        return total
    raise RewardError(f"{name} returned a dict without 'score' or 'reward'; its keys: {', '.join(map(str, value))}")


def _named(result: dict[Any, Any]) -> dict[str, float]:
    """The first `MOST_PARTS` finite numbers under names of their own."""
    found: dict[str, float] = {}
    for name, value in result.items():
        if name in (*REWARDS, *EARNED) or not isinstance(name, str) or len(found) == MOST_PARTS:
            continue
        if (number := finite_or_none(value)) is not None:
            found[name[:LONGEST_NAME]] = number
    return found


def finite_or_none(value: Any) -> float | None:
    """The value as a finite number, for values that are only shown; None: it is none."""
    with contextlib.suppress(Exception):  # of the user's objects
        number = _number(value, "", "")
        return number if math.isfinite(number) else None
    return None


def _number(value: Any, name: str, what: str) -> float:
    """`what`: a part of the result, with a blank at its end."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"{name} returned {what}{short(value)} ({type(value).__name__}) instead of a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of torch: RuntimeError
        raise RewardError(f"{name} returned {what}{short(value)}, which is not a number: {error}") from None


def _earned(given: Mapping[Any, Any], name: str, tokens: int, turn_ends: Sequence[int]) -> dict[int, float]:
    """By token, in order: what it earned, if that is not 0. A turn's reward is its last token's."""
    sums: dict[int, float] = {}
    kinds = (("turn_rewards", turn_ends, "turns"), ("token_rewards", range(tokens), "response tokens"))
    for key, places, what in kinds:
        if given.get(key) is not None:
            listed = _listed(given[key], key, name, len(places), what)
            for at, (place, value) in enumerate(zip(places, listed, strict=True)):
                number = _number(value, name, f"{key}[{at}] = ")
                if not abs(number) <= LARGEST:
                    raise RewardError(f"{name} returned {key}[{at}] = {number:g}, which is no number, or {TOO_LARGE}")
                sums[place] = sums.get(place, 0.0) + number
    return {place: reward for place, reward in sorted(sums.items()) if reward}


def list_of(values: Any) -> list[Any] | None:
    """Its elements; None: it is a single value."""
    try:
        return None if isinstance(values, str | bytes | dict) else list(values)
    except TypeError:
        return None


def _listed(values: Any, key: str, name: str, count: int, what: str) -> list[Any]:
    if (listed := list_of(values)) is None:
        raise RewardError(f"{name} returned {key} = {short(values)} instead of a list of numbers")
    if len(listed) != count:
        raise RewardError(f"{name} returned {len(listed)} {key} for {count} {what}: return one for each")
    return listed
