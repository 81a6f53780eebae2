"""The store's interface for other processes: typed calls, numpy arrays in and out.

Every call has a deadline and raises the store's own error by its name, or `DeadlineExceeded`. Returned arrays are
read-only views into the received frames; copy them to change them. `StoreClient` has the calls. Knows nothing of the
store's format.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from rhymed.core import errors, messages
from rhymed.core.errors import MalformedMessage
from rhymed.core.messages import SampleInfo
from rhymed.core.run.layout import RunLayout
from rhymed.core.wire import sockets
from rhymed.core.wire.keys import OPEN, Keyring
from rhymed.inputs.rows import Row, prompt_id

Tokens: TypeAlias = NDArray[np.uint32]
Logprobs: TypeAlias = NDArray[np.float32]

DEADLINE_S = 30.0
ROWS_A_MESSAGE = 2000  # dataset rows in one PutPrompts: the store's loop stays responsive while it reads them


@dataclass(frozen=True)
class NewSample:
    """A finished sample on its way to the store. Arrays are one-dimensional."""

    info: messages.SampleInfo
    prompt_tokens: ArrayLike  # info.prompt_length token ids
    tokens: ArrayLike  # info.length token ids
    logprobs: ArrayLike | None  # info.length, natural logarithms under the policy that sampled them; imported: None
    drafted: NDArray[np.bool_] | None = None  # info.length: was it an accepted draft; None: unknown
    # info.length. A token that was drawn from some only (top-p, top-k, min-p) has its log-prob among those: the ones
    # whose log-prob among all, at the temperature, was at least this. -inf: it was drawn from all. None: each was
    floors: Logprobs | None = None


@dataclass(frozen=True)
class StoredSample:
    """A sample from the store; fields that were not requested are None."""

    info: messages.SampleInfo
    tokens: Tokens
    logprobs: Logprobs | None = None
    prompt_tokens: Tokens | None = None
    row: Row | None = None  # of its prompt; whoever needs it fetches it with `get_prompts`
    parts: Mapping[str, float] = field(default_factory=dict)  # of its reward, as in Score; sent with the log-probs
    token_rewards: Sequence[messages.TokenReward] = ()  # likewise
    floors: Logprobs | None = None  # as in NewSample; sent with the log-probs


class StoreClient:
    """One link to the store. Calls may overlap: the store answers each when it is durable or read.

    `name` must be unique among the store's clients.
    """

    def __init__(self, address: str, name: str, keys: Keyring = OPEN) -> None:
        self._link = sockets.Client(address, name, peer="store", keys=keys.to("store"))

    def close(self) -> None:
        self._link.close()

    async def open_run(self, run: str, fingerprint: str, id: str = "") -> None:
        """Claim the folder for this run. Raises `RunMismatch` if it belongs to another one."""
        claim = messages.OpenRun(run=run, fingerprint=fingerprint, id=id)
        await self.ask(claim, messages.Done)

    async def put_prompts(self, rows: Sequence[Row], *, deadline_s: float = DEADLINE_S) -> list[str]:
        """Store dataset rows; returns their ids in order. Idempotent."""
        ids: list[str] = []
        for start in range(0, len(rows), ROWS_A_MESSAGE):
            batch = await asyncio.to_thread(_prompt_rows, rows[start : start + ROWS_A_MESSAGE])  # frees the loop
            await self.ask(messages.PutPrompts(rows=batch), messages.Done, deadline_s=deadline_s)
            ids += [row.prompt for row in batch]
        return ids

    async def get_prompts(self, prompts: Sequence[str], *, deadline_s: float = DEADLINE_S) -> list[Row]:
        """The rows of these prompt ids, in the order asked. Raises `UnknownSample` for one that was never put."""
        answer, _ = await self.ask(
            messages.GetPrompts(prompts=list(prompts)), messages.Prompts, deadline_s=deadline_s
        )
        return [msgspec.json.decode(row.row, type=dict[str, Any]) for row in answer.rows]

    async def put_samples(
        self, samples: Sequence[NewSample], *, deadline_s: float = DEADLINE_S
    ) -> list[messages.SampleInfo]:
        """Returns when the samples are durable. A sample that is stored already keeps its first record.

        Returns the stored record of every sample whose first record differs: normally none.
        """
        if not samples:
            return []
        frames = [join_arrays(list(column)) for column in zip(*map(_check, samples), strict=True)]
        masked = [sample.drafted is not None for sample in samples]
        floored = [sample.floors is not None for sample in samples]
        question = messages.PutSamples(
            samples=[sample.info for sample in samples],
            drafted=masked if any(masked) else [],
            floored=floored if any(floored) else [],
        )
        if question.drafted:
            frames.append(join_arrays([bits_of(sample.drafted, sample.info) for sample in samples]))
        answer, _ = await self.ask(question, messages.Done | messages.Kept, *frames, deadline_s=deadline_s)
        return list(answer.samples) if isinstance(answer, messages.Kept) else []

    async def put_partials(
        self, parts: Mapping[messages.SampleId, tuple[int, ArrayLike]], *, deadline_s: float = DEADLINE_S
    ) -> list[messages.SampleId]:
        """Store parts of unfinished samples: sample -> (position of the first token, tokens).

        A part replaces everything from its position on. Returns when the parts are durable. A part that would leave a
        hole is not stored, and its sample is returned. A part of a finished sample, or of a step that a checkpoint
        covers, is ignored.
        """
        if not parts:
            return []
        tokens = [tokens_of(part, f"sample {id}: tokens") for id, (_, part) in parts.items()]
        starts, lengths = [start for start, _ in parts.values()], [len(part) for part in tokens]
        question = messages.PutPartials(samples=list(parts), starts=starts, lengths=lengths)
        frame = join_arrays(tokens)
        answer, _ = await self.ask(question, messages.Done | messages.Missing, frame, deadline_s=deadline_s)
        return list(answer.samples) if isinstance(answer, messages.Missing) else []

    async def get_partials(self, ids: Sequence[messages.SampleId]) -> dict[messages.SampleId, Tokens]:
        """The first tokens of these samples, for those that have any."""
        answer, frames = await self.ask(messages.GetPartials(samples=list(ids)), messages.Partials)
        if len(frames) != 1:
            raise errors.MalformedMessage(f"store sent {len(frames)} arrays, 1 expected")
        return dict(zip(answer.samples, cut_arrays(frames[0], np.dtype(np.uint32), answer.lengths), strict=True))

    async def get_samples(
        self,
        ids: Sequence[messages.SampleId],
        *,
        logprobs: bool = False,
        prompt_tokens: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> list[StoredSample]:
        """In the order requested. Raises `UnknownSample` naming the first one that the store does not have."""
        question = messages.GetSamples(samples=list(ids), logprobs=logprobs, prompt_tokens=prompt_tokens)
        return await self._samples(question, logprobs, prompt_tokens, deadline_s)

    async def history(self, prompt: str, before_step: int, limit: int = 16) -> list[StoredSample]:
        """The prompt's earlier responses, newest step first, at most `limit`; empty when there are none."""
        question = messages.GetHistory(prompt=prompt, before_step=before_step, limit=limit)
        return await self._samples(question)

    async def lengths(self, prompts: Sequence[str], before_step: int) -> dict[str, messages.LengthRow]:
        """Of each prompt how much the policy wrote in its earlier responses."""
        question = messages.GetLengths(prompts=list(prompts), before_step=before_step)
        answer, _ = await self.ask(question, messages.Lengths)
        return {row.prompt: row for row in answer.rows}

    async def put_scores(self, scores: Sequence[messages.Score]) -> None:
        """Store rewards; returns when they are durable. Scores without a reward are refused."""
        if scores:
            await self.ask(messages.PutScores(scores=list(scores)), messages.Done)

    async def mark(
        self,
        ids: Sequence[messages.SampleId],
        state: Literal["trained", "dropped"],
        reason: str = "",
        drawn: messages.Drawn | None = None,
    ) -> None:
        """Record how these samples ended, and with them what their step drew from the plan.

        A sample that was never generated can be dropped, not trained.
        """
        if ids or drawn:
            await self.ask(
                messages.MarkSamples(samples=list(ids), state=state, reason=reason, drawn=drawn),
                messages.Done,
            )

    async def forget_logprobs(self, below_step: int) -> None:
        """Steps below this one are in a checkpoint: delete their log-probs and journal lines."""
        await self.ask(messages.ForgetLogprobs(below_step=below_step), messages.Done)

    async def journal(self, from_step: int, recent: int = 0) -> messages.Journal:
        """The durable state of every sample of these steps, ordered by step, prompt, index; and which steps no longer
        have lines."""
        question = messages.GetJournal(from_step=from_step, recent=recent)
        answer, _ = await self.ask(question, messages.Journal)
        assert isinstance(answer, messages.Journal)
        return answer

    async def stats(self, *, deadline_s: float = DEADLINE_S) -> messages.StoreStats:
        answer, _ = await self.ask(messages.GetStoreStats(), messages.StoreStats, deadline_s=deadline_s)
        assert isinstance(answer, messages.StoreStats)
        return answer

    async def _samples(
        self,
        question: messages.GetSamples | messages.GetHistory,
        logprobs: bool = False,
        prompt_tokens: bool = False,
        deadline_s: float = DEADLINE_S,
    ) -> list[StoredSample]:
        answer, frames = await self.ask(question, messages.Samples, deadline_s=deadline_s)
        if len(frames) != (expected := 1 + logprobs + prompt_tokens):
            raise errors.MalformedMessage(f"store sent {len(frames)} arrays, {expected} expected")
        lengths = [info.length for info in answer.samples]
        rest = list(frames)
        columns: dict[str, Sequence[Any]] = {"info": answer.samples}
        columns["tokens"] = cut_arrays(rest.pop(0), np.dtype(np.uint32), lengths)
        if logprobs:
            columns["logprobs"], columns["floors"] = cut_logprobs(rest.pop(0), lengths, answer.floored)
        if prompt_tokens:
            prompts = [info.prompt_length for info in answer.samples]
            columns["prompt_tokens"] = cut_arrays(rest.pop(0), np.dtype(np.uint32), prompts)
        columns |= {name: values for name in ("parts", "token_rewards") if (values := getattr(answer, name))}
        return [StoredSample(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]

    async def ask(
        self, question: messages.Message, expected: Any, *frames: Any, deadline_s: float = DEADLINE_S
    ) -> sockets.Parcel:
        """`expected`: the answer's type, or a union of types."""
        parcel = await self._link.request(question, *frames, deadline_s=deadline_s)
        if not isinstance(parcel.message, expected):
            raise errors.MalformedMessage(f"store answered {type(question).__name__} with {parcel.message!r:.80}")
        return parcel


def _prompt_rows(rows: Sequence[Row]) -> list[messages.PromptRow]:
    return [messages.PromptRow(prompt=prompt_id(row), row=json.dumps(row, ensure_ascii=False)) for row in rows]


def _check(sample: NewSample) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    info = sample.info
    prompt = tokens_of(sample.prompt_tokens, f"sample {info.id}: prompt tokens")
    tokens = tokens_of(sample.tokens, f"sample {info.id}: tokens")
    logprobs = np.asarray([] if sample.logprobs is None else sample.logprobs, np.float32)
    expected = (info.prompt_length, info.length, info.length if info.id.step >= 0 else 0)
    sizes = (len(prompt), len(tokens), len(logprobs))
    if logprobs.ndim != 1 or sizes != expected:
        raise errors.MalformedMessage(
            f"sample {info.id}: arrays of {sizes} prompt tokens, tokens and log-probs, {expected} announced"
        )
    return prompt, tokens, with_floors(logprobs, sample.floors, f"sample {info.id}")


def connect(layout: RunLayout, name: str, keys: Keyring = OPEN) -> StoreClient:
    """A client of the run's store. `name` must be unique among the clients."""
    return StoreClient(layout.store, name, keys)


# Arrays of samples on their way to and from the store: their type is checked, and they lie end to end. Pure.


def tokens_of(values: ArrayLike, what: str) -> NDArray[np.uint32]:
    array = np.asarray(values)
    if array.dtype == np.uint32 and array.ndim == 1:
        return array
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise MalformedMessage(f"{what}: one-dimensional integers expected, not {array.dtype}{array.shape}")
    if array.size and not 0 <= int(array.min()) <= int(array.max()) < 1 << 32:
        raise MalformedMessage(f"{what}: ids outside of 0 .. 2^32 - 1")
    return array.astype(np.uint32)


def join_arrays(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)


def cut_arrays(frame: Any, dtype: np.dtype[Any], lengths: list[int]) -> list[NDArray[Any]]:
    whole = np.frombuffer(frame, dtype)
    if len(whole) != sum(lengths):
        raise MalformedMessage(f"store sent an array of {len(whole)}, {sum(lengths)} announced")
    ends = list(itertools.accumulate(lengths))
    return [whole[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def with_floors(logprobs: Logprobs, floors: Logprobs | None, what: str) -> Logprobs:
    """As in `PutSamples`: floors follow log-probs."""
    if floors is None:
        return logprobs
    if floors.shape != logprobs.shape or np.isnan(floors).any():
        raise MalformedMessage(f"{what}: floors of shape {floors.shape}, {len(logprobs)} numbers expected")
    return np.concatenate([logprobs, floors.astype(np.float32)])


def cut_logprobs(
    frame: Any, lengths: list[int], floored: Sequence[bool]
) -> tuple[list[NDArray[Any]], list[NDArray[Any] | None]]:
    """Log-probs of each, and floors; None: it has none."""
    if not floored:
        return cut_arrays(frame, np.dtype(np.float32), lengths), [None] * len(lengths)
    widths = [length * (1 + has) for length, has in zip(lengths, floored, strict=True)]
    both = cut_arrays(frame, np.dtype(np.float32), widths)
    cut = list(zip(both, lengths, floored, strict=True))
    return [part[:length] for part, length, _ in cut], [part[length:] if has else None for part, length, has in cut]


def bits_of(drafted: NDArray[np.bool_] | None, info: SampleInfo) -> NDArray[np.uint8]:
    """The accepted drafts as in `PutSamples`; empty if they are unknown."""
    if drafted is None:
        return np.zeros(0, np.uint8)
    mask = np.asarray(drafted)
    if mask.shape != (info.length,) or mask.dtype != np.bool_:
        raise MalformedMessage(
            f"sample {info.id}: drafted is {mask.dtype}{mask.shape}, one bool for each of {info.length} tokens"
            " expected"
        )
    return np.packbits(mask)
