"""Structs that several messages share."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal, TypeAlias

from rhymed.core.messages.base import Part
from rhymed.core.messages.fields import Amount, Count, Exact, PromptId, Report, Step, Version, Word, Worded
from rhymed.core.printable import line

Role = Literal["rollout", "environment", "reward", "trainer"]

FinishReason = Literal["stop", "length", "abort"]

SampleState = Literal["generated", "scored", "trained", "dropped"]

NO_SIGNAL = "no signal"
"""Begins the reason of samples that dynamic sampling dropped: a restart distinguishes them from those that failed."""

NOT_PLANNED = "its step has other prompts now"
"""Reason of samples that an earlier setting of dynamic sampling had asked for."""


class SampleId(Part, frozen=True, order=True):
    """Identity of one rollout within a run. Never changes; it also keys the sampling noise and the record."""

    step: Step  # training step, from 0; negative: imported from an earlier run; from `steps.EVAL` on: see there
    prompt: PromptId  # 16 hex digits, see rhymed.inputs.rows.prompt_id
    index: Count  # 0 .. group_size - 1

    def __str__(self) -> str:
        return f"{self.step}/{line(self.prompt)}/{self.index}"


class Drafting(Part, frozen=True):
    """Speculative decoding of one sample. Times are estimates: the sample's share of the engine's steps."""

    forwards: Count  # engine steps that decoded it
    drafted: Count  # draft tokens that were verified
    accepted: Count  # of these; each step yields one more token without a draft
    timed_s: Amount  # of the timed steps
    plain_s: Amount  # predicted for plain decoding of the same tokens
    draft_s: Amount  # part of timed_s that was spent on drafting
    carried: Count = 0  # tokens generated earlier, with other weights or on another worker
    kept: Count = 0  # length of their prefix that was accepted


class Fork(Part, frozen=True, kw_only=True):
    """Where another row of a sample begins, as when its program rewrites the conversation.

    The row's tokens are the first `shared` tokens of row `row`, its prompt included, and the response tokens from
    `start` to the next fork. Row 0 is the sample's prompt and what follows it.
    """

    start: Count  # in the response tokens
    row: Count  # an earlier one
    shared: Count  # tokens


class SampleInfo(Part, frozen=True, kw_only=True):
    """A generated sample without its tokens."""

    id: SampleId
    prompt_length: Count  # tokens
    length: Count  # response tokens, end-of-sequence included
    finish_reason: FinishReason
    versions: list[tuple[Version, Count]]  # (policy version, consecutive tokens), oldest first; counts sum to length
    reward: float | None = None  # None: not scored
    drafting: Drafting | None = None  # None: unknown; never stored
    ahead: tuple[Count, Count] = (0, 0)  # (carried, kept), see Drafting; never stored
    turns: list[Count] = []  # its tokens in runs: the policy's, its environment's, in turn; empty: all the policy's
    earned: float | None = None  # the reward that its environment gave; None: it gave none
    turn_rewards: list[float] = []  # of these, what each of its `turn_count` turns earned; empty: not given by turn
    forks: list[Fork] = []  # in the order of their starts, where a run of `turns` begins; empty: it has one row
    last: Count | None = (
        None  # place in `turns` of what the policy wrote last; None: no row after it was written before
    )
    said: list[
        Exact
    ] = []  # of its answers except the first, as in Answer; only in reply to requests for samples without log-probs
    state: Exact = ""  # of the last answer, as in Answer

    @property
    def learned(self) -> int:
        """Response tokens that the policy wrote."""
        return sum(self.turns[::2]) if self.turns else self.length

    @property
    def turn_count(self) -> int:
        """Turns of the policy that have tokens."""
        return len(self.turn_ends)

    @property
    def turn_ends(self) -> list[int]:
        """The last response token of each of these turns."""
        ends = list(accumulate(self.turns or [self.length]))
        return [end - 1 for end, count in zip(ends[::2], self.turns[::2] or [1], strict=True) if count]


class Turn(Part, frozen=True, kw_only=True):
    """What the policy wrote between two answers of a sample's environment, without its tokens."""

    length: Count  # tokens
    finish_reason: FinishReason
    versions: list[tuple[Version, Count]]  # as in SampleInfo


class Call(Part, Worded, frozen=True, kw_only=True):
    """A call of a tool, or a step of an environment."""

    name: Word
    seconds: Amount = 0.0
    error: Report = ""


