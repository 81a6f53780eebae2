"""Checks and prepares what is written: the part of a write that needs no transaction. Pure.

Raises `MalformedMessage` naming the message and the sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rhymed.core.errors import MalformedMessage
from rhymed.core.messages import PutPartials, PutSamples, SampleInfo
from rhymed.core.steps import is_training
from rhymed_store.codec import masks, records, training
from rhymed_store.database import partials

HEADER_BYTES = 256  # of a sample in addition to its arrays, with a margin for partly filled pages


class NewRow(NamedTuple):
    """A sample ready to be written."""

    key: bytes
    info: SampleInfo
    frame: bytes
    width: records.Width
    logprobs: bytes  # packed; empty if they are not kept
    context_key: bytes
    context: Any  # prompt tokens, uint32 bytes
    drafted: bytes = b""  # packed mask of the accepted drafts; empty if unknown


def prepare(message: PutSamples, frames: Sequence[bytes], level: int) -> list[NewRow]:
    """Check and compress samples: the heavy part of their write."""
    infos = message.samples
    lengths = [info.length for info in infos]
    contexts = [info.prompt_length for info in infos]
    if len(message.floored) not in (0, len(infos)):
        raise MalformedMessage(f"PutSamples: {len(message.floored)} samples with or without floors, of {len(infos)}")
    floored = message.floored or [False] * len(infos)
    with_logprobs = [
        info.length * (1 + has) if info.id.step >= 0 else 0 for info, has in zip(infos, floored, strict=True)
    ]
    for info in infos:
        _check_info(info)
    if len(frames) != (expected := 3 + bool(message.drafted)):
        what = "prompt tokens, tokens, log-probs, accepted drafts if there are any"
        raise MalformedMessage(f"PutSamples carries {expected} arrays ({what}), not {len(frames)}")
    sizes = (sum(contexts), sum(lengths), sum(with_logprobs))
    for frame, size, what in zip(frames, sizes, ("prompt tokens", "tokens", "log-probs"), strict=False):
        if len(frame) != 4 * size:
            raise MalformedMessage(f"PutSamples: {len(frame)} bytes of {what}, {4 * size} announced")
    packed, width = records.pack_tokens(np.frombuffer(frames[1], "<u4"), lengths, level)
    bits: Sequence[bytes | None] = [None] * len(infos)
    if message.drafted:
        bits = masks.cut("PutSamples", frames[3], lengths, message.drafted)
    drafted = [b"" if mask is None else masks.pack(mask) for mask in bits]
    rows = []
    for info, frame, context, logprobs, mask in zip(
        infos, packed, cut(frames[0], contexts), cut(frames[2], with_logprobs), drafted, strict=True
    ):
        name = records.context_key(info.id.prompt, context)
        key = records.sample_key(info.id)
        end = 4 * info.length  # of log-probs; floors may follow
        entry = training.Entry(bytes(logprobs[:end]), bytes(logprobs[end:]))
        kept = training.pack(entry) if is_training(info.id.step) else b""
        rows.append(NewRow(key, info, frame, width, kept, name, context, mask))
    return rows


def _check_info(info: SampleInfo) -> None:
    if sum(count for _, count in info.versions) != info.length or any(count < 1 for _, count in info.versions):
        raise MalformedMessage(f"sample {info.id}: versions {info.versions} do not sum to {info.length} tokens")
    if info.turns and (sum(info.turns) != info.length or 0 in info.turns[1:]):
        raise MalformedMessage(f"sample {info.id}: turns {info.turns} do not sum to {info.length} tokens")
    if info.last is not None and (info.last >= len(info.turns) or info.last % 2):
        raise MalformedMessage(f"sample {info.id}: the policy wrote no run {info.last} of {info.turns}")
    _check_forks(info)
    if info.earned is not None:
        records.check_reward(info.earned, f"sample {info.id}: the reward of its environment")
    for reward in info.turn_rewards:
        records.check_reward(reward, f"sample {info.id}: the reward of a turn")
    if info.turn_rewards and (info.earned is None or len(info.turn_rewards) != info.turn_count):
        raise MalformedMessage(
            f"sample {info.id}: rewards of {len(info.turn_rewards)} turns, it has {info.turn_count} and earned"
            f" {info.earned}"
        )
    if any(version >= 1 << 31 for version, _ in info.versions):
        raise MalformedMessage(f"sample {info.id}: a policy version must fit 32 bits")


def _check_forks(info: SampleInfo) -> None:
    """Each row begins with a run of its environment, and shares no more than an earlier row has."""
    runs = list(accumulate(info.turns))[::2]  # where the environment's begin
    ends = [*(fork.start for fork in info.forks[1:]), info.length]
    lengths = [info.prompt_length + (info.forks[0].start if info.forks else info.length)]
    for fork, end in zip(info.forks, ends, strict=True) if info.forks else ():
        if fork.start not in runs or end <= fork.start or fork.row >= len(lengths) or fork.shared > lengths[fork.row]:
            raise MalformedMessage(f"sample {info.id}: there can be no row {len(lengths)} of it like {fork}")
        lengths.append(fork.shared + end - fork.start)


def cut(frame: bytes, lengths: list[int]) -> list[memoryview]:
    """An array of four-byte elements as parts of these lengths."""
    view, ends = memoryview(frame), list(accumulate(lengths))
    return [view[4 * (end - length) : 4 * end] for end, length in zip(ends, lengths, strict=True)]


def check_partials(message: PutPartials, size: int) -> None:
    counts = {len(message.samples), len(message.starts), len(message.lengths)}
    if len(counts) > 1 or min((*message.starts, *message.lengths), default=0) < 0:
        raise MalformedMessage(
            f"PutPartials: {len(message.starts)} starts and {len(message.lengths)} lengths of"
            f" {len(message.samples)} samples"
        )
    if size != 4 * sum(message.lengths):
        raise MalformedMessage(f"PutPartials: {size} bytes, {4 * sum(message.lengths)} announced")
    for sample, start, length in zip(message.samples, message.starts, message.lengths, strict=True):
        records.check_id(sample)
        if start + length > partials.MOST_TOKENS:
            raise MalformedMessage(f"PutPartials: sample {sample} has no position {start + length}")


def check_row(prompt: str, row: str) -> bytes:
    try:
        msgspec.json.decode(row, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise MalformedMessage(f"row of prompt {prompt} is not a JSON object: {error}") from None
    return row.encode()
