"""To the broker, from workers, the trainer and operators.

`Usage` is the part of a heartbeat that says what a worker uses of its machine.
"""

from __future__ import annotations

from rhymed.core.messages.base import PROTOCOL, Message, Part
from rhymed.core.messages.fields import (
    Amount,
    Count,
    Line,
    Numbers,
    Step,
    Token,
    Version,
    Word,
    Worded,
    WorkerName,
)
from rhymed.core.messages.samples import Call, Holding, Role, SampleId, SampleInfo, Score


class Join(Message, Worded, frozen=True, kw_only=True, tag="join"):
    """Worker or trainer -> broker: first message; again if the broker does not know it. Answered by Welcome."""

    role: Role
    worker: WorkerName  # unique name, e.g. "rollout-0@host:4711"
    host: Word
    pid: Count
    protocol: Count = PROTOCOL
    slots: Count = 1  # samples it can hold at the same time
    version: Version = -1  # policy version loaded; trainer: number of steps trained; -1: none
    weights: Line = ""  # trainer: address that serves its weights
    life: Token = ""  # random id of a trainer process; rollout: of the one that published the loaded weights
    holding: list[SampleId] = []  # samples it still works on (after a restart of the broker)
    sessions: Count = 0  # environment: samples whose environments it has open at most; 0: any number
    open: list[SampleId] = []  # environment: those that it has open (after a restart of the broker)
    asleep: bool = False  # rollout: its engine has no memory on GPUs, see Sleep, and has no order to wake
    training: Version = -1  # trainer: step that it has (after a restart of the broker); -1: none
    whole_groups: bool = False  # reward: it scores all samples of a group at once, so the broker sends them at once


class Heartbeat(Message, Worded, frozen=True, kw_only=True, tag="heartbeat"):
    """Worker -> broker, an event every `heartbeat_s`. A lost one does no harm: the next one supersedes it."""

    worker: WorkerName
    version: Version = -1
    life: Token = ""  # rollout: of the trainer whose weights are loaded, see Join
    phase: Word = ""  # current activity, for display: "idle", "decode", "update", "train 12/64" …
    holding: list[Holding] = []
    stats: Numbers = {}  # metrics, names as in docs/metrics.md
    training: Version = -1  # trainer: as in Join
    usage: Usage | None = None  # a few seconds old; None: not known yet
    waits: Line = ""  # for how long, for what and why, of more than a few seconds; empty: for nothing


class Generated(Message, frozen=True, kw_only=True, tag="generated"):
    """Rollout or environment worker -> broker, after the store acknowledged these samples. Idempotent.

    Counts for the samples that the broker gave it; so do Scored and GiveBack.
    """

    worker: WorkerName
    samples: list[SampleInfo]
    calls: list[list[Call]] = []  # that each sample made since its last report; empty: none


class Turned(Message, frozen=True, kw_only=True, tag="turned"):
    """Rollout worker -> broker, after the store acknowledged a turn of each of these samples. Idempotent."""

    worker: WorkerName
    samples: list[SampleInfo]  # with the tokens of the turn alone; the finish reason is the turn's


class Answered(Message, frozen=True, kw_only=True, tag="answered"):
    """Environment worker -> broker, after the store acknowledged its answers: the policy writes the next turn.

    A sample that is complete is reported by Generated instead.
    """

    worker: WorkerName
    samples: list[SampleId]
    calls: list[list[Call]] = []  # as in Generated


class Scored(Message, frozen=True, kw_only=True, tag="scored"):
    """Reward worker -> broker, after the store acknowledged the rewards. Scoring errors are reported here, too."""

    worker: WorkerName
    scores: list[Score]


class Ahead(Message, frozen=True, kw_only=True, tag="ahead"):
    """Rollout worker -> broker: these samples are complete, with weights too old for their step.

    The worker keeps them, without a slot, until newer weights are loaded; then their tokens are verified.
    """

    worker: WorkerName
    samples: list[SampleId]


class GiveBack(Message, Worded, frozen=True, kw_only=True, tag="give_back"):
    """Worker -> broker: it returns these samples (it drains, was asked to release them, or they failed)."""

    worker: WorkerName
    samples: list[SampleId]
    reason: Line
    retry: bool = True  # False: no worker could do it; drop with the reason
    moved: bool = False  # returned after Release: the store has their tokens
    blamed: bool = True  # False: what failed is another sample of their group


class Loaded(Message, frozen=True, kw_only=True, tag="loaded"):
    """Rollout worker -> broker: from now on, new tokens come from this policy version."""

    worker: WorkerName
    version: Version
    seconds: Amount
    life: Token = ""  # of the trainer that published it, see Join


class Asleep(Message, frozen=True, kw_only=True, tag="asleep"):
    """Rollout worker -> broker: its engine has freed its memory, see Sleep."""

    worker: WorkerName
    seconds: Amount


class Trained(Message, Worded, frozen=True, kw_only=True, tag="trained"):
    """Trainer -> broker: step done, version = step + 1 is published."""

    worker: WorkerName
    step: Step
    metrics: Numbers
    life: Token = ""  # see Join; ignored if from an earlier process


class Checkpointed(Message, frozen=True, kw_only=True, tag="checkpointed"):
    """Trainer -> broker: all steps below `step` are in a durable checkpoint and will never be requested again."""

    worker: WorkerName
    step: Step
    newest: Count = 0  # steps in the newest checkpoint; a run is finished when it has all of them
    life: Token = ""  # see Join; ignored if from an earlier process


class Leave(Message, frozen=True, kw_only=True, tag="leave"):
    """Worker -> broker: it leaves. Its samples go to other workers."""

    worker: WorkerName


class GetQueues(Message, frozen=True, tag="get_queues"):
    """Any peer -> broker: depth of every queue, samples of every worker. Answered by Queues."""

    brief: bool = False  # without the samples that workers hold: for a client that polls every second


class Pause(Message, frozen=True, tag="pause"):
    """Operator -> broker: stop assigning work, or continue. Workers finish the samples they hold; nothing is lost.

    Not remembered after a restart of the broker.
    """

    paused: bool


class Drain(Message, frozen=True, tag="drain"):
    """Operator -> broker: no new work for this worker, or work again. Its running samples move to other workers.

    Applies to the worker's name, also after it leaves and joins again, until the broker restarts.
    """

    worker: WorkerName
    drained: bool


ToBroker = (
    Join
    | Heartbeat
    | Generated
    | Turned
    | Answered
    | Scored
    | Ahead
    | GiveBack
    | Loaded
    | Asleep
    | Trained
    | Checkpointed
    | Leave
    | GetQueues
    | Pause
    | Drain
)


# What a worker uses of its machine, as its heartbeats report it.


class GpuUsage(Part, Worded, frozen=True, kw_only=True):
    """One device, with all processes that use it. None: the driver does not know it."""

    index: Count  # as nvidia-smi counts
    kind: Word = ""  # e.g. "NVIDIA H200"
    utilization: Amount | None = None  # share of the driver's last sample period in which a kernel ran
    memory: Count | None = None  # bytes in use
    memory_total: Count | None = None  # bytes
    celsius: Amount | None = None


class Usage(Part, frozen=True, kw_only=True):
    """Of a worker's process and all its descendants, and of the GPUs that it may use."""

    cpu: Amount  # processors in use: seconds of CPU per second
    memory: Count  # bytes in RAM that no other process shares and that are no part of a file
    processes: Count = 1
    gpus: list[GpuUsage] = []