class Answer(Part, frozen=True, kw_only=True):
    """What an environment answered, without its tokens. The first answer of a sample is its prompt.

    The next turn's prompt is the first `kept` tokens of what turn `after` ends, and the answer's tokens.
    """

    length: Count  # tokens
    after: Count | None = None  # a turn; None: the one before
    kept: Count | None = None  # tokens; None: all of them
    most: Count | None = None  # tokens that the next turn may have; None: as many as it has room for
    stop: list[Exact] = []  # strings that end the next turn, in addition to the run's
    done: bool = False  # the policy writes no other turn
    reward: float | None = None
    calls: list[Call] = []
    cut: bool = False  # done because of rollout.max_response_length or environment.max_turns
    unused: list[Count] = []  # if it is done: turns that the sample leaves out, as its program in the end did
    said: Exact = ""  # JSON list of messages: the turn before it, and the answer itself; empty: not known
    state: Exact = ""  # if it is done: JSON object of the environment's public attributes; empty: it has none


class Session(Part, frozen=True, kw_only=True):
    """A sample in turns, as far as it is. Answer n comes before turn n."""

    id: SampleId
    answers: list[Answer]
    turns: list[Turn]
    begun: bool = False  # the calls of its last turn have begun, and are not answered
    stored: bool = False  # it is complete and a sample of the store, which no longer has its answers and turns
    drafted: list[bool] = []  # of each turn: whether it is known which tokens were accepted drafts
    floored: list[bool] = []  # of each turn: whether it has floors; empty: none has

    @property
    def acts(self) -> bool:
        """Whether its environment has to answer."""
        return len(self.answers) == len(self.turns)

    @property
    def done(self) -> bool:
        return bool(self.answers) and self.answers[-1].done


TokenReward: TypeAlias = tuple[Count, float]
"""A response token, and the reward that was earned with it. What is left of a sample's reward is that of its last
token. Each token comes once, and in order."""


class Score(Part, Worded, frozen=True, kw_only=True):
    """Outcome of scoring one sample: a reward or an error; both if `reward.on_error` turns the error into 0."""

    id: SampleId
    reward: float | None = None
    error: Report | None = None  # for the user
    timeout: bool = False  # the error, or the 0 of a built-in scorer, is an exceeded time limit
    parts: dict[
        Word, float
    ] = {}  # scorer -> reward before weighting; to the store also scorer/name -> values that it names
    failed: Word = ""  # the scorer that raised the error
    notes: dict[Word, Report] = {}  # scorer/name -> text of the sample; sent to the store only
    metrics: dict[Word, float] = {}  # of the scoring call, with one of its samples; sent to the broker only
    token_rewards: list[TokenReward] = []  # where parts of the reward were earned; sent to the store only
    unstored: bool = False  # not scored: the store does not have the sample. Sent to the broker only

    def points(self, scorer: str = "") -> float | None:
        """Of one scorer; empty, or one that gave none: the reward. An error that counts as a reward gives that reward
        for each scorer, too."""
        return self.reward if self.error is not None or not scorer else self.parts.get(scorer, self.reward)


class Cursor(Part, frozen=True, kw_only=True):
    """A place in the run's endless sequence of prompts, see rhymed_broker.plan."""

    position: Count = 0  # prompts of the sequence that lie before it
    deferred: list[PromptId] = []  # of these, those that no step has taken yet; they are taken first
    known: Count = 0  # with a data.sampler: steps whose results the next draw knows
    ordered: Count = 0  # with data.sampler = "length": steps whose lengths gave the order of the pass that it is in

    @property
    def drawn(self) -> int:
        """Prompts that steps have taken before it."""
        return self.position - len(self.deferred)


class Drawn(Part, frozen=True, kw_only=True):
    """Which prompts a trained step took, and where the sequence stood then: what a restart after this step needs."""

    step: Step
    start: Cursor  # of its first prompts, `rollout.prompts_per_step` of them
    refill: Cursor  # of the prompts that replaced groups without signal
    refilled: Count  # how many
    after: Cursor  # of the next prompts that a step takes
    reserved: list[tuple[Step, Cursor]]  # (step, where its first prompts begin), of later steps that were open then
    rates: list[tuple[PromptId, Amount]] = []  # with a data.sampler: each prompt's success rate or mean length


class JournalEntry(Part, Worded, frozen=True, kw_only=True):
    """One entry of the run's journal: the durable state of a sample.

    "begun": the store has some of its tokens. "turned": its last turn waits for an answer of its environment.
    """

    id: SampleId
    state: SampleState | Literal["begun", "turned"]
    length: Count = 0  # response tokens
    oldest_version: Version = 0  # smallest policy version among its tokens
    reward: float | None = None
    reason: Report = ""  # why it was dropped


class Holding(Part, frozen=True, kw_only=True):
    """A sample that a worker holds."""

    id: SampleId
    tokens: Count = 0  # generated so far
    before: Count = 0  # of these, what stood in the response when this turn began
    parked: bool = False  # complete, but waits for newer weights; uses no slot
    seconds: Amount = 0.0  # since the worker accepted it
