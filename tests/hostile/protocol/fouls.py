"""Messages of dishonest peers: any message of any role, in any name, about any sample. And what a key allows.

The table is written from docs/security.md, not from the code that it judges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rhymed.core import messages
from rhymed.core.messages import EVAL, Cursor, Drawn, Holding, SampleId, Score
from tests.hostile.protocol.peers import ACTORS, CAST, Peer, content

MEMBER = {messages.Join, messages.Heartbeat, messages.Leave}
READS = {messages.GetPrompts, messages.GetSamples}
ALL = {messages.GetQueues, messages.GetStoreStats}
MAY: dict[str, set[Any]] = {
    "rollout": ALL
    | MEMBER
    | READS
    | {messages.Generated, messages.Loaded, messages.Asleep, messages.Ahead, messages.GiveBack}
    | {messages.PutSamples, messages.PutPartials, messages.GetPartials, messages.GetHistory}
    | {messages.Turned, messages.PutTurns, messages.GetSessions},
    "environment": ALL
    | MEMBER
    | READS
    | {messages.Generated, messages.Answered, messages.GiveBack, messages.PutSamples}
    | {messages.PutAnswer, messages.PutCalls, messages.GetSessions},
    "reward": ALL | MEMBER | READS | {messages.Scored, messages.GiveBack, messages.PutScores},
    "trainer": ALL | MEMBER | READS | {messages.Trained, messages.Checkpointed},
    "broker": ALL
    | READS
    | {messages.OpenRun, messages.PutPrompts, messages.MarkSamples, messages.ForgetLogprobs, messages.GetLengths}
    | {messages.GetJournal, messages.PutSamples, messages.PutScores, messages.GetHistory},
    "store": ALL,
    "viewer": ALL,
    "operator": ALL | {messages.Pause, messages.Drain},
}
VERSIONS = (0, 1, -1, 2, 5, 1 << 20, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1, -(1 << 63))
NAMES = ("rollout-y", "reward", "nobody", *(part.name for part in CAST))
TURN_NAMES = (*NAMES, *(part.name for part in ACTORS))
NUMBERS = (0, 1, 2, 3, 1 << 29, 1 << 31, (1 << 53) - 1)
WRONG_IDS = (
    SampleId(0, "0" * 16, 0),
    SampleId(-5, "0" * 16, 0),
    SampleId(1 << 29, "f" * 16, 1),
    SampleId(EVAL + 1, "0" * 16, 0),
    SampleId(1, "not hex", -1),
    SampleId(1 << 62, "", 1 << 40),
)


class Foul(NamedTuple):
    to: str  # "broker" or "store"
    message: messages.Message
    frames: tuple[Any, ...] = ()
    puts: tuple[Any, ...] = ()  # of PutSamples: what is in it

    def permitted(self, peer: Peer) -> bool:
        """Whether the key allows to send it: what comes of it is another question."""
        if type(self.message) not in MAY[peer.role]:
            return False
        if isinstance(self.message, messages.Join) and self.message.role != peer.role:
            return False
        if isinstance(self.message, messages.GetQueues | messages.Drain):
            return True
        if peer.role == "rollout" and self._beyond_turns():
            return False
        name = getattr(self.message, "worker", None)
        return name is None or name == peer.role or name.startswith((f"{peer.role}-", f"{peer.role}@"))

    def _beyond_turns(self) -> bool:
        """What is only for who has a sample's environment."""
        if isinstance(self.message, messages.GetSessions):
            return self.message.logprobs
        return isinstance(self.message, messages.PutSamples) and any(one.turns for one in self.message.samples)


class Around(NamedTuple):
    """What a foul message is about."""

    peer: Peer
    name: str
    ids: list[SampleId]
    version: int  # of the samples, or a step
    how: int


