"""Who has which slices of one file, and who gets the next ones from whom. Pure: the time comes in.

Invariant: while a slice is on its way from the trainer to a worker that will serve it, or while a worker serves it,
the trainer does not send it again. So the trainer sends every slice once, and the workers pass it on; a transfer
that takes much longer than others counts as lost. Knows no sockets and no bytes.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

TRAINER = ""  # as a source
FROM_TRAINER = 2  # slices on their way from the trainer to one worker, while relays have others for it
FROM_ANY = 8  # and if relays have none
TRAINER_UPLOADS = 8  # slices on their way from the trainer
RELAY_UPLOADS = 2  # slices on their way from one relay: more would only wait there
REPORTERS = 2  # workers that a relay fails for, before it is used for none
USELESS_S = 600.0  # for which it is not
FIRST_S = 1.0  # duration of a transfer, waiting included, as long as none is known
LEAST_S = 0.5
PATIENCE = 4.0  # times the usual duration
MAX_PEERS = 4096  # then the one that began first is forgotten


@dataclass(frozen=True)
class Grant:
    index: int
    source: str  # a relay's address, or `TRAINER`


@dataclass
class _Peer:
    stored: NDArray[np.bool_]  # by slice
    relay: str
    grants: dict[int, tuple[str, float]] = field(default_factory=dict)  # by slice: source, time
    refused: set[str] = field(default_factory=set)  # relays that failed for it


class Tracker:
    """Of one edition. `useless` relays are not used until a time; those that fail for several workers join them."""

    def __init__(self, slices: int, useless: dict[str, float] | None = None) -> None:
        self._slices = slices
        self._peers: dict[str, _Peer] = {}
        self._useless = dict[str, float]() if useless is None else useless
        self._failures: dict[str, set[str]] = {}  # relay -> workers for which it failed
        self._sent_at = np.full(slices, -np.inf)  # by the trainer, to a relay that lacks the slice yet
        self._typical_s = 0.0  # duration of transfers, the latest counting most; 0: none is known

    def begin(self, worker: str, relay: str) -> None:
        """The worker has nothing yet. It serves what it will have at `relay`; empty: it serves nothing."""
        if before := self._peers.pop(worker, None):
            for index in list(before.grants):
                self._end_grant(before, index, None)
        elif len(self._peers) >= MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        self._peers[worker] = _Peer(np.zeros(self._slices, bool), relay)

    def knows(self, worker: str) -> bool:
        return worker in self._peers

    def stored(self, worker: str, slices: Iterable[int], now: float) -> None:
        """The worker has verified these, and serves them from now on."""
        peer = self._peers[worker]
        for index in slices:
            if 0 <= index < self._slices:
                peer.stored[index] = True
                self._end_grant(peer, index, now)

    def failed(self, worker: str, index: int, source: str, now: float) -> None:
        """The worker did not get a slice from there, or damaged."""
        peer = self._peers[worker]
        self._end_grant(peer, index, None)
        if not any(other.relay == source != TRAINER for other in self._peers.values()):
            return
        peer.refused.add(source)
        reporters = self._failures.setdefault(source, set())
        reporters.add(worker)
        if len(reporters) >= REPORTERS:
            self._useless[source] = now + USELESS_S

    def next(self, worker: str, want: int, now: float) -> list[Grant]:
        """Sources of up to `want` slices that the worker lacks; they count as on their way to it."""
        peer, relays = self._peers[worker], self._relays(self._peers[worker], now)
        lost_at = now - PATIENCE * (self._typical_s or FIRST_S)
        uploads = self._uploads_since(lost_at)
        copies = np.sum([other.stored for other in relays], axis=0) if relays else np.zeros(self._slices, int)
        lacking = ~peer.stored
        lacking[list(peer.grants)] = False
        fresh = iter(np.flatnonzero(lacking & (copies == 0) & (self._sent_at < lost_at)).tolist())
        shared = self._shared(peer, relays, lacking, copies, uploads)
        first = FROM_TRAINER if peer.relay else 0  # what a peer cannot pass on, it takes from relays if it can
        granted: list[Grant] = []
        for _ in range(want):
            grant = (
                _fresh(peer, fresh, first, uploads) or next(shared, None) or _fresh(peer, fresh, FROM_ANY, uploads)
            )
            if grant is None:
                break
            uploads[grant.source] += 1
            self._grant(peer, grant, now)
            granted.append(grant)
        return granted

    def _relays(self, peer: _Peer, now: float) -> list[_Peer]:
        """Those that the peer can use."""
        useless = {relay for relay, until in self._useless.items() if now < until}
        refused = peer.refused | useless | {peer.relay, ""}
        return [other for other in self._peers.values() if other.relay not in refused]

    def _uploads_since(self, lost_at: float) -> Counter[str]:
        """Slices on their way, by source, without those that count as lost."""
        grants = (grant for peer in self._peers.values() for grant in peer.grants.values())
        return Counter(source for source, since in grants if since >= lost_at)

    def _shared(
        self,
        peer: _Peer,
        relays: Sequence[_Peer],
        lacking: NDArray[np.bool_],
        copies: NDArray[np.int64],
        uploads: Counter[str],
    ) -> Iterator[Grant]:
        """The rarest first; each from the relay that sends least. Workers begin at different places of the file."""
        candidates = np.flatnonzero(lacking & (copies > 0))
        turn = zlib.crc32(peer.relay.encode()) % self._slices
        order = np.lexsort(((candidates - turn) % self._slices, copies[candidates]))
        for index in candidates[order].tolist():
            free = [relay for relay in relays if uploads[relay.relay] < RELAY_UPLOADS]
            if not free:
                return
            if having := [other.relay for other in free if other.stored[index]]:
                yield Grant(index, min(having, key=lambda relay: uploads[relay]))

    def _grant(self, peer: _Peer, grant: Grant, now: float) -> None:
        peer.grants[grant.index] = grant.source, now
        if grant.source == TRAINER and peer.relay and peer.relay not in self._useless:
            self._sent_at[grant.index] = now

    def _end_grant(self, peer: _Peer, index: int, now: float | None) -> None:
        """`now`: it succeeded."""
        source, since = peer.grants.pop(index, (None, 0.0))
        if source == TRAINER:
            self._sent_at[index] = -np.inf
        if source is not None and now is not None:
            duration_s = max(LEAST_S, now - since)
            self._typical_s += (duration_s - self._typical_s) / (8 if self._typical_s else 1)


def _fresh(peer: _Peer, fresh: Iterator[int], share: int, uploads: Counter[str]) -> Grant | None:
    """A slice that only the trainer can give."""
    own = sum(source == TRAINER for source, _ in peer.grants.values())
    if own >= share or uploads[TRAINER] >= TRAINER_UPLOADS:
        return None
    index = next(fresh, None)
    return None if index is None else Grant(index, TRAINER)
