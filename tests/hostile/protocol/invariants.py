"""What must hold after every action, whoever did what."""

from __future__ import annotations

import asyncio
from collections import Counter

import numpy as np

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, NotAllowed, Overloaded
from rhymed.core.messages import SampleId
from rhymed_broker.states import SETTLED, STATES, UNWRITTEN
from rhymed_store.sessions import get_session
from tests.hostile.protocol.fouls import Foul
from tests.hostile.protocol.peers import Peer
from tests.hostile.protocol.world import Fault, Outcome, Seen, World

MISSING = np.full(1, 1 << 33)  # no token
MOST_WORKERS = 100  # in the broker's lists: a history has fewer connections
DISPATCHED = {("waiting", "running"), ("turned", "acting"), ("generated", "scoring")}
"""Of samples that nobody holds: the broker gives them to whoever is free, or whoever claims them."""
SETTLES = {("scored", "training"), ("scored", "filtered")}
"""Of scored samples, once the last sample of their group or step is scored or dropped."""


async def check(world: World) -> None:
    if why := world.servers.failed():
        raise Fault(why)
    check_ledger(world)
    check_evaluations(world)
    check_orders(world)
    check_memory(world)
    check_ends(world)
    await asyncio.gather(check_counters(world), check_store(world))


def check_ledger(world: World) -> None:
    """Every sample is in one queue, and with at most one worker: the one that the broker believes to hold it."""
    ledger = world.ledger
    queued = Counter(sample.id for queue in ledger.samples.queues.values() for sample in queue)
    opened = {id for step in ledger.samples.open_steps.values() for id in step.samples}
    if set(queued) != opened or any(count > 1 for count in queued.values()):
        raise Fault(f"queues and open steps differ: {set(queued) ^ opened or queued}")
    held = Counter(id for worker in ledger.workers for id in worker.held)
    for state, queue in ledger.samples.queues.items():
        for sample in queue:
            taken = state in ("running", "acting", "scoring")
            if taken != bool(sample.worker) or held[sample.id] != taken:
                raise Fault(f"{sample.id} is {state} with {sample.worker!r}, held {held[sample.id]} times")
    for id, how in world.reported.items():
        sample = world.sample(id)
        lost = UNWRITTEN
        if how == "scored" and id.step < messages.EVAL:  # after a restart, those of an evaluation are scored again
            lost |= {"generated", "scoring"}
        if sample is not None and sample.state in lost and id in world.acked:
            raise Fault(f"{id} was reported as {how} by its holder and acknowledged, but is {sample.state}")


def check_evaluations(world: World) -> None:
    """Evaluations are sampled from one version of the weights."""
    for open_step in world.ledger.samples.evaluations():
        version = open_step.step - messages.EVAL
        for id, sample in open_step.samples.items():
            made = world.acked.get(id)
            if sample.state in UNWRITTEN or sample.state == "dropped" or made is None or id in world.forged:
                continue
            if any(one != version for one, _ in made.info.versions):
                raise Fault(f"{id} of the evaluation of version {version} has tokens of {made.info.versions}")


def check_orders(world: World) -> None:
    """Who gets a sample that another worker has begun learns that the store has tokens of it."""
    for peer in world.peers:
        if peer.honest and peer.untold:
            raise Fault(f"{peer.name} was not told that the store has tokens of {sorted(peer.untold)}")


def check_memory(world: World) -> None:
    broker = world.servers.broker
    sizes = {
        "workers": len(broker.ledger.workers.by_name),
        "links": len(broker._delivery._peers),
        "names of dead ones": len(broker.ledger.workers.deaths),
        "claims": sum(len(worker.claims) + len(worker.report.holding) for worker in broker.ledger.workers) // 1000,
        "writes": broker._outbox._writes.qsize(),
    }
    if too_many := {name: size for name, size in sizes.items() if size > MOST_WORKERS}:
        raise Fault(f"the broker keeps too much: {too_many}")