def _put(a: Around) -> Foul:
    made = [content(id, a.peer.name, a.version % (1 << 31)) for id in a.ids]
    frames = [
        np.concatenate([np.asarray(part) for part in column])
        for column in zip(*((one.prompt_tokens, one.tokens, one.logprobs) for one in made), strict=True)
    ]
    if a.how % 4 == 3:
        frames[1] = frames[1][:-1]  # shorter than announced
    return Foul("store", messages.PutSamples(samples=[one.info for one in made]), tuple(frames), tuple(made))


def _parts(a: Around) -> Foul:
    tokens = np.arange(4 * len(a.ids), dtype=np.uint32)
    starts = [a.version] * len(a.ids)
    lengths = [4 + (a.how % 4 == 3)] * len(a.ids)
    return Foul("store", messages.PutPartials(samples=a.ids, starts=starts, lengths=lengths), (tokens,))


def _scores(a: Around) -> list[Score]:
    rewards = (None, 7.0, float("nan"), float("inf"), -1e300)
    reward = rewards[a.how % len(rewards)]
    return [Score(id=id, reward=reward, error="foul" if reward is None else None) for id in a.ids]


def _join(a: Around) -> Foul:
    role: Any = ("rollout", "reward", "trainer")[a.how % 3] if a.how % 8 == 7 else a.peer.role
    if role not in ("rollout", "environment", "reward", "trainer"):
        role = "rollout"
    slots = (1, 2, 0, -1, 1 << 40)[a.how % 5]
    join = messages.Join(
        role=role, worker=a.name, host="x", pid=1, slots=slots, version=a.version, life="foul", holding=a.ids
    )
    return Foul("broker", join)


def _beat(a: Around) -> Foul:
    holding = [Holding(id=id, tokens=a.version, parked=a.how % 2 == 0, seconds=-1.0) for id in a.ids]
    beat = messages.Heartbeat(worker=a.name, version=a.version, phase="\x1b[2J", holding=holding, training=a.version)
    return Foul("broker", beat)


def _generated(a: Around) -> Foul:
    infos = [content(id, a.peer.name, a.version % (1 << 31)).info for id in a.ids]
    return Foul("broker", messages.Generated(worker=a.name, samples=infos))


def _give_back(a: Around) -> Foul:
    retry, moved = a.how % 2 == 0, a.how % 4 >= 2
    back = messages.GiveBack(worker=a.name, samples=a.ids, reason="foul", retry=retry, moved=moved)
    return Foul("broker", back)


def _mark(a: Around) -> Foul:
    drawn = Drawn(step=a.version, start=Cursor(), refill=Cursor(), refilled=0, after=Cursor(), reserved=[])
    state: Any = ("trained", "dropped")[a.how % 2]
    return Foul("store", messages.MarkSamples(samples=a.ids, state=state, drawn=drawn if a.how % 4 == 0 else None))


def _broker(make: Callable[[Around], messages.Message]) -> Callable[[Around], Foul]:
    return lambda around: Foul("broker", make(around))


def _store(make: Callable[[Around], messages.Message]) -> Callable[[Around], Foul]:
    return lambda around: Foul("store", make(around))


