"""What training computed of each token of a sample, at rest: half-precision numbers, compressed. Pure.

Four numbers per token, in natural logarithms: its log-prob under the trainer's policy before the step's first update;
the entropy of the trainer's distribution when the token's gradient was computed; the mismatch, which is the trainer's
log-prob minus the engine's; and the advantage. A number in half precision is off by at most one part in 2,048, below
6e-5 by at most 3e-8. NaN is unknown. Numbers over 65,504 become 65,504.

An entry: checksum of the key and the rest (4 bytes), version of the policy (int32), and a zstd frame with the upper
bytes of all numbers before the lower ones, which are noise.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rhymed.core.errors import StoreDamaged
from rhymed_store.codec import frames
from rhymed_store.codec.frames import RESCUE

NAMES = ("logprob", "entropy", "mismatch", "advantage")
TOKEN_BYTES = 2 * len(NAMES)  # before compression
MOST = float(np.finfo(np.float16).max)
_VERSION = 4  # bytes of the policy's version

Numbers = NDArray[np.float16]


class TokenStats(NamedTuple):
    version: int  # of the policy that computed them, before the step
    values: Numbers  # (len(NAMES), response tokens)

    def named(self) -> dict[str, Numbers]:
        return dict(zip(NAMES, self.values, strict=True))


def halves(values: ArrayLike) -> Numbers:
    """In half precision, within its range."""
    return np.clip(np.asarray(values, np.float32), -MOST, MOST).astype("<f2")


def pack(key: bytes, version: int, values: Any, level: int) -> bytes:
    """`values`: bytes of float16, `len(NAMES)` rows of one number per response token."""
    planes = np.frombuffer(values, np.uint8).reshape(-1, 2).T[::-1].tobytes()
    body = version.to_bytes(_VERSION, "little", signed=True) + frames.pack_bytes(planes, level)
    return frames.checked(body, key)


def unpack(key: Any, value: Any, what: object) -> TokenStats:
    """Raises `StoreDamaged` naming `what` when the bytes are not those that were written under this key."""
    try:
        body = frames.unchecked(value, key)
    except ValueError:
        raise StoreDamaged(f"{what}: the numbers of its training are damaged at rest; {RESCUE}") from None
    version = int.from_bytes(body[:_VERSION], "little", signed=True)
    planes = np.frombuffer(frames.unpack_bytes(body[_VERSION:], what), np.uint8).reshape(2, -1)
    values = np.ascontiguousarray(planes[::-1].T).view("<f2").reshape(len(NAMES), -1)
    return TokenStats(version, values)
