"""What honest peers do, one message at a time. A peer that the broker does not know joins again, as real ones do."""

from __future__ import annotations

from typing import Any

import numpy as np

from rhymed import messages
from rhymed.errors import NameTaken, PeerGone, WireError
from rhymed.messages import SampleId, SampleInfo, Score
from rhymed.staleness import window
from tests.hostile.protocol.actions import Action
from tests.hostile.protocol.peers import Peer, content, reward_of
from tests.hostile.protocol.servers import STEPS
from tests.hostile.protocol.world import Fault, Outcome, World

ROUNDS = 250  # of two seconds: a worker that died repeatedly rests for up to five minutes


async def say(world: World, peer: Peer, message: messages.Message, want: type | None = messages.Done) -> Outcome:
    """To the broker. `want`: the answer of an honest peer's message; None: whatever comes."""
    outcome = await world.ask(peer, "broker", message)
    if isinstance(outcome.error, PeerGone):
        await join(world, peer)
        if peer.here:
            outcome = await world.ask(peer, "broker", message)
    if want is not None and peer.here and not isinstance(getattr(outcome.answer, "message", None), want):
        raise Fault(f"{peer.name} is honest, but its {type(message).__name__} was answered with {outcome}")
    return outcome


async def join(world: World, peer: Peer) -> None:
    """Refused only if somebody else has the name, or there is another trainer."""
    if peer.role == "trainer":
        peer.version = world.position
    holding: list[SampleId] = [*peer.held, *peer.stored]
    outcome = await world.ask(peer, "broker", peer.join(holding))
    peer.here = isinstance(getattr(outcome.answer, "message", None), messages.Welcome)
    if not peer.here and not isinstance(outcome.error, NameTaken | WireError):
        raise Fault(f"{peer.name} cannot join: {outcome}")
    await world.servers.settle()


async def store_one(world: World, peer: Peer, which: int) -> None:
    """A rollout worker writes one of its samples to the store."""
    if not peer.held or peer.role != "rollout":
        return
    id = sorted(peer.held)[which % len(peer.held)]
    made = content(id, peer.name, max(peer.version, 0))
    arrays = [np.asarray(part) for part in (made.prompt_tokens, made.tokens, made.logprobs)]
    outcome = await world.ask(peer, "store", messages.PutSamples(samples=[made.info]), *arrays)
    answer = getattr(outcome.answer, "message", None)
    if isinstance(answer, messages.Done):
        world.acknowledge(made)
        peer.stored[id] = made.info
    elif isinstance(answer, messages.Kept):
        if id not in world.acked:
            raise Fault(f"the store has another record of {id}, but acknowledged none")
        peer.stored[id] = next(info for info in answer.samples if info.id == id)
    else:
        raise Fault(f"{peer.name}: {id} was not stored: {outcome}")
    peer.held.pop(id, None)


async def score_one(world: World, peer: Peer, which: int) -> None:
    if not peer.held or peer.role != "reward":
        return
    id = sorted(peer.held)[which % len(peer.held)]
    found = await world.ask(peer, "store", messages.GetSamples(samples=[id]))
    if found.error is not None:
        if id in world.acked:
            raise Fault(f"{id} is to be scored and was acknowledged, but the store: {found.error}")
        score = _lacking(id)
    else:
        score = Score(id=id, reward=reward_of(id, peer.name))
        outcome = await world.ask(peer, "store", messages.PutScores(scores=[score]))
        if not isinstance(getattr(outcome.answer, "message", None), messages.Done):
            raise Fault(f"{peer.name}: the score of {id} was not stored: {outcome}")
        if id not in world.settled:
            world.rewards[id] = reward_of(id, peer.name)
    peer.stored[id] = score
    peer.held.pop(id, None)


def _lacking(id: SampleId) -> Score:
    """As a real reward worker reports a sample that the store does not have."""
    fields: dict[str, Any] = {"unstored": True} if hasattr(Score, "unstored") else {}
    return Score(id=id, error="the store does not have it", **fields)


async def report(world: World, peer: Peer) -> None:
    if not peer.stored:
        return
    results = list(peer.stored.values())
    if peer.role == "rollout":
        infos = [info for info in results if isinstance(info, SampleInfo)]
        message: messages.Message = messages.Generated(worker=peer.name, samples=infos)
    else:
        message = messages.Scored(worker=peer.name, scores=[one for one in results if isinstance(one, Score)])
    holders = {id: sample.worker for id in peer.stored if (sample := world.sample(id)) is not None}
    lives = world.rollbacks
    await say(world, peer, message)
    await world.servers.settle()
    peer.last = message
    if peer.here and lives == world.rollbacks:
        for id, result in peer.stored.items():
            if holders.get(id) == peer.name and (isinstance(result, SampleInfo) or result.reward is not None):
                world.reported[id] = "generated" if peer.role == "rollout" else "scored"
    if peer.here:
        peer.stored = {}


