"""To the store, and its answers."""

from __future__ import annotations

from typing import Literal

from rhymed.core.messages.base import Message, Part
from rhymed.core.messages.fields import (
    Amount,
    Count,
    Exact,
    Line,
    PromptId,
    Report,
    Step,
    Token,
    Word,
    Worded,
)
from rhymed.core.messages.samples import (
    Answer,
    Drawn,
    JournalEntry,
    SampleId,
    SampleInfo,
    Score,
    Session,
    TokenReward,
    Turn,
)


class OpenRun(Message, Worded, frozen=True, kw_only=True, tag="open_run"):
    """Broker -> store: claim the store's folder for this run. Refused if it belongs to another run."""

    run: Line
    fingerprint: Exact  # JSON of the settings that must not change within a run: model, data, seed
    id: Token = ""  # of the run's folder, random; empty: unknown


class PromptRow(Part, frozen=True, kw_only=True):
    prompt: PromptId
    row: Exact  # JSON object: the dataset's columns


class PutPrompts(Message, frozen=True, kw_only=True, tag="put_prompts"):
    """Broker -> store: rows of the dataset. Idempotent. Answered by Done."""

    rows: list[PromptRow]


class GetPrompts(Message, frozen=True, kw_only=True, tag="get_prompts"):
    """Workers -> store. Answered by Prompts."""

    prompts: list[PromptId]


class PutSamples(Message, frozen=True, kw_only=True, tag="put_samples"):
    """Rollout worker -> store. Arrays: prompt tokens, response tokens (uint32), behaviour log-probs (float32).

    Done means durable. A sample that already exists keeps its first record: then the answer is Kept. Imported samples
    (step < 0) have no log-probs, so the third array covers only the others; they never enter the journal. Evaluations
    (step >= EVAL) enter the journal, but their log-probs are not kept: they are never trained.

    With `drafted` there is a fourth array: a bit mask of accepted draft tokens for each sample that is True in it.
    One bit per token, most significant bit first; every sample starts at a byte boundary.

    A sample that is True in `floored` was drawn from some tokens only. Its log-probs are those among the tokens that
    were kept, and its floors (float32, one for each log-prob) follow them: a token was kept if its log-prob among all
    tokens was at least the floor.
    """

    samples: list[SampleInfo]
    drafted: list[bool] = []  # in the same order; empty: unknown for all
    floored: list[bool] = []  # likewise; empty: none has floors


class PutPartials(Message, frozen=True, kw_only=True, tag="put_partials"):
    """Rollout worker -> store: tokens of running samples, so that another worker can continue them.

    Array: tokens (uint32). They replace all tokens from `starts` on; storing the complete sample removes them. Done
    means as durable as a sample. Tokens that would leave a gap are not kept: then the answer is Missing.
    """

    samples: list[SampleId]
    starts: list[Count]  # position of the first token sent, in the same order; 0: start of the response
    lengths: list[Count]  # tokens


class GetPartials(Message, frozen=True, kw_only=True, tag="get_partials"):
    """Rollout worker -> store. Answered by Partials; samples without saved tokens are left out."""

    samples: list[SampleId]


class PutTurns(Message, frozen=True, kw_only=True, tag="put_turns"):
    """Rollout worker -> store: complete turns of samples with an environment. Done means as durable as a sample.

    Arrays: tokens (uint32), behaviour log-probs (float32), and with `drafted` masks of accepted drafts as in
    PutSamples. With `floored` floors follow log-probs as there. A turn that is stored already stays; one whose answer
    the store lacks is refused.
    """

    samples: list[SampleId]
    numbers: list[Count]  # of the turn, from 0, in the same order
    turns: list[Turn]
    drafted: list[bool] = []
    floored: list[bool] = []


class PutAnswer(Message, frozen=True, kw_only=True, tag="put_answer"):
    """Environment worker -> store: an environment's answer. Done means as durable as a sample.

    Array: tokens (uint32) up to the beginning of the next turn. An answer that is stored already stays: Begun says
    that it is another one. One to a turn that the store lacks is refused.
    """

    sample: SampleId
    number: Count  # 0: the prompt; n: the answer to turn n - 1
    answer: Answer


class PutCalls(Message, frozen=True, kw_only=True, tag="put_calls"):
    """Environment worker -> store: it is about to do what this turn asks for.

    Answered by Done if no other attempt has begun, by Begun otherwise: then what was begun may have been done, and
    must not be done again unless it may. A turn that the store lacks is refused."""

    sample: SampleId
    number: Count  # of the turn
    attempt: Token  # random, of the worker's attempt: a repeated message is the same attempt


class GetSessions(Message, frozen=True, kw_only=True, tag="get_sessions"):
    """Rollout worker, environment worker -> store: samples in turns that are not complete. Answered by Sessions."""

    samples: list[SampleId]
    logprobs: bool = False  # with everything that PutSamples needs; without, answers have neither rewards nor calls
    first: Count = 0  # number of the first answer and turn that are wanted


