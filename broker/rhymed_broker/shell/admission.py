"""Who may take part in the run: joins, heartbeats and goodbyes of workers, and whom an operator gives no work.

Invariants: there is one trainer; another is refused while the first one is heard. A name has one holder: who joins
under the name of a worker that is connected is refused with `NameTaken`, and only the link that a worker
joined over speaks in its name. A connection has one name, so workers are bounded by connections. A worker that this
broker does not know, because one of the two has restarted, is refused with `PeerGone` and has to join first. Knows
nothing of samples beyond what a worker holds when it joins.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from rhymed.core.config import Schedule
from rhymed.core.config.base import MOST_STEPS
from rhymed.core.errors import MalformedMessage, NameTaken, PeerGone, WireError
from rhymed.core.messages import PROTOCOL, Drain, Heartbeat, Join, Leave, Message, Pause, SampleId, Welcome
from rhymed.core.messages.names import wrong_name
from rhymed.core.service.logfile import cause
from rhymed.core.wire.sockets import DONE
from rhymed_broker.ledger.ledger import Ledger
from rhymed_broker.shell.delivery import Delivery
from rhymed_broker.status.timeline import TimelineRecorder

log = logging.getLogger(__name__)


class Admission:
    def __init__(
        self,
        run: str,
        schedule: Schedule,
        ledger: Ledger,
        delivery: Delivery,
        timeline: TimelineRecorder,
        restart_at: Callable[[int], None],
    ) -> None:
        """`run`: its name; `restart_at`: the trainer is at this position, and the ledger is not."""
        self._run, self._schedule, self._restart_at = run, schedule, restart_at
        self._ledger, self._delivery, self._timeline = ledger, delivery, timeline

    def member(self, peer: bytes, name: str) -> None:
        """A worker that has joined over this link is heard now. Raises `PeerGone`."""
        if name not in self._ledger.workers.by_name:
            raise PeerGone(f"{name} is not known here: join first")
        if self._delivery.peer(name) != peer:
            raise PeerGone(f"{name} has joined over another link: join first")
        self._ledger.heard(name, time.monotonic())

    def join(self, peer: bytes, join: Join) -> Welcome:
        now = time.monotonic()
        self._check(peer, join, now)
        self._delivery.joined(peer, join)
        lost = self._lost(join)
        if self._ledger.join(join, now):
            self._restart_at(join.version)
        self._timeline.joined(join, now, self._ledger.workers.rests_s(join.worker, now))
        fields = {"event": "joined", "worker": join.worker}
        log.info("%s joined with %d slots, version %d", join.worker, join.slots, join.version, extra=fields)
        if lost:
            returned = cause("returned", lost, worker=join.worker, reason="its worker started again")
            log.warning("%s started again: its %d samples go to others", join.worker, len(lost), extra=returned)
        return Welcome(
            run=self._run,
            heartbeat_s=self._schedule.heartbeat_s,
            lost_after_s=self._schedule.lost_after_s,
            step=max(0, join.version) if join.role == "trainer" else self._ledger.version,
        )

    def _check(self, peer: bytes, join: Join, now: float) -> None:
        if join.protocol != PROTOCOL:
            raise MalformedMessage(
                f"{join.worker} speaks protocol {join.protocol}, this broker {PROTOCOL}: install the same release"
            )
        if wrong := wrong_name(join.role, join.worker):
            raise MalformedMessage(wrong)
        if (other := self._delivery.name(peer)) not in (None, join.worker):
            raise MalformedMessage(f"this connection is that of {other}: {join.worker} needs one of its own")
        self._check_holder(peer, join, now)
        if join.role != "trainer":
            return
        if not 0 <= join.version <= MOST_STEPS:
            raise MalformedMessage(f"{join.worker} reports {join.version} trained steps: a run has 0 to {MOST_STEPS}")
        present = self._ledger.workers.trainer
        if present is None or present.name == join.worker:
            return
        silent_s = now - present.seen
        if silent_s < 3 * self._schedule.heartbeat_s:
            raise WireError(f"{present.name} is the trainer, heard {silent_s:.1f} s ago; end it before another joins")

    def _check_holder(self, peer: bytes, join: Join, now: float) -> None:
        """The name is free, or held by who joins, or by a process that is dead: its connection ended with it."""
        name = join.worker
        holder = self._ledger.workers.by_name.get(name)
        if holder is not None and self._delivery.peer(name) != peer and self._delivery.is_connected(name):
            place = f"{holder.join.host} (process {holder.join.pid})"
            raise NameTaken(
                f"{name} is the name of a {holder.role} worker on {place}, heard {now - holder.seen:.1f} s ago:"
                " choose another name with --name, or end that worker first"
            )

    def _lost(self, join: Join) -> list[SampleId]:
        """Samples that the worker held when it was last here, and holds no longer."""
        known, kept = self._ledger.workers.by_name.get(join.worker), set(join.holding)
        return [id for id in known.held if id not in kept] if known is not None else []

    def heartbeat(self, peer: bytes, beat: Heartbeat) -> Message:
        self.member(peer, beat.worker)
        ledger, trainer = self._ledger, self._ledger.workers.trainer
        if trainer and trainer.name == beat.worker and ledger.started and beat.version < ledger.version:
            raise PeerGone(f"{trainer.name} is at step {beat.version}, not {ledger.version}: join first")
        ledger.heartbeat(beat, time.monotonic())
        self._timeline.heard(beat, time.monotonic())
        return DONE

    def leave(self, peer: bytes, leave: Leave) -> Message:
        self.member(peer, leave.worker)
        log.info("%s left", leave.worker)
        self.dismissed(leave.worker)
        self._timeline.gone("left", leave.worker, time.monotonic())
        return DONE

    def pause(self, peer: bytes, pause: Pause) -> Message:
        self._ledger.pause_run(pause.paused, time.monotonic())
        log.warning("an operator %s the run", "pauses" if pause.paused else "resumes")
        return DONE

    def drain(self, peer: bytes, drain: Drain) -> Message:
        self._ledger.drain_worker(drain.worker, drain.drained, time.monotonic())
        log.warning("an operator %s %s", "drains" if drain.drained else "gives work again to", drain.worker)
        return DONE

    def dismissed(self, name: str) -> None:
        self._ledger.leave(name, time.monotonic())
        self._delivery.forget(name)


# The ledger's tick: workers that are silent for too long are lost, and refused requests are repeated.
#
# Invariant: time in which the event loop did not run (the process was suspended, or opened a very large step) does
# not count as a worker's silence, since the messages of that time are still unread.

LATE_S = 1.0  # a tick that is later than this: the event loop did not run


class Liveness:
    def __init__(self, schedule: Schedule, ledger: Ledger, delivery: Delivery, timeline: TimelineRecorder) -> None:
        self._schedule, self._ledger = schedule, ledger
        self._delivery, self._timeline = delivery, timeline

    async def run(self, wake: Callable[[], None]) -> None:
        """`wake`: the ledger has changed."""
        pause_s = min(1.0, self._schedule.heartbeat_s)
        last = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            now = time.monotonic()
            if (late_s := now - last - pause_s) > LATE_S:
                self._excuse(late_s, now)
            last = now
            self._tick(now)
            wake()

    def _tick(self, now: float) -> None:
        for name, held in self._ledger.tick(now).items():
            fields = cause("lost", held, worker=name)
            log.warning("%s is lost: silent for more than %g s", name, self._schedule.lost_after_s, extra=fields)
            self._delivery.forget(name)
            self._timeline.gone("lost", name, now)

    def _excuse(self, late_s: float, now: float) -> None:
        log.warning("the event loop did not run for %.1f s: that time does not count as silence of workers", late_s)
        self._ledger.excuse(late_s, now)
