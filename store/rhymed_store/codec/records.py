"""The format at rest: keys, fixed headers, compressed token frames. Pure: no database, no clock.

Sample keys sort by prompt, step, index, so a prompt's history is one range; journal keys by step, prompt, index, so
a step is one range. Steps are biased by 2^31: the negative ones of imported history sort first. A record's length
has a fixed offset and is read without its tokens. Every array and every record carries a checksum.

At the end: what trained steps drew from the plan, a line per step.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from rhymed.core.errors import MalformedMessage, StoreDamaged
from rhymed.core.messages import Drawn, FinishReason, JournalEntry, SampleId, SampleInfo, SampleState
from rhymed_store.codec import frames
from rhymed_store.codec.frames import RESCUE

SCHEMA = 4
"""Version of everything in this module."""

Tokens: TypeAlias = NDArray[np.uint32]
Width: TypeAlias = Literal[2, 3, 4]  # bytes a token before compression

STEP_BIAS = 1 << 31
FINISHES: tuple[FinishReason, ...] = get_args(FinishReason)
STATES: tuple[SampleState, ...] = get_args(SampleState)

_SAMPLE_KEY = struct.Struct(">8sIH")  # prompt, biased step, index
_JOURNAL_KEY = struct.Struct(">I8sH")
SAMPLE_KEY_BYTES = _SAMPLE_KEY.size
_HEADER = struct.Struct("<IIIQIBd")  # length, prompt tokens, their checksum, frame's position and size, flags, reward
_RUN = struct.Struct("<iI")  # policy version, how many tokens in a row
_LENGTH = struct.Struct("<I")
_DRAFTED = struct.Struct("<I")  # size of the mask; follows the runs if there is a mask
_JOURNAL = struct.Struct("<BIiBd")  # state, length, oldest version, has a reward, reward

# Flags of a header: finish reason (2 bits), state (2), has a reward (1), width - 2 (2), a checksum of key and record
# follows at the end (1, always set)
STATE_SHIFT, REWARD_BIT, _WIDTH_SHIFT, _CHECKED = 2, 1 << 4, 5, 1 << 7
CHECK_BYTES = 4  # of a record's checksum


class Record(NamedTuple):
    """The header of a sample, unpacked."""

    length: int
    prompt_length: int
    prompt_check: int  # crc32 of the prompt tokens: with the prompt's id the key of their frame
    position: int  # of the frame in the token stream, bytes
    size: int  # of the frame, bytes
    flags: int
    reward: float
    versions: list[tuple[int, int]]
    drafted: int = 0  # bytes after the frame: which tokens were accepted drafts, see `masks`; 0: unknown

    @property
    def width(self) -> int:
        return 2 + (self.flags >> _WIDTH_SHIFT)

    @property
    def state(self) -> SampleState:
        return STATES[self.flags >> STATE_SHIFT & 3]

    def info(self, sample: SampleId) -> SampleInfo:
        return SampleInfo(
            id=sample,
            prompt_length=self.prompt_length,
            length=self.length,
            finish_reason=FINISHES[self.flags & 3],
            versions=self.versions,
            reward=self.reward if self.flags & REWARD_BIT else None,
        )

    def scored(self, reward: float) -> Record:
        """With this reward; trained and dropped samples keep their state."""
        record = self._replace(flags=self.flags | REWARD_BIT, reward=reward)
        return record.marked("scored") if self.state == "generated" else record

    def marked(self, state: SampleState) -> Record:
        flags = self.flags & ~(3 << STATE_SHIFT) | STATES.index(state) << STATE_SHIFT
        return self._replace(flags=flags)

    def journal(self) -> bytes:
        return pack_journal(self.state, self.length, self.versions, self.reward if self.flags & REWARD_BIT else None)

    def pack(self, key: bytes) -> bytes:
        header = _HEADER.pack(*self[:5], self.flags | _CHECKED, self.reward)
        body = header + b"".join(_RUN.pack(*run) for run in self.versions)
        if self.drafted:
            body += _DRAFTED.pack(self.drafted)
        return body + zlib.crc32(body, zlib.crc32(key)).to_bytes(CHECK_BYTES, "little")


def new_record(
    info: SampleInfo, prompt_check: int, position: int, size: int, width: Width, drafted: int = 0
) -> Record:
    flags = FINISHES.index(info.finish_reason) | (width - 2) << _WIDTH_SHIFT
    return Record(info.length, info.prompt_length, prompt_check, position, size, flags, 0.0, info.versions, drafted)


def unpack_record(key: Any, value: Any) -> Record:
    """Raises `StoreDamaged` naming the sample when the bytes are not those that were written."""
    try:
        *fields, flags, reward = _HEADER.unpack_from(value)
        end, drafted = len(value) - CHECK_BYTES, 0
        if not intact(key, value):
            raise ValueError("its checksum differs")
        if (end - _HEADER.size) % _RUN.size == _DRAFTED.size:
            end -= _DRAFTED.size
            (drafted,) = _DRAFTED.unpack_from(value, end)
        versions = list(_RUN.iter_unpack(value[_HEADER.size : end]))
    except (struct.error, ValueError) as error:
        raise StoreDamaged(f"sample {name_of(key)}: its record is damaged at rest ({error}); {RESCUE}") from None
    return Record._make((*fields, flags & ~_CHECKED, reward, versions, drafted))


def intact(key: Any, value: Any) -> bool:
    """Whether a packed record, of a header's size at least, is what was written under this sample key."""
    return zlib.crc32(value[:-CHECK_BYTES], zlib.crc32(key)) == int.from_bytes(value[-CHECK_BYTES:], "little")