class GetSamples(Message, frozen=True, kw_only=True, tag="get_samples"):
    """Reward worker, trainer -> store. Answered by Samples; an unknown id fails the whole request.

    With `logprobs`, so does a sample without log-probs: imported, an evaluation, or of a step below ForgetLogprobs.
    """

    samples: list[SampleId]
    logprobs: bool = False
    prompt_tokens: bool = False


class PutScores(Message, frozen=True, kw_only=True, tag="put_scores"):
    """Reward worker -> store. Only scores with a reward are sent. Done means durable."""

    scores: list[Score]


class MarkSamples(Message, Worded, frozen=True, kw_only=True, tag="mark_samples"):
    """Broker -> store: record these in the journal as trained or dropped. Done means durable."""

    samples: list[SampleId]
    state: Literal["trained", "dropped"]
    reason: Report = ""
    drawn: Drawn | None = None  # kept for good; None: the step's prompts follow from the plan alone


class ForgetLogprobs(Message, frozen=True, kw_only=True, tag="forget_logprobs"):
    """Broker -> store: steps below this one are checkpointed; delete their log-probs and journal entries.

    Also the journal entries of evaluations below EVAL + below_step.
    """

    below_step: Step


class GetHistory(Message, frozen=True, kw_only=True, tag="get_history"):
    """Rollout worker -> store: a prompt's earlier responses, newest step first. Answered by Samples (tokens only)."""

    prompt: PromptId
    before_step: Step
    limit: Count = 16  # responses


class GetLengths(Message, frozen=True, kw_only=True, tag="get_lengths"):
    """Broker -> store: response lengths, without reading tokens. Answered by Lengths."""

    prompts: list[PromptId]
    before_step: Step


class GetJournal(Message, frozen=True, kw_only=True, tag="get_journal"):
    """Broker -> store, at start: journal entries from this step on. Answered by Journal."""

    from_step: Step
    recent: Count = 0  # trained steps before the last checkpoint whose draws are wanted, too


class GetStoreStats(Message, frozen=True, tag="get_store_stats"):
    """Any peer -> store. Answered by StoreStats."""


ToStore = (
    OpenRun
    | PutPrompts
    | GetPrompts
    | PutSamples
    | PutPartials
    | GetPartials
    | PutTurns
    | PutAnswer
    | PutCalls
    | GetSessions
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
    rows: list[PromptRow]  # in the order requested


class Samples(Message, Worded, frozen=True, kw_only=True, tag="samples"):
    """Arrays: response tokens; then log-probs, if requested; then prompt tokens, if requested.

    The parts of rewards and rewards of tokens come with the log-probs. Of a sample that is True in `floored` the
    floors follow the log-probs, as in PutSamples.
    """

    samples: list[SampleInfo]  # in the order requested
    parts: list[dict[Word, float]] = []  # parts of each sample's reward, as in Score; empty: no reward has parts
    token_rewards: list[list[TokenReward]] = []  # of each sample, as in Score; empty: no sample has any
    floored: list[bool] = []  # whether it has floors, if log-probs are asked for; empty: none has


class Kept(Message, frozen=True, kw_only=True, tag="kept"):
    """Answer to PutSamples: durable, but these samples already had a record, which stays."""

    samples: list[SampleInfo]  # as stored


class Missing(Message, frozen=True, kw_only=True, tag="missing"):
    """Answer to PutPartials: durable, except for these: the store lacks their earlier tokens. Send them from 0."""

    samples: list[SampleId]


class Partials(Message, frozen=True, kw_only=True, tag="partials"):
    """Array: tokens."""

    samples: list[SampleId]  # in the order requested
    lengths: list[Count]  # tokens


class Begun(Message, frozen=True, tag="begun"):
    """Answer to PutCalls: another attempt has begun. Answer to PutAnswer: another one is stored."""


class Sessions(Message, frozen=True, kw_only=True, tag="sessions"):
    """Arrays: tokens of each session's answers and turns, in their order; with `logprobs` those of the turns, each
    with its floors if it has any, and the masks of the accepted drafts of turns that have one, as in PutSamples."""

    sessions: list[Session]  # in the order requested; without answers and turns: it has none


class LengthRow(Part, frozen=True, kw_only=True):
    prompt: PromptId
    lengths: list[tuple[Step, Count]]  # (step, response tokens that the policy wrote), oldest step first


class Lengths(Message, frozen=True, kw_only=True, tag="lengths"):
    rows: list[LengthRow]  # in the order requested


class Journal(Message, frozen=True, kw_only=True, tag="journal"):
    entries: list[JournalEntry]
    drawn: list[Drawn] = []  # of the last forgotten step and of later ones, in their order
    forgotten: Count = 0  # steps below this one have no entries and no log-probs any more: a checkpoint covers them


class StoreStats(Message, Worded, frozen=True, kw_only=True, tag="store_stats"):
    samples: Count
    tokens: Count  # response tokens
    prompts: Count
    used_bytes: Count  # of the map
    map_bytes: Count
    commits: Count
    commit_ms: Amount  # mean of the last commits
    full: Line = ""  # why new data is refused; empty: it is not
