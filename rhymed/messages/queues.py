"""The broker's answers: the run, and snapshots of its state."""

from __future__ import annotations

from rhymed.messages.base import Message, Part
from rhymed.messages.samples import Holding, Role
from rhymed.messages.usage import Usage


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Broker's answer to Join."""

    run: str  # the run's name
    heartbeat_s: float
    lost_after_s: float  # seconds without a heartbeat after which the worker's samples go to others
    step: int  # trainer: first step that it will get


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
    held: int = 0  # number of samples it holds
    parked: int = 0  # of these, complete but waiting for newer weights
    accept_length: float = 0.0  # tokens per forward pass in its last samples, 1 without drafts; 0: unknown
    drained: bool = False  # gets no new work, see Drain
    usage: Usage | None = None  # as in its last heartbeat


class GroupRow(Part, frozen=True, kw_only=True):
    """Progress of one prompt's samples. The four counts sum to the group size."""

    prompt: str
    waiting: int
    running: int
    written: int  # generated, or being scored
    settled: int  # scored, filtered or dropped
    longest: int = 0  # tokens, among running samples


class StepRow(Part, frozen=True, kw_only=True):
    step: int
    states: dict[str, int]  # ledger state -> samples
    groups_ready: int
    groups: int  # those without signal included, and those that replaced them
    filtered: int = 0  # of these, dropped because they had no signal
    refilled: int = 0  # of these, added in their places
    open_s: float
    rows: list[GroupRow] = []  # some groups: running ones, longest first, then waiting, then complete ones


class Queues(Message, frozen=True, kw_only=True, tag="queues"):
    """Broker's answer to GetQueues: a snapshot."""

    run: str
    uptime_s: float
    version: int  # newest published policy version
    step: int  # next step to train
    steps: int  # steps in the whole run
    finished: bool
    queues: dict[str, int]  # waiting, running, generated, scoring, scored, training, trained, filtered, dropped
    oldest_s: dict[str, float]  # queue -> age of its oldest sample in that state
    workers: list[WorkerRow]
    open_steps: list[StepRow]  # includes evaluations: their step is EVAL + version
    metrics: dict[str, float] = {}  # of the last trained step
    val: dict[str, float] = {}  # of the newest evaluation; val/version: its policy version
    lag_ms: float = 0.0  # event-loop lag, 99th percentile of the last seconds
    counts: dict[str, int] = {}  # counters since the broker started: tokens, lost (workers); event -> samples
    store: dict[str, float] = {}  # numbers of StoreStats, a few seconds old; empty: none received yet
    troubles: list[str] = []  # reasons why the run makes no progress, as sentences
    paused: bool = False  # see Pause


class Moment(Part, frozen=True, kw_only=True):
    """An event in the life of a sample."""

    ago_s: float
    event: str  # of the ledger's transition table, docs/ledger.md
    who: str = ""  # a worker, or a reason


class Member(Part, frozen=True, kw_only=True):
    """The broker's view of one sample of a group."""

    index: int
    state: str  # of the ledger's transition table
    worker: str  # that holds it; empty: none
    tokens: int  # generated so far
    reward: float | None = None
    story: list[Moment] = []  # its first event and the newest ones


class Group(Message, frozen=True, kw_only=True, tag="group"):
    """Broker's answer to GetGroup."""

    step: int
    prompt: str
    members: list[Member]  # empty: the step is not open, or has no such prompt
    expected: float = 0.0  # response tokens per sample, forecast when the step was opened; 0: unknown
