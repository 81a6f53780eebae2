"""To the broker, from workers, the trainer and people."""

from __future__ import annotations

from rhymed.messages.base import PROTOCOL, Message
from rhymed.messages.samples import Holding, Role, SampleId, SampleInfo, Score


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