KINDS: tuple[Callable[[Around], Foul], ...] = (
    _join,
    _generated,
    _give_back,
    _beat,
    _put,
    _broker(lambda a: messages.Scored(worker=a.name, scores=_scores(a))),
    _store(lambda a: messages.PutScores(scores=_scores(a))),
    _broker(lambda a: messages.Ahead(worker=a.name, samples=a.ids)),
    _broker(lambda a: messages.Loaded(worker=a.name, version=a.version, seconds=0.0)),
    _broker(lambda a: messages.Asleep(worker=a.name, seconds=0.0)),
    _broker(lambda a: messages.Trained(worker=a.name, step=a.version, metrics={}, life="foul")),
    _broker(lambda a: messages.Checkpointed(worker=a.name, step=a.version, newest=a.version, life="foul")),
    _broker(lambda a: messages.Leave(worker=a.name)),
    _broker(lambda a: messages.GetQueues(brief=a.how % 2 == 0)),
    _broker(lambda a: messages.Pause(paused=a.how % 2 == 0)),
    _broker(lambda a: messages.Drain(worker=a.name, drained=a.how % 2 == 0)),
    _parts,
    _mark,
    _store(lambda a: messages.GetSamples(samples=a.ids, logprobs=a.how % 2 == 0)),
    _store(lambda a: messages.GetPartials(samples=a.ids)),
    _store(lambda a: messages.GetHistory(prompt=a.ids[0].prompt, before_step=a.version, limit=a.how - 8)),
    _store(lambda a: messages.ForgetLogprobs(below_step=a.version)),
    _store(lambda a: messages.OpenRun(run=a.name, fingerprint="{}")),
    _store(lambda a: messages.PutPrompts(rows=[messages.PromptRow(prompt=a.ids[0].prompt, row="{}")])),
    _store(lambda a: messages.GetPrompts(prompts=[id.prompt for id in a.ids])),
    _store(lambda a: messages.GetLengths(prompts=[id.prompt for id in a.ids], before_step=a.version)),
    _store(lambda a: messages.GetJournal(from_step=a.version, recent=a.how)),
    _store(lambda a: messages.GetStoreStats()),
)


def _turns(a: Around) -> Foul:
    made = [content(id, a.peer.name, a.version % (1 << 31)) for id in a.ids]
    reasons: Any = ("stop", "stop", "length", "abort")
    turns = [
        messages.Turn(length=one.info.length, finish_reason=reasons[a.how % 4], versions=one.info.versions)
        for one in made
    ]
    numbers = [NUMBERS[(a.how + place) % len(NUMBERS)] for place in range(len(made))]
    tokens = np.concatenate([np.asarray(one.tokens, np.uint32) for one in made])
    frames = tokens, np.full(len(tokens) - (a.how % 16 == 5), -1.0, np.float32)
    return Foul("store", messages.PutTurns(samples=a.ids, numbers=numbers, turns=turns), frames)


def _answer(a: Around) -> Foul:
    tokens = np.arange(a.how % 4, dtype=np.uint32)
    answer = messages.Answer(
        length=len(tokens) + (a.how % 16 == 7),
        done=a.how % 3 == 0,
        reward=(None, 9.0, float("nan"), float("inf"))[a.how // 3 % 4],
        after=(None, None, 0, 1 << 40)[a.how // 7 % 4],
        kept=(None, None, 1, 1 << 40)[a.how // 5 % 4],
        calls=[messages.Call(name="\x1b[2J", error="foul")] * (a.how % 3),
        cut=a.how % 5 == 0,
    )
    number = NUMBERS[a.how // 2 % len(NUMBERS)]
    return Foul("store", messages.PutAnswer(sample=a.ids[0], number=number, answer=answer), (tokens,))


def _whole(a: Around) -> Foul:
    """Complete samples in turns, whose environment gave what the sender likes."""
    foul = _put(a)
    assert isinstance(foul.message, messages.PutSamples), "it is one"
    infos = [msgspec.structs.replace(one, turns=[one.length], earned=9.0) for one in foul.message.samples]
    return foul._replace(message=messages.PutSamples(samples=infos))


TURN_KINDS = (
    *KINDS,
    _turns,
    _answer,
    _whole,
    _store(lambda a: messages.PutCalls(sample=a.ids[0], number=NUMBERS[a.how % len(NUMBERS)], attempt="foul")),
    _store(lambda a: messages.GetSessions(samples=a.ids, logprobs=a.how % 2 == 0)),
    _broker(lambda a: messages.Turned(worker=a.name, samples=[content(id, a.name, 0).info for id in a.ids])),
    _broker(lambda a: messages.Answered(worker=a.name, samples=a.ids)),
)
"""Also those about samples in turns."""