def unpack_length(value: Any) -> int:
    """Response tokens of a packed record, without unpacking the rest."""
    length: int = _LENGTH.unpack_from(value)[0]
    return length


# Keys


@lru_cache(maxsize=1 << 14)
def prompt_key(prompt: str) -> bytes:
    try:
        key = bytes.fromhex(prompt)
    except ValueError:
        key = b""
    if len(key) != 8 or key.hex() != prompt:
        raise MalformedMessage(f"prompt id {prompt!r:.40}: 16 lower-case hex digits expected")
    return key


def sample_key(sample: SampleId) -> bytes:
    check_id(sample)
    return _SAMPLE_KEY.pack(prompt_key(sample.prompt), sample.step + STEP_BIAS, sample.index)


def journal_key(sample: SampleId) -> bytes:
    check_id(sample)
    return _JOURNAL_KEY.pack(sample.step + STEP_BIAS, prompt_key(sample.prompt), sample.index)


def check_id(sample: SampleId) -> None:
    if not (-STEP_BIAS <= sample.step < STEP_BIAS and 0 <= sample.index < 1 << 16):
        raise MalformedMessage(f"sample {sample}: step must fit 32 bits, index 16")


def sample_at(key: Any, prompt: str) -> SampleId:
    """The id of a sample key; `prompt` is the one in the key, which a scan knows already."""
    _, step, index = _SAMPLE_KEY.unpack(key)
    return SampleId(step=step - STEP_BIAS, prompt=prompt, index=index)


def name_of(key: Any) -> str:
    """The sample's id as text; for a malformed key its bytes in hex."""
    if len(key) != _SAMPLE_KEY.size:
        return bytes(key).hex()
    return str(sample_at(key, bytes(key[:8]).hex()))


def sample_of(journal: Any) -> SampleId:
    """The id of a journal key, which may be longer."""
    step, prompt, index = _JOURNAL_KEY.unpack_from(journal)
    return SampleId(step=step - STEP_BIAS, prompt=prompt.hex(), index=index)


def journal_of(key: bytes) -> bytes:
    return key[8:12] + key[:8] + key[12:]


def step_of(key: Any) -> int:
    return int(_SAMPLE_KEY.unpack(key)[1]) - STEP_BIAS


def step_prefix(step: int) -> bytes:
    """The step's part of a key: where it begins among journal keys, or after a prompt key. Clipped to the range."""
    return min(max(step + STEP_BIAS, 0), (1 << 32) - 1).to_bytes(4, "big")


# The journal