async def check_counters(world: World) -> None:
    """What a viewer reads is what the ledger has."""
    viewer = next(peer for peer in world.peers if peer.role == "viewer")
    outcome = await world.ask(viewer, "broker", messages.GetQueues())
    queues = getattr(outcome.answer, "message", None)
    if not isinstance(queues, messages.Queues):
        raise Fault(f"a viewer's question was answered with {outcome}")
    ledger = world.ledger
    depths = ledger.samples.depths()
    if dict(queues.queues) != depths or set(depths) != set(STATES):
        raise Fault(f"the queues are {depths}, reported are {queues.queues}")
    counts = ledger.samples.counts
    if depths["trained"] != counts["trained"]:
        raise Fault(f"{counts['trained']} samples were trained, the queue has {depths['trained']}")
    if world.rollbacks == 0:
        entered = counts["opened"] + sum(count for event, count in counts.items() if event.startswith("found_"))
        if entered != sum(depths.values()) + world.servers.evaluated:
            raise Fault(f"{entered} samples entered, but {depths} are here: {dict(counts)}")
        dropped = counts["dropped"] + counts["found_dropped"]
        if dropped != depths["dropped"]:
            raise Fault(f"{dropped} samples were dropped, the queue has {depths['dropped']}")
    if sorted(row.worker for row in queues.workers) != sorted(ledger.workers.by_name):
        raise Fault("the reported workers are not those of the ledger")


async def check_store(world: World) -> None:
    """Nothing acknowledged is lost: samples with their first content, rewards, and how samples ended."""
    ids = sorted(world.acked)
    if not ids:
        return
    auditor = world.servers.auditor
    found, journal = await asyncio.gather(auditor.get_samples(ids), auditor.journal(0))
    world.forget(journal.forgotten)
    await check_parts(world)
    await check_turns(world)
    for id, one in zip(ids, found, strict=True):
        if not world.same(world.acked[id], one.tokens):
            raise Fault(f"{id} was acknowledged with other tokens than the store has")
        if id in world.rewards and one.info.reward != world.rewards[id] and id not in world.marked:
            raise Fault(f"{id}: reward {world.rewards[id]} was acknowledged, the store has {one.info.reward}")
    states = {entry.id: (entry.state, entry.reason) for entry in journal.entries}
    world.settled |= {id for id, (state, _) in states.items() if state == "trained"}
    for id in ids:
        if journal.forgotten <= id.step < messages.EVAL and id not in states:
            raise Fault(f"{id} was acknowledged, but the journal does not have it")
    _check_trained(world, journal.forgotten, states)


async def check_turns(world: World) -> None:
    """Answers and turns that were acknowledged are there as they were written first, until their sample is stored."""
    for id in sorted({id for id, _, _ in world.entries}):
        stored = await get_session(world.servers.turns_auditor, id)
        found = {("answer", number): tokens for number, tokens in enumerate(stored.answers)}
        found |= {("turn", number): tokens for number, tokens in enumerate(stored.turns)}
        for (sample, kind, number), tokens in world.entries.items():
            if sample == id and not np.array_equal(found.get((kind, number), MISSING), tokens):
                raise Fault(f"{kind} {number} of {id} was acknowledged as {tokens}, the store has {found}")


async def check_parts(world: World) -> None:
    """First tokens that were acknowledged are there, until the sample is stored or its step forgotten."""
    found = await world.servers.parts_auditor.get_partials(sorted(world.parts))
    for id, tokens in world.parts.items():
        if id not in found or not np.array_equal(found[id], tokens):
            raise Fault(f"the first tokens of {id} were acknowledged as {tokens}, the store has {found.get(id)}")


def _check_trained(world: World, forgotten: int, states: dict[SampleId, tuple[str, str]]) -> None:
    """Every sample of a trained step ended once: trained, or dropped with a reason."""
    for step, ids in world.trained.items():
        if not forgotten <= step < world.ledger.version:
            continue
        wrong = {id: states.get(id) for id in ids if states.get(id, ("",))[0] not in _ends(world, id)}
        wrong = {id: state for id, state in wrong.items() if id not in world.marked}
        if wrong:
            raise Fault(f"step {step} is trained, but the journal says {wrong}")
        for id, (state, _) in states.items():
            if id.step == step and id not in ids and state == "trained" and id not in world.marked:
                raise Fault(f"{id} is marked as trained, but the trainer did not get it")


