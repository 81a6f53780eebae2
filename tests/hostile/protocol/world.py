"""What a history is played against: the real servers, the peers, and what these were promised.

Only what was acknowledged is written down here; `invariants` compares it with the servers after every action.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import zmq

from rhymed.core import messages
from rhymed.core.errors import DeadlineExceeded, RemoteFailure, RhymedError
from rhymed.core.messages import EVAL, SampleId
from rhymed.core.wire.sockets import Client
from rhymed_broker.states import Sample
from rhymed_store.client import NewSample
from tests.hostile.protocol.clock import STEP_S, Clock
from tests.hostile.protocol.fouls import WRONG_IDS
from tests.hostile.protocol.peers import ACTORS, CAST, DEADLINE_S, DISHONEST, DISHONEST_ACTOR, Peer, reward_of
from tests.hostile.protocol.servers import Servers, until


class Fault(AssertionError):
    """An invariant does not hold."""


class Outcome(NamedTuple):
    """Of one request: an answer, or the server's error."""

    answer: Any = None
    error: RhymedError | None = None


class Seen(NamedTuple):
    """The ledger at one moment."""

    samples: dict[SampleId, tuple[str, str]]  # open ones -> state, worker that holds it
    version: int
    names: dict[str, str]  # worker -> role
    paused: bool
    drained: frozenset[str]


