"""Structs that several messages share."""

from __future__ import annotations

from typing import Literal

from rhymed.messages.base import Part

Role = Literal["rollout", "reward", "trainer"]

FinishReason = Literal["stop", "length", "abort"]

SampleState = Literal["generated", "scored", "trained", "dropped"]

EVAL = 1 << 30
"""The step `EVAL + v` is the evaluation of policy version v on held-out prompts.

So a query for steps before a training step never returns evaluations; one from EVAL on returns earlier evaluations.
"""

NO_SIGNAL = "no signal"
"""Begins the reason of samples that dynamic sampling dropped: a restart distinguishes them from those that failed."""

NOT_PLANNED = "its step has other prompts now"
"""Reason of samples that an earlier setting of dynamic sampling had asked for."""


class SampleId(Part, frozen=True, order=True):
    """Identity of one rollout within a run. Never changes; it also keys the sampling noise and the record."""

    step: int  # training step, from 0; negative: imported from an earlier run; from EVAL on: see there
    prompt: str  # 16 hex digits, see rhymed.inputs.rows.prompt_id
    index: int  # 0 .. group_size - 1

    def __str__(self) -> str:
        return f"{self.step}/{self.prompt}/{self.index}"


class Drafting(Part, frozen=True):
    """Speculative decoding of one sample. Times are estimates: the sample's share of the engine's steps."""

    forwards: int  # engine steps that decoded it
    drafted: int  # draft tokens that were verified
    accepted: int  # of these; each step yields one more token without a draft
    timed_s: float  # of the timed steps
    plain_s: float  # predicted for plain decoding of the same tokens
    draft_s: float  # part of timed_s that was spent on drafting
    carried: int = 0  # tokens generated earlier, with other weights or on another worker
    kept: int = 0  # length of their prefix that was accepted


class SampleInfo(Part, frozen=True, kw_only=True):
    """A generated sample without its tokens."""

    id: SampleId
    prompt_length: int  # tokens
    length: int  # response tokens, end-of-sequence included
    finish_reason: FinishReason
    versions: list[tuple[int, int]]  # (policy version, consecutive tokens), oldest first; counts sum to length
    reward: float | None = None  # None: not scored
    drafting: Drafting | None = None  # None: unknown; never stored
    ahead: tuple[int, int] = (0, 0)  # (carried, kept), see Drafting; never stored


class Score(Part, frozen=True, kw_only=True):
    """Outcome of scoring one sample: a reward or an error; both if `reward.on_error` turns the error into 0."""

    id: SampleId
    reward: float | None = None
    error: str | None = None  # for the user
    timeout: bool = False  # the error is an exceeded time limit
    parts: dict[str, float] = {}  # scorer -> its reward before weighting
    failed: str = ""  # the scorer that raised the error
    weight: float = 1.0  # of the sample in the loss; sent to the store only


class Cursor(Part, frozen=True, kw_only=True):
    """A place in the run's endless sequence of prompts, see rhymed_broker.plan."""

    position: int = 0  # prompts of the sequence that lie before it
    deferred: list[str] = []  # of these, those that no step has taken yet; they are taken first
    known: int = 0  # with data.sampler = "success": steps whose success rates the next draw knows

    @property
    def drawn(self) -> int:
        """Prompts that steps have taken before it."""
        return self.position - len(self.deferred)


class Drawn(Part, frozen=True, kw_only=True):
    """Which prompts a trained step took, and where the sequence stood then: what a restart after this step needs."""

    step: int
    start: Cursor  # of its first prompts, `rollout.prompts_per_step` of them
    refill: Cursor  # of the prompts that replaced groups without signal
    refilled: int  # how many
    after: Cursor  # of the next prompts that a step takes
    reserved: list[tuple[int, Cursor]]  # (step, where its first prompts begin), of later steps that were open by then
    rates: list[tuple[str, float]] = []  # with data.sampler = "success": of each prompt, the share of its successes


class JournalEntry(Part, frozen=True, kw_only=True):
    """One entry of the run's journal: the durable state of a sample. "begun": the store has some of its tokens."""

    id: SampleId
    state: SampleState | Literal["begun"]
    length: int = 0  # response tokens
    oldest_version: int = 0  # smallest policy version among its tokens
    reward: float | None = None
    reason: str = ""  # why it was dropped


class Holding(Part, frozen=True, kw_only=True):
    """A sample that a worker holds."""

    id: SampleId
    tokens: int = 0  # generated so far
    parked: bool = False  # complete, but waits for newer weights; uses no slot
    seconds: float = 0.0  # since the worker accepted it
