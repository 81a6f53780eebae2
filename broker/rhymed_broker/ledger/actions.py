"""What the ledger wants done. The shell performs it; an action that fails comes back to the ledger as an event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from rhymed.core.messages import Drawn, SampleId


class Assign(NamedTuple):
    """Rollout worker: generate these."""

    worker: str
    ids: list[SampleId]
    begun: Sequence[SampleId] = ()  # the store has the first tokens of these


class Act(NamedTuple):
    """Environment worker: answer the last turn of these."""

    worker: str
    ids: list[SampleId]


class Close(NamedTuple):
    """Environment worker: end the environments of these, which are dropped or go on elsewhere."""

    worker: str
    ids: list[SampleId]


class ScoreSamples(NamedTuple):
    """Reward worker: score these."""

    worker: str
    ids: list[SampleId]


class Cancel(NamedTuple):
    """Rollout worker: forget these."""

    worker: str
    ids: list[SampleId]


class Release(NamedTuple):
    """Rollout worker: save what these have so far, and give them back."""

    worker: str
    ids: list[SampleId]


class Recall(NamedTuple):
    """Store: how long were these prompts' responses before this step?"""

    step: int
    prompts: list[str]


class Load(NamedTuple):
    """Rollout worker: load this policy version."""

    worker: str
    version: int


class Sleep(NamedTuple):
    """Rollout worker: free the engine's memory for the trainer."""

    worker: str


class Begin(NamedTuple):
    """Trainer: compute the gradients of these whole groups of its next step; `Train` follows with all of its samples.

    A hint: nothing in the ledger depends on whether the trainer follows it.
    """

    worker: str
    step: int
    ids: list[SampleId]


class Train(NamedTuple):
    """Trainer: train this step; `ids` are sorted, without dropped samples."""

    worker: str
    step: int
    ids: list[SampleId]
    metrics: dict[str, float]  # of the rollout


class Mark(NamedTuple):
    """Store: journal these."""

    ids: list[SampleId]
    state: Literal["trained", "dropped"]
    reason: str = ""
    drawn: Drawn | None = None  # with "trained": the prompts of the step


class Evaluated(NamedTuple):
    """Metrics: an evaluation of this policy version is complete."""

    version: int
    metrics: dict[str, float]


class FinishRun(NamedTuple):
    """All workers: the run is over."""

    reason: str


Action = (
    Assign | Act | Close | ScoreSamples | Cancel | Release
    | Recall | Load | Sleep | Begin | Train | Mark | Evaluated | FinishRun
)  # fmt: skip