class World:
    def __init__(self, servers: Servers, clock: Clock) -> None:
        self.servers, self.clock = servers, clock
        self.handed: set[SampleId] = set()  # of `parts`, those that were written by whoever had the sample
        self.turns = servers.config.environment.active
        cast = (*CAST, *ACTORS) if self.turns else CAST
        self.peers = [Peer(part, servers.layout, self.handed) for part in cast]
        self.honest = [peer for peer in self.peers if peer.honest]
        self.dishonest = [*DISHONEST, *([DISHONEST_ACTOR] * 3 if self.turns else [])]  # numbers of peers
        self.entries: dict[tuple[SampleId, str, int], Any] = {}  # acknowledged tokens of answers and turns
        self.mixed: set[SampleId] = set()  # a dishonest peer has written some of these
        self.acked: dict[SampleId, NewSample] = {}  # the store has acknowledged them: first records
        self.forged: set[SampleId] = set()  # of these, written by dishonest peers
        self.rewards: dict[SampleId, float] = {}  # acknowledged, the newest one
        self.tampered: set[SampleId] = set()  # a dishonest peer has written a reward of these
        self.marked: set[SampleId] = set()  # a dishonest peer has marked these as trained or dropped
        self.parts: dict[SampleId, Any] = {}  # acknowledged first tokens of samples that are not stored
        self.claimed: set[SampleId] = set()  # scored, says a dishonest peer, which may have written no reward
        self.settled: set[SampleId] = set()  # marked as trained or dropped: rewards do not change any more
        self.reported: dict[SampleId, str] = {}  # by their holder, acknowledged -> "generated" or "scored"
        self.trained: dict[int, list[SampleId]] = {}  # step -> what the trainer trained, acknowledged
        self.forgotten = 0  # steps below it have no parts any more
        self.position = 0  # of the trainer
        self.checkpoint = 0
        self.requests = 0

    @property
    def trainer(self) -> Peer:
        return next(peer for peer in self.peers if peer.role == "trainer" and peer.honest)

    @property
    def rollbacks(self) -> int:
        """Of this broker's ledger."""
        return max(0, self.servers.starts - 1)

    @property
    def ledger(self) -> Any:
        return self.servers.broker.ledger

    def reward_of(self, id: SampleId, peer: Peer) -> float:
        """With dynamic sampling, half of the groups have no signal."""
        return reward_of(id, peer.name, 2 if self.servers.config.trainer.filters_groups else 8)

    def look(self) -> Seen:
        ledger = self.ledger
        samples = {
            id: (sample.state, sample.worker)
            for step in ledger.samples.open_steps.values()
            for id, sample in step.samples.items()
        }
        names = {worker.name: worker.role for worker in ledger.workers}
        return Seen(samples, ledger.version, names, ledger.control.paused, frozenset(ledger.control._drained))

    def sample(self, id: SampleId) -> Sample | None:
        found: Sample | None = self.ledger.samples.get(id)
        return found

    def pick(self, peer: Peer, which: int, count: int = 1) -> list[SampleId]:
        """Samples that this peer holds, open ones, trained ones, and such that do not exist."""
        known = [*sorted(peer.held), *sorted(self.look().samples)]
        pool = known if which < 48 and known else [*sorted(self.acked), *WRONG_IDS]
        return [pool[(which + number) % len(pool)] for number in range(count)]

    def is_connected(self, peer: Peer) -> bool:
        return bool(self.servers.broker._delivery.is_connected(peer.name))

    async def ask(self, peer: Peer, to: str, message: messages.Message, *frames: Any) -> Outcome:
        """A request, and what came of it. Every one is answered, by something that the protocol knows."""
        self.requests += 1
        link = peer.broker() if to == "broker" else peer.store()
        kind = type(message).__name__
        try:
            parcel = await link.request(message, *frames, deadline_s=DEADLINE_S)
        except DeadlineExceeded as error:
            raise Fault(
                f"{kind} of {peer.name}: no answer within {DEADLINE_S:g} s; {self._unread(link, to)}"
            ) from error
        except RemoteFailure as error:
            raise Fault(f"{kind} of {peer.name} met an error of the {to}: {error}") from error
        except RhymedError as error:
            return Outcome(error=error)
        return Outcome(parcel)

    def _unread(self, link: Client, to: str) -> str:
        """Where the message or its answer may be: bit 1: there is something to read."""
        if why := self.servers.failed():
            return why
        server = self.servers.broker.server if to == "broker" else self.servers.store.server
        events = {end: end._socket.getsockopt(zmq.EVENTS) for end in (link, server)}
        return f"events of the peer {events[link]}, of the server {events[server]}, its tasks {server._tasks}"

    def acknowledge(self, made: NewSample, *, forged: bool = False) -> None:
        if (forged or made.info.id in self.mixed) and made.info.id not in self.acked:
            self.forged.add(made.info.id)
        self.acked.setdefault(made.info.id, made)
        self.parts.pop(made.info.id, None)
        self.handed.discard(made.info.id)
        self.entries = {key: tokens for key, tokens in self.entries.items() if key[0] != made.info.id}

    def enter(self, id: SampleId, kind: str, number: int, tokens: Any, *, forged: bool = False) -> None:
        """The store has acknowledged an answer or a turn of a sample: the first one stays."""
        if not self.is_live(id.step) or id in self.acked or (id, kind, number) in self.entries:
            return
        self.entries[id, kind, number] = np.asarray(tokens)
        if forged:
            self.mixed.add(id)
        if kind == "turn":
            self.parts.pop(id, None)
            self.handed.discard(id)

    def save(self, message: messages.PutPartials, tokens: Any, outcome: Outcome) -> None:
        """Tokens of running samples, and what the store answered: they replace what it had from `starts` on."""
        if outcome.error is not None:
            return
        answer, end, missing = outcome.answer.message, 0, []
        for id, start, length in zip(message.samples, message.starts, message.lengths, strict=True):
            part, end = tokens[end : end + length], end + length
            have = self.parts.get(id)
            if not self.is_live(id.step) or id in self.acked:
                continue  # the store has no use for them
            if start and (have is None or len(have) < start):
                missing.append(id)
            else:
                self.parts[id] = part if have is None else np.concatenate((have[:start], part))
        if missing != getattr(answer, "samples", []):
            raise Fault(f"the store lacks what comes before {missing}, but answered with {answer}")

    def is_live(self, step: int) -> bool:
        return step >= self.forgotten and (step < EVAL or step - EVAL >= self.forgotten)

    def forget(self, below: int) -> None:
        """The store has no parts of these steps any more."""
        self.forgotten = below
        self.parts = {id: part for id, part in self.parts.items() if self.is_live(id.step)}
        self.entries = {key: tokens for key, tokens in self.entries.items() if self.is_live(key[0].step)}
        self.handed &= self.parts.keys()

    async def pass_time(self, ticks: int) -> None:
        """Honest peers that are here send heartbeats all the while."""
        from tests.hostile.protocol.honest import say

        for _ in range(ticks):
            await self.clock.tick(STEP_S)
            for peer in self.peers:
                if peer.honest and peer.here:
                    await say(self, peer, peer.heartbeat(), None)
            await self.servers.settle()

    async def gone(self, peer: Peer) -> None:
        """Until the broker sees that its connection has ended."""
        broker = self.servers.broker
        link = broker._delivery.peer(peer.name)
        peer.close()
        if link is not None:
            await until(lambda: not broker.server.is_connected(link), f"{peer.name} is gone")

    def roll_back(self) -> None:
        """The trainer lost what is behind its last checkpoint."""
        self.position = self.checkpoint

    def same(self, made: NewSample, tokens: Any) -> bool:
        return bool(np.array_equal(np.asarray(made.tokens), tokens))