async def again(world: World, peer: Peer) -> None:
    if peer.last is not None and peer.here:
        await say(world, peer, peer.last)


async def give_back(world: World, peer: Peer, action: Action) -> None:
    ids = peer.released or sorted(peer.held)[: 1 + action.which % 2]
    if not ids or peer.role == "trainer":
        return
    moved, retry = bool(peer.released), action.how % 4 > 0
    back = messages.GiveBack(worker=peer.name, samples=ids, reason="an error of mine", retry=retry, moved=moved)
    for id in ids:
        peer.held.pop(id, None)
    peer.released = []
    await say(world, peer, back)


async def load(world: World, peer: Peer) -> None:
    if peer.role == "rollout" and peer.target >= 0:
        peer.version, peer.target = peer.target, -1
        await say(world, peer, messages.Loaded(worker=peer.name, version=peer.version, seconds=0.1))


async def train(world: World, peer: Peer) -> None:
    """Read the step as the trainer does, refuse what breaks the contract, and report it trained."""
    task = peer.task
    if task is None or task.step != world.position:
        peer.task = None
        return
    await _check_step(world, peer, task)
    if (before := world.trained.get(task.step)) and before != task.samples:
        raise Fault(f"step {task.step} is trained again, but with other samples: {before}, then {task.samples}")
    message = messages.Trained(worker=peer.name, step=task.step, metrics={"loss": 0.5}, life=peer.life)
    peer.task = None
    world.position = peer.version = task.step + 1  # it has the weights, whether the broker learns of it or not
    world.trained[task.step] = list(task.samples)
    await say(world, peer, message)


async def _check_step(world: World, peer: Peer, task: messages.TrainStep) -> None:
    ids = task.samples
    if len(set(ids)) != len(ids) or any(id.step != task.step for id in ids):
        raise Fault(f"step {task.step} has a sample twice, or one of another step: {ids}")
    if not ids:
        return
    found = await world.ask(peer, "store", messages.GetSamples(samples=ids, logprobs=True, prompt_tokens=True))
    if found.error is not None:
        raise Fault(f"step {task.step} cannot be read for training: {found.error}")
    oldest, newest = window(task.step, world.servers.config.schedule.max_staleness)
    for info in found.answer.message.samples:
        if info.reward is None and info.id not in world.claimed:
            raise Fault(f"{info.id} is trained without a reward")
        first, last = min(info.versions)[0], max(info.versions)[0]
        if not oldest <= first <= last <= newest and info.id not in world.forged:  # the trainer leaves these out
            raise Fault(f"{info.id} is trained with versions {info.versions}, allowed are {oldest} to {newest}")


async def checkpoint(world: World, peer: Peer) -> None:
    world.checkpoint = world.position  # it is on the disk, whether the broker learns of it or not
    message = messages.Checkpointed(worker=peer.name, step=world.position, newest=world.position, life=peer.life)
    await say(world, peer, message)


async def vanish(world: World, peer: Peer, *, keeps: bool) -> None:
    await world.gone(peer)
    if peer.role == "trainer" and not keeps:
        world.roll_back()
    peer.vanish(keeps=keeps)


async def leave(world: World, peer: Peer) -> None:
    await say(world, peer, messages.Leave(worker=peer.name), None)
    await vanish(world, peer, keeps=False)


async def advance(world: World) -> None:
    """Everybody does everything that it was asked."""
    for peer in world.peers:
        if not (peer.honest and peer.here):
            continue
        await load(world, peer)
        while peer.held and peer.here and peer.role != "trainer":
            await store_one(world, peer, 0)
            await score_one(world, peer, 0)
        await report(world, peer)
        if peer.role == "trainer":
            await train(world, peer)
        await world.servers.settle()


async def recover(world: World) -> None:
    """The dishonest peers are gone, and the honest ones are back: the run trains another step."""
    for peer in world.peers:
        if not peer.honest and peer.role != "operator":
            await world.gone(peer)
    operator = next(peer for peer in world.peers if peer.role == "operator")
    await world.ask(operator, "broker", messages.Pause(paused=False))
    for name in sorted(world.look().drained):
        await world.ask(operator, "broker", messages.Drain(worker=name, drained=False))
    goal = min(world.position + 1, STEPS)
    for _ in range(ROUNDS):
        for peer in world.peers:
            if peer.honest and not peer.here:
                await join(world, peer)
        await advance(world)
        if world.position >= goal:
            return
        await world.pass_time(2)
    raise Fault(f"the run does not continue without dishonest peers: {world.look()}")
