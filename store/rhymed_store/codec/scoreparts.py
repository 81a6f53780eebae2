"""Each scorer's reward for a sample, its texts, and the tokens with which rewards were earned, at rest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rhymed.core.errors import MalformedMessage
from rhymed.core.messages import Score, TokenReward
from rhymed_store.codec import frames, records


class ScoreParts(msgspec.Struct, frozen=True, array_like=True):
    """`parts`: scorer -> its reward before its weight, and the values and texts that scorers name."""

    parts: dict[str, float | str] = {}
    token_rewards: list[TokenReward] = []  # as in `Score`

    @property
    def numbers(self) -> dict[str, float]:
        return {name: part for name, part in self.parts.items() if not isinstance(part, str)}


def pack(key: bytes, score: Score, length: int) -> bytes:
    """`key`: the sample's; `length`: its response tokens. Empty: there is only the reward. Raises `MalformedMessage`
    for a number that is not finite, and for rewards of tokens that it does not have."""
    found = ScoreParts({**score.parts, **score.notes}, score.token_rewards)
    if not found.parts and not found.token_rewards:
        return b""
    what = f"sample {records.name_of(key)}"
    for name, value in score.parts.items():
        records.check_reward(value, f"{what}, {name}")
    _check(score.token_rewards, length, what)
    return frames.pack_struct(found, key)


def unpack(key: Any, value: Any) -> ScoreParts:
    """Raises `StoreDamaged` naming the sample."""
    what = f"sample {records.name_of(key)}: the parts of its reward are"
    return frames.unpack_struct(value, ScoreParts, what, key)


def _check(given: Sequence[TokenReward], length: int, what: str) -> None:
    positions = [position for position, _ in given]
    if sorted(set(positions)) != positions or (positions and positions[-1] >= length):
        raise MalformedMessage(f"{what}: rewards of tokens {positions[:8]} of its {length} response tokens")
    for _, reward in given:
        records.check_reward(reward, f"{what}, a reward of a token")
