"""Each scorer's reward for a sample, its texts, and the tokens with which rewards were earned, as stored: JSON, and
behind a zero byte, which JSON does not have, the rewards of tokens (compressed: their positions as uint32, then the
rewards as float64). Before both is a checksum of the sample's key and of them. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed.core.messages import Score, TokenReward
from rhymed_store.codec import frames, records
from rhymed_store.codec.frames import RESCUE

_BYTES = 12  # of a token's reward


class ScoreParts(NamedTuple):
    """`parts`: scorer -> its reward before its weight, and the values and texts that scorers name."""

    parts: Mapping[str, float | str] = MappingProxyType({})
    token_rewards: Sequence[TokenReward] = ()  # as in `Score`

    @property
    def numbers(self) -> dict[str, float]:
        return {name: part for name, part in self.parts.items() if not isinstance(part, str)}


def pack(key: bytes, score: Score, length: int) -> bytes:
    """`key`: the sample's; `length`: its response tokens. Empty: there is only the reward. Raises `MalformedMessage`
    for a number that is not finite, and for rewards of tokens that it does not have."""
    parts: Mapping[str, float | str] = {**score.parts, **score.notes}
    if not parts and not score.token_rewards:
        return b""
    what = f"sample {records.name_of(key)}"
    for name, value in score.parts.items():
        records.check_reward(value, f"{what}, {name}")
    body = msgspec.json.encode(parts) + _packed(score.token_rewards, length, what)
    return frames.checked(body, key)


def unpack(key: Any, value: Any) -> ScoreParts:
    """Raises `StoreDamaged` naming the sample."""
    try:
        parts, has_tokens, packed = frames.unchecked(value, key).partition(b"\0")
        found = msgspec.json.decode(parts, type=dict[str, float | str])
        return ScoreParts(found, _unpacked(packed) if has_tokens else [])
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise StoreDamaged(
            f"sample {records.name_of(key)}: the parts of its reward are damaged at rest ({error}); {RESCUE}"
        ) from None


def _packed(given: Sequence[TokenReward], length: int, what: str) -> bytes:
    if not given:
        return b""
    positions = [position for position, _ in given]
    if sorted(set(positions)) != positions or positions[-1] >= length:
        raise MalformedMessage(f"{what}: rewards of tokens {positions[:8]} of its {length} response tokens")
    rewards = [records.check_reward(reward, f"{what}, a reward of a token") for _, reward in given]
    content = np.array(positions, "<u4").tobytes() + np.array(rewards, "<f8").tobytes()
    return b"\0" + zlib.compress(content, 1)


def _unpacked(packed: bytes) -> list[TokenReward]:
    content = zlib.decompress(packed)
    count = len(content) // _BYTES
    positions, rewards = np.frombuffer(content, "<u4", count), np.frombuffer(content, "<f8", offset=4 * count)
    return list(zip(positions.tolist(), rewards.tolist(), strict=True))
