"""What a scorer returns, checked: a finite reward, and weights of the sample or of its tokens in the loss.

A scorer returns a number, or a dict with it as `score` (verl's name) or `reward`. The dict may have `weight`, one
number, and `token_weights`, one number per response token. Weights are finite and not negative. Finite numbers under
other keys are parts of the reward, to be shown; what else lies there is left out. Whatever else comes raises
`RewardError` that quotes it, and never becomes a zero. Knows no scorers.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

from rhymed.errors import RewardError
from rhymed.text import short

REWARDS = ("score", "reward")
WEIGHTS = ("weight", "token_weights")
MOST_PARTS = 32  # that one function names
LONGEST_NAME = 64  # characters of a part's name


class Result(NamedTuple):
    reward: float
    weight: float = 1.0  # of the sample in the loss
    token_weights: bytes = b""  # float32, one per response token; empty: all 1
    named: dict[str, float] | None = None  # parts of the reward that the scorer names; they only inform


def read(value: Any, name: str, tokens: Sequence[int], *, optional: bool) -> Result | None:
    """`name`: of the scorer, in errors. `optional`: None is allowed and means that the scorer does not apply."""
    reward = _reward(value, name)
    if reward is None and optional:
        return None
    number = finite(reward, name)
    if not isinstance(value, dict):
        return Result(number)
    weight, of_tokens = value.get("weight"), value.get("token_weights")
    return Result(
        number,
        1.0 if weight is None else _weight(weight, name),
        b"" if of_tokens is None else _token_weights(of_tokens, name, len(tokens)),
        _named(value),
    )


def finite(value: Any, name: str) -> float:
    """A reward as a finite float."""
    if value is None:
        raise RewardError(f"{name} returned None: no reward for this sample (None needs several reward.scorers)")
    number = _number(value, name, "")
    if not math.isfinite(number):
        raise RewardError(f"{name} returned {number}: a reward must be finite")
    return number


def _reward(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        return value
    for key in REWARDS:
        if key in value:
            return value[key]
    raise RewardError(f"{name} returned a dict without 'score' or 'reward'; its keys: {', '.join(map(str, value))}")


def _named(result: dict[Any, Any]) -> dict[str, float] | None:
    """The first `MOST_PARTS` finite numbers under names of their own."""
    found: dict[str, float] = {}
    for name, value in result.items():
        if name in (*REWARDS, *WEIGHTS) or not isinstance(name, str) or len(found) == MOST_PARTS:
            continue
        with contextlib.suppress(Exception):  # of the user's objects
            number = _number(value, "", "")
            if math.isfinite(number):
                found[name[:LONGEST_NAME]] = number
    return found or None


def _number(value: Any, name: str, what: str) -> float:
    """`what`: a part of the result, with a blank at its end."""
    if isinstance(value, str | bytes) or not hasattr(value, "__float__"):
        raise RewardError(f"{name} returned {what}{short(value)} ({type(value).__name__}) instead of a number")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # of torch: RuntimeError
        raise RewardError(f"{name} returned {what}{short(value)}, which is not a number: {error}") from None


def _weight(value: Any, name: str) -> float:
    weight = _number(value, name, "weight = ")
    (short_weight,) = array("f", [weight])
    if not (math.isfinite(short_weight) and weight >= 0):
        raise RewardError(f"{name} returned weight = {weight}: a weight must be finite (in 32 bits) and not negative")
    return weight


def _token_weights(values: Any, name: str, count: int) -> bytes:
    try:
        listed = None if isinstance(values, str | bytes | dict) else list(values)
    except TypeError:
        listed = None
    if listed is None:
        raise RewardError(f"{name} returned token_weights = {short(values)} instead of a list of numbers")
    if len(listed) != count:
        raise RewardError(
            f"{name} returned {len(listed)} token_weights for {count} response tokens: return one for each"
        )
    weights = array("f", [_number(value, name, f"token_weights[{at}] = ") for at, value in enumerate(listed)])
    for at, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight >= 0):
            raise RewardError(
                f"{name} returned token_weights[{at}] = {short(listed[at])}: a weight must be finite (in 32 bits) and"
                " not negative"
            )
    return weights.tobytes()
