"""The states of a sample and the moves between them, as data. Everything else about samples follows this table.

`docs/ledger.md` is generated from it (`python -m rhymed_broker.ledger.ledger`).
"""

from __future__ import annotations

from typing import Literal, NoReturn

from rhymed.errors import InvalidTransition
from rhymed.messages import Drafting, SampleId

State = Literal["new", "waiting", "running", "generated", "scoring", "scored", "training", "trained", "dropped"]
Event = Literal[
    "opened", "found_generated", "found_scored", "found_dropped",
    "assigned", "returned", "generated", "scored", "handed", "trained", "dropped",
]  # fmt: skip

STATES: tuple[State, ...] = (
    "waiting", "running", "generated", "scoring", "scored", "training", "trained", "dropped",
)  # fmt: skip
SETTLED: frozenset[State] = frozenset({"scored", "training", "trained", "dropped"})
"""A group is complete when all its samples are in one of these."""

TRANSITIONS: tuple[tuple[State, Event, State], ...] = (
    # its step opens; what the journal knows of it already counts
    ("new", "opened", "waiting"),
    ("new", "found_generated", "generated"),
    ("new", "found_scored", "scored"),
    ("new", "found_dropped", "dropped"),
    # a rollout worker makes it
    ("waiting", "assigned", "running"),
    ("running", "returned", "waiting"),
    ("running", "generated", "generated"),
    ("waiting", "generated", "generated"),  # reported by a worker that had been given up: the store has it
    # a reward worker scores it
    ("generated", "assigned", "scoring"),
    ("scoring", "returned", "generated"),
    ("scoring", "scored", "scored"),
    ("generated", "scored", "scored"),  # likewise
    # its step goes to the trainer
    ("scored", "handed", "training"),
    ("training", "returned", "scored"),
    ("training", "trained", "trained"),
    ("scored", "trained", "trained"),  # the trainer was given up, and came back with the step done
    # it cannot be used
    ("waiting", "dropped", "dropped"),
    ("running", "dropped", "dropped"),
    ("generated", "dropped", "dropped"),
    ("scoring", "dropped", "dropped"),
    ("scored", "dropped", "dropped"),  # the journal's, made under rules that do not hold any more
)

NEXT: dict[State, dict[Event, State]] = {state: {} for state in ("new", *STATES)}
for _source, _event, _target in TRANSITIONS:
    NEXT[_source][_event] = _target


STORY_LENGTH = 16  # events of one sample that are kept for people


class Sample:
    """One sample of an open step. Changed by the ledger only."""

    __slots__ = (
        "advanced", "ahead", "begun", "drafting", "failures", "furthest", "goal", "handovers", "id", "length", "losses",
        "oldest", "points", "released", "reward", "since", "state", "story", "tokens", "worker",
    )  # fmt: skip

    def __init__(self, id: SampleId) -> None:
        self.id = id
        self.state: State = "new"
        self.since = 0.0  # when it came into this state
        self.worker = ""  # who has it in hand
        self.failures = 0  # times that a worker failed on it
        self.losses = 0  # times in a row that a worker died with it, while it came no further
        self.furthest = 0  # tokens that it had when a worker died with it
        self.tokens = 0  # generated so far, as its worker told last
        self.advanced = 0.0  # when that grew last
        self.begun = False  # the store may have its beginning: somebody has had it in hand
        self.handovers = 0  # times that a worker handed it to another
        self.released = 0.0  # when its worker was asked to hand it over; 0: it was not
        self.goal = ""  # worker that is to go on with it
        self.ahead = (0, 0)  # tokens that were written with older weights; of these, kept
        self.length = 0  # response tokens
        self.oldest = 0  # smallest policy version among its tokens
        self.drafting: Drafting | None = None  # None: not told, or the broker was started since
        self.reward: float | None = None
        self.points: float | None = None  # of an evaluation: what decides whether it is right
        self.story: list[tuple[float, Event, str]] = []

    def refuse(self, event: Event) -> NoReturn:
        """Raises `InvalidTransition` with the sample's story."""
        raise InvalidTransition(f"sample {self.id} is {self.state} and cannot be {event}. {self.tell()}")

    def tell(self) -> str:
        """Its story in one line."""
        lines = [f"{at:.3f} {event}{f' ({who})' if who else ''}" for at, event, who in self.story]
        return f"Story: {', '.join(lines) or 'none yet'}"


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for source, event, target in TRANSITIONS:
        lines.append(f"    {'[*]' if source == 'new' else source} --> {target}: {event}")
    lines += ["    trained --> [*]", "    dropped --> [*]"]
    return "\n".join(lines)
