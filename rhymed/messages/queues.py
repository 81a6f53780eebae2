"""The broker's answers: who it is, and snapshots of what it has."""

from __future__ import annotations

from rhymed.messages.base import Message, Part
from rhymed.messages.samples import Holding, Role


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