def _ends(world: World, id: SampleId) -> tuple[str, ...]:
    """How a sample that the trainer was handed may end. It leaves out those whose reward is not in the store."""
    return ("trained", "dropped") if id in world.claimed else ("trained",)


def check_ends(world: World) -> None:
    ledger = world.ledger
    for step in ledger.samples.open_steps:
        if step < ledger.version:
            raise Fault(f"step {step} is open, but version {ledger.version} is trained")
    if world.trainer.here and ledger.started and world.trainer.task is None and ledger.version > world.position:
        raise Fault(f"the broker is at version {ledger.version}, the trainer at {world.position}")
    for step, open_step in ledger.samples.open_steps.items():
        done = all(sample.state in SETTLED for sample in open_step.samples.values())
        if step in world.trained and step < ledger.version and not done:
            raise Fault(f"step {step} is trained, but not all of its samples have ended")


def check_foul(world: World, peer: Peer, foul: Foul, outcome: Outcome, before: Seen, own: set[str]) -> None:
    """No role beyond its permissions. `own`: names that the peer's connection held before, or no connection."""
    kind, after = type(foul.message).__name__, world.look()
    if not foul.permitted(peer):
        if not isinstance(outcome.error, NotAllowed | MalformedMessage | Overloaded):  # before anything looks at it
            raise Fault(f"a {peer.role} key may not send {kind}, but was answered with {outcome}")
        if after != before:
            raise Fault(f"{kind} of a {peer.role} key was refused ({outcome.error}), but changed the ledger")
    if after.version != before.version:
        raise Fault(f"{kind} of {peer.name} moved the run from version {before.version} to {after.version}")
    steers = isinstance(foul.message, messages.Pause | messages.Drain) and peer.role == "operator"
    if not steers and (after.paused, after.drained) != (before.paused, before.drained):
        raise Fault(f"{kind} of a {peer.role} key steers the run")
    if not steers and peer.role in ("viewer", "operator", "trainer") and after.samples != before.samples:
        raise Fault(f"{kind} of a {peer.role} key moved samples")
    _check_moves(world, peer, kind, before, after, own)
    if peer.role == "rollout":
        _check_drops(world, peer, kind, before, after)


def _check_moves(world: World, peer: Peer, kind: str, before: Seen, after: Seen, own: set[str]) -> None:
    settles = any(after.samples.get(id) != seen for id, seen in before.samples.items() if seen[1] in own)
    for id, (state, worker) in before.samples.items():
        now = after.samples.get(id)
        if now is None or now == (state, worker) or worker in own:
            continue
        gone = worker and worker not in after.names  # its connection was gone, and somebody took its name
        trains = (state, now[0]) in SETTLES and (settles or before.paused)
        if (state, now[0]) in DISPATCHED or gone or trains:
            continue
        raise Fault(f"{kind} of {peer.name} moved {id} from {state} ({worker or 'nobody'}) to {now}")


def _check_drops(world: World, peer: Peer, kind: str, before: Seen, after: Seen) -> None:
    """A rollout key drops nothing while another worker is here that did not fail on it, but with a false version."""
    others = {name for name, role in before.names.items() if role == "rollout"} - before.drained
    for id, (state, worker) in before.samples.items():
        sample = world.sample(id)
        if after.samples.get(id, ("",))[0] != "dropped" or state == "dropped" or sample is None:
            continue
        reason = sample.story[-1][2]
        if not reason.startswith(("stale", "mixed")) and others - sample.failed_on - {worker}:
            raise Fault(f"{kind} of {peer.name} dropped {id} ({reason}), though {sorted(others)} are here")
