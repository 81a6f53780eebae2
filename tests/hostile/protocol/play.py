"""Plays one history against real servers, and checks the invariants after each of its actions."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from rhymed.core import messages
from rhymed.core.errors import MalformedMessage, RhymedError
from tests.hostile.protocol import honest, invariants
from tests.hostile.protocol.actions import Action, History
from tests.hostile.protocol.clock import stopped
from tests.hostile.protocol.fouls import ALL, KINDS, NAMES, TURN_KINDS, TURN_NAMES, VERSIONS, Around, Foul
from tests.hostile.protocol.peers import DISHONEST, Peer
from tests.hostile.protocol.servers import Servers, config_of
from tests.hostile.protocol.world import Fault, Outcome, World

FLOOD = 300  # messages


class Played(NamedTuple):
    actions: int
    requests: int
    trained: int  # steps


def play(history: History, keys: Path, *, loud: bool = False) -> Played:
    """Raises `Fault` with the action after which an invariant does not hold. `loud`: print every action."""
    with tempfile.TemporaryDirectory(prefix="rhymed-protocol-") as folder, stopped() as clock:
        servers = Servers(config_of(Path(folder), keys, history))
        return asyncio.run(_play(history, World(servers, clock), loud))


async def _play(history: History, world: World, loud: bool) -> Played:
    try:
        await world.servers.open()
        for peer in world.peers:
            if peer.honest:
                await honest.join(world, peer)
        await honest.advance(world)
        for number, action in enumerate(history.actions):
            if loud:
                print(f"{number:3} {action}", flush=True)
            await _checked(world, act(world, action), f"action {number}, {action}")
        await _checked(world, honest.recover(world), "all actions")
        return Played(len(history.actions), world.requests, len(world.trained))
    finally:
        for peer in world.peers:
            peer.close()
        await world.servers.close()


async def _checked(world: World, doing: Awaitable[None], what: str) -> None:
    try:
        await doing
        await world.servers.settle()
        await invariants.check(world)
    except (Fault, RhymedError) as error:
        raise Fault(f"after {what}: {error}") from error


async def act(world: World, action: Action) -> None:
    verb = action.verb
    if verb == "foul":
        await foul(world, action)
    elif verb == "flood":
        await flood(world, action)
    elif verb == "advance":
        await honest.advance(world)
    elif verb == "pass_time":
        await world.pass_time(1 + action.how % 8)
    elif verb == "restart_store":
        await world.servers.restart_store()
    elif verb == "restart_broker":
        await restart_broker(world)
    elif verb == "steer":
        await steer(world, action)
    elif verb in ("train", "checkpoint"):
        if world.trainer.here:
            await (honest.train if verb == "train" else honest.checkpoint)(world, world.trainer)
    else:
        await act_alone(world, action)


async def act_alone(world: World, action: Action) -> None:
    peer = world.honest[action.peer % len(world.honest)]
    if action.verb == "join" and not peer.here:
        await honest.join(world, peer)
    if not peer.here:
        return
    match action.verb:
        case "store":
            await honest.store_one(world, peer, action.which)
        case "save":
            await honest.save_one(world, peer, action.which)
        case "park":
            await honest.park(world, peer)
        case "score":
            await honest.score_one(world, world.peers[2], action.which)
        case "report":
            await honest.report(world, peer)
        case "again":
            await honest.again(world, peer)
        case "give_back":
            await honest.give_back(world, peer, action)
        case "load":
            await honest.load(world, peer)
        case "vanish":
            await honest.vanish(world, peer, keeps=bool(action.how % 2))
        case "leave":
            await honest.leave(world, peer)


async def restart_broker(world: World) -> None:
    await world.servers.restart_broker()
    world.reported.clear()  # what was acknowledged and stored is found again: `check_store`
    for peer in world.peers:
        if peer.honest and peer.here:
            await honest.join(world, peer)


async def steer(world: World, action: Action) -> None:
    operator = next(peer for peer in world.peers if peer.role == "operator")
    if action.how % 2:
        await world.ask(operator, "broker", messages.Pause(paused=action.how % 4 == 1))
    else:
        name = world.honest[action.peer % len(world.honest)].name
        await world.ask(operator, "broker", messages.Drain(worker=name, drained=action.how % 4 == 0))


def make(world: World, peer: Peer, action: Action) -> Foul:
    names = TURN_NAMES if world.turns else NAMES
    name = names[(action.name - 9) % len(names)] if action.name > 8 else peer.name
    ids = world.pick(peer, action.which, 1 + action.how % 3)
    near = (world.ledger.version, peer.version, *VERSIONS)
    around = Around(peer, name, ids, near[action.how % len(near)], action.how)
    made = [kind(around) for kind in (TURN_KINDS if world.turns else KINDS)]
    if action.kind < 20 and (
        allowed := [one for one in made if one.permitted(peer) and type(one.message) not in ALL]
    ):
        return allowed[action.kind % len(allowed)]
    return made[action.kind % len(made)]


async def foul(world: World, action: Action) -> None:
    peer = world.peers[world.dishonest[action.peer % len(world.dishonest)]]
    one = make(world, peer, action)
    if _usurps(world, peer, one) or _destroys(world, peer, one):
        return
    if one.to == "broker" and action.how % 8 and peer.role in ("rollout", "environment", "reward"):
        await _enlist(world, peer)
    delivery = world.servers.broker._delivery
    before = world.look()
    own = {name for name in before.names if _is_link(peer, delivery.peer(name)) or not delivery.is_connected(name)}
    outcome = await world.ask(peer, one.to, one.message, *one.frames)
    if outcome.error is None and one.permitted(peer):
        _note(world, one, outcome)
    if isinstance(one.message, messages.Scored):
        world.claimed |= {score.id for score in one.message.scores if score.reward is not None}
    await world.servers.settle()
    invariants.check_foul(world, peer, one, outcome, before, own)


def _note(world: World, one: Foul, outcome: Outcome) -> None:
    """What the store has now by the word of a dishonest peer."""
    match one.message:
        case messages.PutSamples():
            for made in one.puts:
                world.acknowledge(made, forged=True)
        case messages.PutTurns(samples=ids, numbers=numbers, turns=turns):
            ends = np.cumsum([turn.length for turn in turns])
            for id, number, turn, end in zip(ids, numbers, turns, ends, strict=True):
                world.enter(id, "turn", number, one.frames[0][end - turn.length : end], forged=True)
        case messages.PutAnswer(sample=id, number=number) if isinstance(outcome.answer.message, messages.Done):
            world.enter(id, "answer", number, one.frames[0], forged=True)
        case messages.PutPartials():
            world.save(one.message, one.frames[0], outcome)
            world.handed -= set(one.message.samples)
        case messages.PutScores(scores=scores):
            for score in scores:
                world.tampered.add(score.id)
                if score.reward is not None and score.id not in world.settled:
                    world.rewards[score.id] = score.reward
        case messages.MarkSamples(samples=ids):
            world.marked |= set(ids)


async def _enlist(world: World, peer: Peer) -> None:
    """Reports count from members only."""
    if peer.name not in world.ledger.workers.by_name:
        peer.version = world.ledger.version if peer.role == "rollout" else -1
        await world.ask(peer, "broker", peer.join([]))
        await world.servers.settle()


def _is_link(peer: Peer, link: bytes | None) -> bool:
    return link is not None and link == peer.routing_id


def _usurps(world: World, peer: Peer, one: Foul) -> bool:
    """Whoever has the trainer's key may be the trainer while there is none: docs/security.md. Not played."""
    trainer, link = world.ledger.workers.trainer, world.trainer
    present = trainer is not None and trainer.name == link.name and link.here and world.is_connected(link)
    return peer.role == "trainer" and isinstance(one.message, messages.Join) and not present


def _destroys(world: World, peer: Peer, one: Foul) -> bool:
    """Whoever has the broker's key may end the run, or change what it draws: docs/security.md. Not played."""
    match one.message:
        case messages.ForgetLogprobs(below_step=below):
            return peer.role == "broker" and below > world.checkpoint
        case messages.MarkSamples(drawn=drawn):
            return peer.role == "broker" and drawn is not None
    return False


async def flood(world: World, action: Action) -> None:
    """One message many times, each in another name of the same role."""
    peer = world.peers[DISHONEST[action.peer % 2]]
    for number in range(FLOOD):
        one = make(world, peer, action)
        fields = {"worker": f"{peer.role}-{number}"} if hasattr(one.message, "worker") else {}
        if one.to == "store" or not fields:
            return
        outcome = await world.ask(peer, "broker", _with(one.message, fields))
        if isinstance(outcome.error, MalformedMessage):
            return  # a server ignores who sends many of these: `tests.hostile.fuzz` does it


def _with(message: messages.Message, fields: dict[str, str]) -> messages.Message:
    changed: messages.Message = msgspec.structs.replace(message, **fields)
    return changed
