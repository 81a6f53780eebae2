"""All wire types, in sections by receiver. `docs/protocol.md` is generated from this module.

A message travels as `[envelope, body, *arrays]`: two MessagePack maps and raw frames. The body's `type` names its
struct. Token arrays are little-endian uint32, log-probs float32; the arrays of several samples lie end to end in
one frame, in the order of the map's list, and the lengths in the map cut them apart. Unknown fields are refused.
"""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL = 7
"""Version of this module. A peer of another version is turned away when it joins."""

Role = Literal["rollout", "reward", "trainer"]
FinishReason = Literal["stop", "length", "abort"]
SampleState = Literal["generated", "scored", "trained", "dropped"]


class Message(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Base of all bodies."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what stands inside a body."""


# ---------------------------------------------------------------------------------------------------------------
# The envelope, and the answers that every receiver may give
# ---------------------------------------------------------------------------------------------------------------


class Envelope(Part, frozen=True, kw_only=True):
    """First frame of every message."""

    kind: Literal["request", "reply", "event"]
    id: int = 0  # pairs a reply with its request; 0 in an event
    deadline_s: float = 0.0  # how long the asker will wait; the answerer may give up after it


class Done(Message, frozen=True, tag="done"):
    """Answer: it happened (for the store: it is durable as configured)."""


class Failure(Message, frozen=True, kw_only=True, tag="failure"):
    """Answer: it did not happen, and why."""

    error: str  # class name in rhymed.errors
    message: str


# ---------------------------------------------------------------------------------------------------------------
# Parts that several messages share
# ---------------------------------------------------------------------------------------------------------------


EVAL = 1 << 30
"""The step `EVAL + v` is the evaluation of policy version v on held-out prompts.

So a question about what was before a training step never finds evaluations; one from EVAL on finds the earlier ones.
"""


class SampleId(Part, frozen=True, order=True):
    """Identity of one rollout within a run. Stands for ever; also the key of its noise and of its record."""

    step: int  # training step it is made for, from 0; negative: imported from an earlier run; from EVAL: see there
    prompt: str  # 16 hex digits, see rhymed.data.prompt_id
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
    ahead: tuple[int, int] = (
        0,
        0,
    )  # tokens that were written before with other weights or elsewhere; kept; never stored


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


# ---------------------------------------------------------------------------------------------------------------
# To the broker
# ---------------------------------------------------------------------------------------------------------------


class Join(Message, frozen=True, kw_only=True, tag="join"):
    """Worker or trainer -> broker, first of all and whenever the broker does not know it. Answered by Welcome."""

    role: Role
    worker: str  # unique name, e.g. "rollout-0@host:4711"
    host: str
    pid: int
    protocol: int = PROTOCOL
    slots: int = 1  # samples it can have in hand at once
    version: int = -1  # policy version loaded; trainer: number of steps trained; -1: none
    weights: str = ""  # trainer: address that serves its weights
    life: str = ""  # random id of a trainer's process: its own; rollout: of the one whose weights are loaded
    holding: list[SampleId] = []  # what it still works on (after a restart of the broker)


class Heartbeat(Message, frozen=True, kw_only=True, tag="heartbeat"):
    """Worker -> broker, an event every `heartbeat_s`. Lost ones do no harm: the next tells the same and more."""

    worker: str
    version: int = -1
    life: str = ""  # rollout: of the trainer whose weights are loaded, see Join
    phase: str = ""  # what it does now, for people: "idle", "decode", "update", "train 12/64" …
    holding: list[Holding] = []
    stats: dict[str, float] = {}  # metrics, names as in docs/metrics.md


class Generated(Message, frozen=True, kw_only=True, tag="generated"):
    """Rollout worker -> broker, after the store acknowledged these samples. Saying it twice does no harm."""

    worker: str
    samples: list[SampleInfo]


class Scored(Message, frozen=True, kw_only=True, tag="scored"):
    """Reward worker -> broker, after the store acknowledged the rewards. Errors are told here as well."""

    worker: str
    scores: list[Score]


class Ahead(Message, frozen=True, kw_only=True, tag="ahead"):
    """Rollout worker -> broker: these are written to their ends with weights too old for their step.

    They stay in its hands, without a slot, until newer weights are loaded; then what was written is verified.
    """

    worker: str
    samples: list[SampleId]


class GiveBack(Message, frozen=True, kw_only=True, tag="give_back"):
    """Worker -> broker: these samples will not be done here (it drains, hands them over, or they cannot be done)."""

    worker: str
    samples: list[SampleId]
    reason: str
    retry: bool = True  # False: nobody could do it; drop with the reason
    moved: bool = False  # it was asked for them, and the store has what it wrote


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    """Rollout worker -> broker: from now on new tokens are of this policy version."""

    worker: str
    version: int
    seconds: float


class Trained(Message, frozen=True, kw_only=True, tag="trained"):
    """Trainer -> broker: step done, version = step + 1 is published."""

    worker: str
    step: int
    metrics: dict[str, float]
    life: str = ""  # see Join: from an earlier process it does not count


class Checkpointed(Message, frozen=True, kw_only=True, tag="checkpointed"):
    """Trainer -> broker: all steps below `step` are in a durable checkpoint and will never be asked for again."""

    worker: str
    step: int
    newest: int = 0  # steps in the newest one; a run is finished when that has all of them
    life: str = ""  # see Join: from an earlier process it does not count


class Leave(Message, frozen=True, kw_only=True, tag="leave"):
    """Worker -> broker: goodbye. What it held is given to others."""

    worker: str


class GetQueues(Message, frozen=True, tag="get_queues"):
    """Anybody -> broker: every queue and its depth, what each worker holds. Answered by Queues."""

    brief: bool = False  # without the samples that workers hold: for who asks every second
    worker: str = ""  # brief: this one's are told all the same


class GetGroup(Message, frozen=True, tag="get_group"):
    """Anybody -> broker: one prompt's samples in an open step, and what has happened to each. Answered by Group."""

    step: int
    prompt: str


class Pause(Message, frozen=True, tag="pause"):
    """Operator -> broker: hand out no more work, or go on. What workers have they finish; nothing is lost.

    A broker that starts again has forgotten it.
    """

    paused: bool


class Drain(Message, frozen=True, tag="drain"):
    """Operator -> broker: nothing new for this worker, or work again. What it is writing goes to others.

    It counts for the worker's name, also when that leaves and comes back, until the broker starts again.
    """

    worker: str
    drained: bool


ToBroker = (
    Join
    | Heartbeat
    | Generated
    | Scored
    | Ahead
    | GiveBack
    | Loaded
    | Trained
    | Checkpointed
    | Leave
    | GetQueues
    | GetGroup
    | Pause
    | Drain
)


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Broker's answer to Join."""

    run: str  # the run's name
    heartbeat_s: float
    lost_after_s: float  # silence after which what the worker holds goes to others
    step: int  # trainer: first step that the broker will ask for


class WorkerRow(Part, frozen=True, kw_only=True):
    worker: str
    role: Role
    host: str
    pid: int
    slots: int
    version: int
    phase: str
    silent_s: float  # since the last heartbeat
    holding: list[Holding]  # empty in a brief answer
    stats: dict[str, float] = {}
    held: int = 0  # samples in hand
    parked: int = 0  # of these, written ahead to their ends
    accept_length: float = 0.0  # tokens a forward of its last samples, 1 without drafts; 0: not known
    drained: bool = False  # it gets no more work, see Drain


class GroupRow(Part, frozen=True, kw_only=True):
    """How far one prompt's samples are. Its sizes sum to the group's."""

    prompt: str
    waiting: int
    running: int
    written: int  # or being scored
    settled: int  # scored, or dropped
    longest: int = 0  # tokens, of those that run


class StepRow(Part, frozen=True, kw_only=True):
    step: int
    states: dict[str, int]  # ledger state -> samples
    groups_ready: int
    groups: int
    open_s: float
    rows: list[GroupRow] = []  # some of the groups: what runs, the longest first, then what waits, then what is ready


class Queues(Message, frozen=True, kw_only=True, tag="queues"):
    """Broker's answer to GetQueues: a snapshot."""

    run: str
    uptime_s: float
    version: int  # newest published policy version
    step: int  # next step to be trained
    steps: int  # steps of the whole run
    finished: bool
    queues: dict[str, int]  # waiting, running, generated, scoring, scored, training, trained, dropped
    oldest_s: dict[str, float]  # queue -> age of its oldest sample in that state
    workers: list[WorkerRow]
    open_steps: list[StepRow]  # evaluations, too: their step is EVAL + version
    metrics: dict[str, float] = {}  # of the step trained last
    val: dict[str, float] = {}  # of the newest evaluation; val/version: which policy version it was
    lag_ms: float = 0.0  # event-loop lag, 99th percentile of the last seconds
    counts: dict[str, int] = {}  # since the broker began, only growing: tokens, lost (workers); event -> samples
    store: dict[str, float] = {}  # numbers of StoreStats, a few seconds old; empty: it has not been heard yet
    troubles: list[str] = []  # what keeps the run from going on just now, for people
    paused: bool = False  # see Pause


class Moment(Part, frozen=True, kw_only=True):
    """Something that has happened to a sample."""

    ago_s: float
    event: str  # of the ledger's table, docs/ledger.md
    who: str = ""  # a worker, or why


class Member(Part, frozen=True, kw_only=True):
    """A sample of a group, as the broker knows it."""

    index: int
    state: str  # of the ledger's table
    worker: str  # who has it in hand; empty: nobody
    tokens: int  # so far; of a written one: all
    reward: float | None = None
    story: list[Moment] = []  # its first moment and the newest ones


class Group(Message, frozen=True, kw_only=True, tag="group"):
    """Broker's answer to GetGroup."""

    step: int
    prompt: str
    members: list[Member]  # empty: the step is not open, or has no such prompt
    expected: float = 0.0  # response tokens that were expected of a sample when its step was opened; 0: not known


# ---------------------------------------------------------------------------------------------------------------
# To a worker or the trainer (all from the broker)
# ---------------------------------------------------------------------------------------------------------------


class Generate(Message, frozen=True, kw_only=True, tag="generate"):
    """Broker -> rollout worker: take these. Done means taken; Generated follows when they are stored."""

    samples: list[SampleId]
    begun: list[SampleId] = []  # of these the store has a beginning, see PutPartials


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Broker -> rollout worker: forget these; what they have so far is not kept."""

    samples: list[SampleId]


class Release(Message, frozen=True, kw_only=True, tag="release"):
    """Broker -> rollout worker: hand these over: what they have goes to the store, then they are given back."""

    samples: list[SampleId]


class LoadVersion(Message, frozen=True, kw_only=True, tag="load_version"):
    """Broker -> rollout worker: load these weights in place. Done means begun; Loaded follows."""

    version: int
    weights: str  # address that serves them
    life: str = ""  # of the trainer that made them: one that was set back makes a version of the same number again


class RateSamples(Message, frozen=True, kw_only=True, tag="score"):
    """Broker -> reward worker: take these. Done means taken; Scored follows."""

    samples: list[SampleId]


class TrainStep(Message, frozen=True, kw_only=True, tag="train_step"):
    """Broker -> trainer: train one step on these whole groups. Done means taken; Trained follows."""

    step: int
    samples: list[SampleId]  # sorted: the order is part of what makes a step reproducible
    metrics: dict[str, float] = {}  # rollout's side of the step, for the trainer's log


class Finish(Message, frozen=True, kw_only=True, tag="finish"):
    """Broker -> everybody: the run is over; leave. Trainer: write the last checkpoint first."""

    reason: str


ToRollout = Generate | Cancel | Release | LoadVersion | Finish
ToReward = RateSamples | Finish
ToTrainer = TrainStep | Finish


# ---------------------------------------------------------------------------------------------------------------
# To the store
# ---------------------------------------------------------------------------------------------------------------


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


# ---------------------------------------------------------------------------------------------------------------
# To the trainer's weights address
# ---------------------------------------------------------------------------------------------------------------


class GetManifest(Message, frozen=True, kw_only=True, tag="get_manifest"):
    """Rollout worker -> trainer: where is this version? Answered by Manifest."""

    version: int
    host: str = ""  # the asker's machine, see rhymed.hosts; on the trainer's own it needs no digest


class GetWeights(Message, frozen=True, kw_only=True, tag="get_weights"):
    """Rollout worker on another host -> trainer: a slice of the version's file. Answered by Done + one frame."""

    version: int
    offset: int  # bytes
    length: int  # bytes


ToWeights = GetManifest | GetWeights


class Manifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """One safetensors file a version. `path` serves a reader on `host`; others fetch `size` bytes by slices."""

    version: int
    host: str  # identity of the machine (its boot id), not a name to connect to
    path: str
    size: int  # bytes
    digest: str  # blake2b-128 of the file, hex; empty for a reader on `host`: it would cost more than publishing


Reply = (
    Done
    | Failure
    | Welcome
    | Queues
    | Group
    | Prompts
    | Samples
    | Kept
    | Missing
    | Partials
    | Lengths
    | Journal
    | StoreStats
    | Manifest
)
Anything = ToBroker | ToRollout | ToReward | ToTrainer | ToStore | ToWeights | Reply
