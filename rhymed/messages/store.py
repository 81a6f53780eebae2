"""To the store, and its answers."""

from __future__ import annotations

from typing import Literal

from rhymed.messages.base import Message, Part
from rhymed.messages.samples import JournalEntry, SampleId, SampleInfo, Score


class OpenRun(Message, frozen=True, kw_only=True, tag="open_run"):
    """Broker -> store: this folder is that run's. Another name or fingerprint than the recorded one is refused."""

    run: str
    fingerprint: str  # of what must not change in a run: model, data, seed


class PromptRow(Part, frozen=True, kw_only=True):
    prompt: str  # id
    row: str  # JSON object: the dataset's columns


class PutPrompts(Message, frozen=True, kw_only=True, tag="put_prompts"):
    """Broker -> store: the rows of the dataset. Writing one twice does no harm. Answered by Done."""

    rows: list[PromptRow]


class GetPrompts(Message, frozen=True, kw_only=True, tag="get_prompts"):
    """Workers -> store. Answered by Prompts."""

    prompts: list[str]


class PutSamples(Message, frozen=True, kw_only=True, tag="put_samples"):
    """Rollout worker -> store. Arrays: prompt tokens, response tokens (uint32), behaviour log-probs (float32).

    Done means durable. A sample that is there already keeps its first record: then the answer is Kept. Imported
    samples (step < 0) have no log-probs: the third array covers the others only. They never enter the journal. Of
    evaluations (step >= EVAL) the journal tells, but their log-probs are not kept: they are never trained.

    With `drafted` there is a fourth array: of each sample that is True there, which tokens were accepted drafts. One
    bit a token, the first one the highest of the first byte; every sample begins a byte.
    """

    samples: list[SampleInfo]
    drafted: list[bool] = []  # in the same order; empty: of none it is known


class PutPartials(Message, frozen=True, kw_only=True, tag="put_partials"):
    """Rollout worker -> store: more of samples that are being written, so that nobody has to begin again without it.

    Array: tokens (uint32). They take the place of all that was there from `starts` on; the finished sample removes
    everything. Done means as durable as a sample is. What would lie behind a hole is not kept: the answer is Missing.
    """

    samples: list[SampleId]
    starts: list[int]  # position of the first of these tokens, in the same order; 0: from the sample's beginning
    lengths: list[int]  # tokens


class GetPartials(Message, frozen=True, kw_only=True, tag="get_partials"):
    """Rollout worker -> store. Answered by Partials; what the store does not have is left out."""

    samples: list[SampleId]


class GetSamples(Message, frozen=True, kw_only=True, tag="get_samples"):
    """Reward worker, trainer -> store. Answered by Samples; an unknown id fails the whole request.

    So does, with `logprobs`, a sample that has none (any more): imported, an evaluation, or of a step forgotten.
    """

    samples: list[SampleId]
    logprobs: bool = False
    prompt_tokens: bool = False


class PutScores(Message, frozen=True, kw_only=True, tag="put_scores"):
    """Reward worker -> store. Only scores with a reward. Done means durable."""

    scores: list[Score]


class MarkSamples(Message, frozen=True, kw_only=True, tag="mark_samples"):
    """Broker -> store: journal these as trained or dropped. Done means durable."""

    samples: list[SampleId]
    state: Literal["trained", "dropped"]
    reason: str = ""


class ForgetLogprobs(Message, frozen=True, kw_only=True, tag="forget_logprobs"):
    """Broker -> store: steps below this one are checkpointed; their log-probs and journal lines may go.

    So may the journal lines of evaluations below EVAL + below_step.
    """

    below_step: int


class GetHistory(Message, frozen=True, kw_only=True, tag="get_history"):
    """Rollout worker -> store: a prompt's earlier responses, newest step first. Answered by Samples (tokens only)."""

    prompt: str
    before_step: int
    limit: int = 16  # responses


class GetLengths(Message, frozen=True, kw_only=True, tag="get_lengths"):
    """Broker -> store: response lengths, without touching tokens. Answered by Lengths."""

    prompts: list[str]
    before_step: int


class GetJournal(Message, frozen=True, kw_only=True, tag="get_journal"):
    """Broker -> store, when it starts: what of these steps is there already. Answered by Journal."""

    from_step: int


class GetStoreStats(Message, frozen=True, tag="get_store_stats"):
    """Anybody -> store. Answered by StoreStats."""


ToStore = (
    OpenRun
    | PutPrompts
    | GetPrompts
    | PutSamples
    | PutPartials
    | GetPartials
    | GetSamples
    | PutScores
    | MarkSamples
    | ForgetLogprobs
    | GetHistory
    | GetLengths
    | GetJournal
    | GetStoreStats
)


class Prompts(Message, frozen=True, kw_only=True, tag="prompts"):
    rows: list[PromptRow]  # in the order asked


class Samples(Message, frozen=True, kw_only=True, tag="samples"):
    """Arrays: response tokens; then, if asked: log-probs; then, if asked: prompt tokens."""

    samples: list[SampleInfo]  # in the order asked


class Kept(Message, frozen=True, kw_only=True, tag="kept"):
    """Answer to PutSamples: durable, but of these an earlier record was there, which counts."""

    samples: list[SampleInfo]  # as the store has them


class Missing(Message, frozen=True, kw_only=True, tag="missing"):
    """Answer to PutPartials: the rest is durable, but of these the store lacks what was before. Begin again at 0."""

    samples: list[SampleId]


class Partials(Message, frozen=True, kw_only=True, tag="partials"):
    """Array: their tokens."""

    samples: list[SampleId]  # in the order asked
    lengths: list[int]  # tokens


class LengthRow(Part, frozen=True, kw_only=True):
    prompt: str
    lengths: list[tuple[int, int]]  # (step, response tokens), oldest step first


class Lengths(Message, frozen=True, kw_only=True, tag="lengths"):
    rows: list[LengthRow]  # in the order asked


class Journal(Message, frozen=True, kw_only=True, tag="journal"):
    entries: list[JournalEntry]
    forgotten: int = 0  # steps below this one have neither lines nor log-probs any more: a checkpoint holds them


class StoreStats(Message, frozen=True, kw_only=True, tag="store_stats"):
    samples: int
    tokens: int  # response tokens
    prompts: int
    used_bytes: int  # of the map
    map_bytes: int
    commits: int
    commit_ms: float  # mean of the last commits
    full: str = ""  # why new data is refused just now