def pack_journal(
    state: SampleState, length: int = 0, versions: Sequence[tuple[int, int]] = (), reward: float | None = None
) -> bytes:
    oldest = min((version for version, _ in versions), default=0)
    return _JOURNAL.pack(STATES.index(state), length, oldest, reward is not None, reward or 0.0)


def journal_state(value: Any) -> SampleState:
    """Raises `StoreDamaged` for bytes that no journal has."""
    try:
        state: SampleState = STATES[value[0]]
    except IndexError:
        raise StoreDamaged(f"a line of the journal is damaged at rest ({bytes(value[:1]).hex()}); {RESCUE}") from None
    return state


def unpack_journal(key: Any, value: Any, reason: str = "") -> JournalEntry:
    """Raises `StoreDamaged` for bytes that no journal has."""
    try:
        _, length, oldest, has_reward, reward = _JOURNAL.unpack(value)
        id = sample_of(key)
    except (struct.error, ValueError) as error:
        raise StoreDamaged(f"a line of the journal is damaged at rest ({error}); {RESCUE}") from None
    return JournalEntry(
        id=id,
        state=journal_state(value),
        length=length,
        oldest_version=oldest,
        reward=reward if has_reward else None,
        reason=reason,
    )


# Arrays


def width_of(tokens: Tokens) -> Width:
    """Bytes that hold every id of the array. Two for vocabularies up to 65,536."""
    largest = int(tokens.max()) if tokens.size else 0
    return 2 if largest < 1 << 16 else 3 if largest < 1 << 24 else 4


def pack_tokens(tokens: Tokens, lengths: Iterable[int], level: int) -> tuple[list[bytes], Width]:
    """One zstd frame for each response that lies in `tokens` end to end.

    Before compression a response is its low 16 bits, then its high 8 or 16: two-byte symbols compress text better
    than byte planes (0.80 against 0.96 bytes a token at 4,096 tokens), and the high part is nearly constant.
    """
    width = width_of(tokens)
    low = tokens.astype("<u2").data.cast("B")
    high = (tokens >> 16).astype("<u1" if width == 3 else "<u2").data.cast("B") if width > 2 else None
    compress = frames.compressor(level).compress
    packed, start = [], 0
    for length in lengths:
        end = start + length
        part: Any = low[2 * start : 2 * end]
        if high is not None:
            part = b"".join((part, high[(width - 2) * start : (width - 2) * end]))
        packed.append(compress(part))
        start = end
    return packed, width


def unpack_tokens(frame: Any, width: int, out: Tokens, what: object) -> None:
    """Fill `out`. Raises `StoreDamaged` naming `what` when the bytes are not those that were written."""
    raw = frames.unpack_bytes(frame, what, width * len(out))
    out[:] = np.frombuffer(raw, "<u2", len(out))
    if width > 2:
        out |= np.frombuffer(raw, "<u1" if width == 3 else "<u2", offset=2 * len(out)).astype(np.uint32) << 16


def context_key(prompt: str, tokens: Any) -> bytes:
    """Key of prompt tokens: imported history may have the same prompt in another tokenization."""
    return prompt_key(prompt) + zlib.crc32(tokens).to_bytes(4, "big")


def check_reward(reward: float | None, what: object) -> float:
    if reward is None or not math.isfinite(reward):
        raise MalformedMessage(f"{what}: a finite reward expected, not {reward}")
    return reward


# What trained steps drew from the plan, at rest: a line per step in the table `meta`, kept for good. Pure.

PREFIX = b"drawn/"  # of their keys


def drawn_key(step: int) -> bytes:
    return PREFIX + f"{step:010}".encode()


def pack_drawn(drawn: Drawn) -> bytes:
    return frames.pack_bytes(msgspec.json.encode(drawn), 1)


def unpack_drawn(at: Any, value: Any) -> Drawn:
    """Raises `StoreDamaged`."""
    what = f"the prompts of step {bytes(at).removeprefix(PREFIX).decode(errors='replace').lstrip('0') or '0'}"
    try:
        return msgspec.json.decode(frames.unpack_bytes(value, what), type=Drawn)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"{what} are damaged at rest ({error}); {RESCUE}") from None
