"""The states of a sample and the transitions between them, as data. Everything else about samples follows this table.

`docs/ledger.md` is generated from it (`make docs`). `Rules` are the limits of a run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

from rhymed.core.config import Schedule
from rhymed.core.errors import InvalidTransition
from rhymed.core.messages import Drafting, SampleId

State = Literal[
    "new", "waiting", "running", "turned", "acting",
    "generated", "scoring", "scored", "training", "trained", "filtered", "dropped",
]  # fmt: skip
Event = Literal[
    "opened", "found_turned", "found_generated", "found_scored", "found_filtered", "found_dropped",
    "assigned", "returned",
    "turned", "answered", "generated", "unstored", "scored", "handed", "trained", "filtered", "dropped",
]  # fmt: skip

STATES: tuple[State, ...] = (
    "waiting", "running", "turned", "acting",
    "generated", "scoring", "scored", "training", "trained", "filtered", "dropped",
)  # fmt: skip
UNWRITTEN: frozenset[State] = frozenset({"waiting", "running", "turned", "acting"})
"""More tokens of the sample will be written."""
SETTLED: frozenset[State] = frozenset({"scored", "training", "trained", "filtered", "dropped"})
"""A group is complete when all its samples are in one of these."""

TRANSITIONS: tuple[tuple[State, Event, State], ...] = (
    # its step opens; the journal may have it already
    ("new", "opened", "waiting"),
    ("new", "found_turned", "turned"),  # it has an environment, whose answer comes next: at first its prompt
    ("new", "found_generated", "generated"),
    ("new", "found_scored", "scored"),
    ("new", "found_filtered", "filtered"),
    ("new", "found_dropped", "dropped"),
    # a rollout worker generates it
    ("waiting", "assigned", "running"),
    ("running", "returned", "waiting"),
    ("running", "generated", "generated"),
    # an environment worker answers its turn, and ends it
    ("running", "turned", "turned"),
    ("turned", "assigned", "acting"),
    ("acting", "returned", "turned"),
    ("acting", "answered", "waiting"),
    ("acting", "generated", "generated"),
    # a reward worker scores it
    ("generated", "assigned", "scoring"),
    ("scoring", "returned", "generated"),
    ("scoring", "unstored", "waiting"),  # its rollout worker reported what the store lacks
    ("scoring", "scored", "scored"),
    # its group has no signal, see `ledger.refill`
    ("scored", "filtered", "filtered"),
    # its step goes to the trainer
    ("scored", "handed", "training"),
    ("training", "returned", "scored"),
    ("training", "trained", "trained"),
    ("scored", "trained", "trained"),  # by a trainer that was given up, and came back
    # it cannot be used
    ("waiting", "dropped", "dropped"),
    ("running", "dropped", "dropped"),
    ("turned", "dropped", "dropped"),
    ("acting", "dropped", "dropped"),
    ("generated", "dropped", "dropped"),
    ("scoring", "dropped", "dropped"),
    ("scored", "dropped", "dropped"),  # from the journal, generated under other rules
)

NEXT: dict[State, dict[Event, State]] = {state: {} for state in ("new", *STATES)}
for _source, _event, _target in TRANSITIONS:
    NEXT[_source][_event] = _target


STORY_LENGTH = 16  # events of one sample that are kept for people


@dataclass(frozen=True)
class Rules:
    """The limits of a run, as in the configuration's `schedule` where nothing else is said."""

    max_staleness: int = 0
    run_ahead: int = 0  # steps, beyond those that their weights allow, that workers may begin to generate
    max_retries: int = 2
    max_losses: int = 10
    lost_after_s: float = 20.0
    stuck_after_s: float = 900.0
    scoring_s: float = 0.0  # in which a reward worker ends every call that it may have for a sample
    environment: bool = False  # samples have one: they begin with its answer, and go on in turns
    colocate: bool = False  # engines sleep while the trainer trains
    overlap: bool = False  # the trainer begins with a step's first complete groups
    missing_after_s: float = 5.0  # a worker that does not report a sample for so long does not have it

    @property
    def reach(self) -> int:
        """Steps that are open beyond the oldest one."""
        return self.max_staleness + self.run_ahead

    def still_s(self, state: State) -> float:
        """Without progress, after which a sample in this state is taken from its worker."""
        return max(self.stuck_after_s, self.scoring_s) if state == "scoring" else self.stuck_after_s

    @classmethod
    def of(
        cls, schedule: Schedule, *, scoring_s: float = 0.0, environment: bool = False, overlap: bool = False
    ) -> Rules:
        return cls(
            scoring_s=scoring_s,
            environment=environment,
            overlap=overlap,
            max_staleness=schedule.max_staleness,
            run_ahead=schedule.run_ahead,
            max_retries=schedule.max_retries,
            max_losses=schedule.max_losses,
            lost_after_s=schedule.lost_after_s,
            stuck_after_s=schedule.stuck_after_s,
            colocate=schedule.colocate,
            missing_after_s=max(5.0, 3 * schedule.heartbeat_s),
        )


class Sample:
    """One sample of an open step. Changed by the ledger only.

    Steps have many and open at once: what all begin with belongs to the class, so that making one costs little.
    """

    state: State = "new"
    since = 0.0  # when it entered this state
    worker = ""  # that holds it; empty: none
    failures = 0  # times that a worker failed on it
    tries = 0  # of these, those of its response, turn, answer or score that is missing now
    failed_on: frozenset[str] = frozenset()  # workers that failed on the same
    losses = 0  # times in a row that a worker died with it, without progress
    furthest = 0  # tokens that it had when a worker died with it
    tokens = 0  # generated so far, by its worker's last report
    before = 0  # of these, what stood in the response when its worker began
    earlier = 0  # tokens of the policy's stored turns; of a sample that a restart found, those since
    advanced = 0.0  # when `tokens` last changed
    begun = False  # a worker has held it: the store may have its first tokens
    repeated = False  # it was trained before a rollback, and is trained again
    handovers = 0  # times that it moved to another worker
    released = 0.0  # when its worker was asked to release it; 0: it was not
    goal = ""  # worker that is to continue it
    ahead = (0, 0)  # tokens that were written with older weights; of these, kept
    length = 0  # response tokens
    learned = 0  # of these, the policy's; of a sample that a restart found, all
    author = ""  # rollout worker that wrote its last turn
    oldest = 0  # smallest policy version among its tokens
    drafting: Drafting | None = None  # None: not reported, or not since a restart
    reward: float | None = None
    points: float | None = None  # what its evaluation, or dynamic sampling, looks at

    def __init__(self, id: SampleId) -> None:
        self.id = id
        self.story: list[tuple[float, Event, str]] = []

    @property
    def written(self) -> int:
        """Tokens of the policy so far, by its worker's last report."""
        return self.earlier + self.tokens - self.before

    def refuse(self, event: Event) -> NoReturn:
        """Raises `InvalidTransition` with the sample's story."""
        raise InvalidTransition(f"sample {self.id} is {self.state} and cannot be {event}. {self.describe_story()}")

    def describe_story(self) -> str:
        lines = [f"{at:.3f} {event}{f' ({who})' if who else ''}" for at, event, who in self.story]
        return f"Story: {', '.join(lines) or 'none yet'}"


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for source, event, target in TRANSITIONS:
        lines.append(f"    {'[*]' if source == 'new' else source} --> {target}: {event}")
    lines += ["    trained --> [*]", "    filtered --> [*]", "    dropped --> [*]"]
    return "\n".join(lines)
