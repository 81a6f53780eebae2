"""Parts that several messages share."""

from __future__ import annotations

from typing import Literal

from rhymed.messages.base import Part

Role = Literal["rollout", "reward", "trainer"]

FinishReason = Literal["stop", "length", "abort"]

SampleState = Literal["generated", "scored", "trained", "dropped"]

EVAL = 1 << 30
"""The step `EVAL + v` is the evaluation of policy version v on held-out prompts.

So a question about what was before a training step never finds evaluations; one from EVAL on finds the earlier ones.
"""


class SampleId(Part, frozen=True, order=True):
    """Identity of one rollout within a run. Stands for ever; also the key of its noise and of its record."""

    step: int  # training step it is made for, from 0; negative: imported from an earlier run; from EVAL: see there
    prompt: str  # 16 hex digits, see rhymed.inputs.rows.prompt_id
    index: int  # 0 .. group_size - 1

    def __str__(self) -> str:
        return f"{self.step}/{self.prompt}/{self.index}"


class Drafting(Part, frozen=True):
    """What speculative decoding did for one sample. Times are its share of the engine's steps, estimates."""

    forwards: int  # steps that decoded it
    drafted: int  # tokens that were verified
    accepted: int  # of these; one more token a step comes without a draft
    timed_s: float  # of the steps that were timed
    plain_s: float  # that plain decoding had taken for the same tokens
    draft_s: float  # of timed_s spent on finding drafts
    carried: int = 0  # tokens that the sample had made before, with other weights or elsewhere
    kept: int = 0  # of these, from the first on, came out again


class SampleInfo(Part, frozen=True, kw_only=True):
    """What is known of a generated sample without its tokens."""

    id: SampleId
    prompt_length: int  # tokens
    length: int  # response tokens, end-of-sequence included
    finish_reason: FinishReason
    versions: list[tuple[int, int]]  # (policy version, how many tokens in a row), oldest first; counts sum to length
    reward: float | None = None  # None: not scored
    drafting: Drafting | None = None  # None: not told; never stored
    ahead: tuple[int, int] = (0, 0)  # tokens written before with other weights or elsewhere; kept; never stored


class Score(Part, frozen=True, kw_only=True):
    """Outcome of scoring one sample: a reward, or an error; both when reward.on_error makes the error a zero."""

    id: SampleId
    reward: float | None = None
    error: str | None = None  # what went wrong, for the user
    timeout: bool = False  # the error was the time limit
    parts: dict[str, float] = {}  # scorer -> what it gave, before its weight
    failed: str = ""  # the scorer that the error is about


class JournalEntry(Part, frozen=True, kw_only=True):
    """One line of the run's journal: how far a sample has durably come. "begun": the store has a part of it."""

    id: SampleId
    state: SampleState | Literal["begun"]
    length: int = 0  # response tokens
    oldest_version: int = 0  # smallest policy version among its tokens
    reward: float | None = None
    reason: str = ""  # why dropped


class Holding(Part, frozen=True, kw_only=True):
    """A sample that a worker has in hand."""

    id: SampleId
    tokens: int = 0  # generated so far
    parked: bool = False  # written ahead to its end: it waits for newer weights, without a slot
    seconds: float = 0.0  # since it was taken
