"""The broker's answers: the run, and snapshots of its state."""

from __future__ import annotations

from rhymed.core.messages.base import Message, Part
from rhymed.core.messages.broker import Usage
from rhymed.core.messages.fields import Amount, Count, Line, Numbers, Report, Step, Version, Word, Worded
from rhymed.core.messages.samples import Holding, Role


class Welcome(Message, Worded, frozen=True, kw_only=True, tag="welcome"):
    """Broker's answer to Join."""

    run: Line  # the run's name
    heartbeat_s: Amount
    lost_after_s: Amount  # seconds without a heartbeat after which the worker's samples go to others
    step: Step  # trainer: first step that it will get


class WorkerRow(Part, Worded, frozen=True, kw_only=True):
    worker: Word
    role: Role
    host: Word
    pid: Count
    slots: Count
    version: Version
    phase: Word
    silent_s: Amount  # since the last heartbeat
    holding: list[Holding]  # empty in a brief answer
    stats: Numbers = {}
    held: Count = 0  # number of samples it holds
    parked: Count = 0  # of these, complete but waiting for newer weights
    accept_length: Amount = 0.0  # tokens per forward pass in its last samples, 1 without drafts; 0: unknown
    drained: bool = False  # gets no new work, see Drain
    usage: Usage | None = None  # as in its last heartbeat


class StepRow(Part, Worded, frozen=True, kw_only=True):
    step: Step
    states: dict[Word, Count]  # ledger state -> samples
    groups_ready: Count
    groups: Count  # those without signal included, and those that replaced them
    filtered: Count = 0  # of these, dropped because they had no signal
    refilled: Count = 0  # of these, added in their places
    open_s: Amount


class Queues(Message, Worded, frozen=True, kw_only=True, tag="queues"):
    """Broker's answer to GetQueues: a snapshot."""

    run: Line
    uptime_s: Amount
    version: Version  # newest published policy version
    step: Step  # next step to train
    steps: Count  # steps in the whole run
    finished: bool
    queues: dict[Word, Count]  # waiting, running, generated, scoring, scored, training, trained, filtered, dropped
    oldest_s: Numbers  # queue -> age of its oldest sample in that state
    workers: list[WorkerRow]
    open_steps: list[StepRow]  # includes evaluations: their step is EVAL + version
    metrics: Numbers = {}  # of the last trained step
    val: Numbers = {}  # of the newest evaluation; val/version: its policy version
    lag_ms: Amount = 0.0  # event-loop lag, 99th percentile of the last seconds
    counts: dict[Word, Count] = {}  # counters since the broker started: tokens, lost (workers); event -> samples
    store: Numbers = {}  # numbers of StoreStats, a few seconds old; empty: none received yet
    troubles: list[Report] = []  # reasons why the run makes no progress, as sentences
    paused: bool = False  # see Pause
