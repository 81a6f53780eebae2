"""What honest peers do, one message at a time. A peer that the broker does not know joins again, as real ones do."""

from __future__ import annotations

from typing import Any

import numpy as np

from rhymed.core import messages
from rhymed.core.errors import NameTaken, Overloaded, PeerGone, WireError
from rhymed.core.messages import EVAL, SampleId, SampleInfo, Score
from rhymed.core.steps import window
from tests.hostile.protocol import turns
from tests.hostile.protocol.actions import Action
from tests.hostile.protocol.peers import Peer, content
from tests.hostile.protocol.servers import REFILLS, STEPS
from tests.hostile.protocol.world import Fault, Outcome, World

ROUNDS = 250  # of two seconds: a worker that died repeatedly rests for up to five minutes


async def say(world: World, peer: Peer, message: messages.Message, want: type | None = messages.Done) -> Outcome:
    """To the broker. `want`: the answer of an honest peer's message; None: whatever comes."""
    outcome = await world.ask(peer, "broker", message)
    if isinstance(outcome.error, PeerGone):
        await join(world, peer)
        if peer.here:
            outcome = await world.ask(peer, "broker", message)
    if isinstance(outcome.error, Overloaded) and not world.trainer.here:  # reports are repeated until it has joined
        await join(world, world.trainer)
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


def _may_write(world: World, peer: Peer) -> list[SampleId]:
    """What it holds and has weights for."""
    staleness = world.servers.config.schedule.max_staleness
    return sorted(id for id in peer.held if window(id.step, staleness)[0] <= peer.version)


async def store_one(world: World, peer: Peer, which: int) -> bool:
    """A rollout worker writes one of its samples to the store, or its next turn; an environment worker answers one.
    False: there is none that it may write."""
    if peer.role == "environment":
        held = sorted(peer.held)
        if held:
            await turns.act(world, peer, held[which % len(held)])
        return bool(held)
    ready = _may_write(world, peer) if peer.role == "rollout" else []
    if not ready:
        return False
    id = ready[which % len(ready)]
    if world.turns:
        await turns.write_turn(world, peer, id)
        return True
    made = content(id, peer.name, peer.version)
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
    peer.drop(id)
    return True


async def save_one(world: World, peer: Peer, which: int) -> None:
    """A rollout worker writes more tokens of a sample: those that follow what it has written."""
    if not peer.held or peer.role != "rollout":
        return
    id = sorted(peer.held)[which % len(peer.held)]
    start, tokens = peer.saved.get(id, 0), np.arange(1 + which % 5, dtype=np.uint32) + 10 * which
    message = messages.PutPartials(samples=[id], starts=[start], lengths=[len(tokens)])
    outcome = await world.ask(peer, "store", message, tokens)
    if outcome.error is not None:
        raise Fault(f"{peer.name}: the first tokens of {id} were not kept: {outcome}")
    world.save(message, tokens, outcome)
    kept = not isinstance(outcome.answer.message, messages.Missing)
    peer.saved[id] = start + len(tokens) if kept else 0
    sample = world.sample(id)
    if kept and sample is not None and sample.worker == peer.name and id in world.parts:
        world.handed.add(id)


async def park(world: World, peer: Peer) -> None:
    """What it has no weights for is written to the end, and waits for newer ones."""
    if peer.role != "rollout":
        return
    if ids := sorted(peer.held.keys() - set(_may_write(world, peer)) - peer.parked):
        peer.parked |= set(ids)
        await say(world, peer, messages.Ahead(worker=peer.name, samples=ids))


async def score_one(world: World, peer: Peer, which: int) -> bool:
    """False: it has none."""
    if not peer.held or peer.role != "reward":
        return False
    id = sorted(peer.held)[which % len(peer.held)]
    found = await world.ask(peer, "store", messages.GetSamples(samples=[id]))
    if found.error is not None:
        if id in world.acked:
            raise Fault(f"{id} is to be scored and was acknowledged, but the store: {found.error}")
        score = _lacking(id)
    else:
        score = Score(id=id, reward=world.reward_of(id, peer))
        outcome = await world.ask(peer, "store", messages.PutScores(scores=[score]))
        if not isinstance(getattr(outcome.answer, "message", None), messages.Done):
            raise Fault(f"{peer.name}: the score of {id} was not stored: {outcome}")
        if id not in world.settled:
            world.rewards[id] = world.reward_of(id, peer)
    peer.stored[id] = score
    peer.drop(id)
    return True


def _lacking(id: SampleId) -> Score:
    """As a real reward worker reports a sample that the store does not have."""
    fields: dict[str, Any] = {"unstored": True} if hasattr(Score, "unstored") else {}
    return Score(id=id, error="the store does not have it", **fields)


async def report(world: World, peer: Peer) -> None:
    if not peer.stored:
        return
    for message in _reports(world, peer):
        await _send(world, peer, message)
    if peer.here:
        peer.stored = {}


def _reports(world: World, peer: Peer) -> list[messages.Message]:
    results = list(peer.stored.values())
    infos = [info for info in results if isinstance(info, SampleInfo)]
    if peer.role == "reward":
        return [messages.Scored(worker=peer.name, scores=[one for one in results if isinstance(one, Score)])]
    if peer.role == "environment":
        answered = [id for id, result in peer.stored.items() if result is None]
        ends: list[messages.Message] = [messages.Generated(worker=peer.name, samples=infos)] if infos else []
        return [*ends, *([messages.Answered(worker=peer.name, samples=answered)] if answered else [])]
    kind = messages.Turned if world.turns else messages.Generated
    return [kind(worker=peer.name, samples=infos)]


async def _send(world: World, peer: Peer, message: messages.Message) -> None:
    holders = {id: sample.worker for id in peer.stored if (sample := world.sample(id)) is not None}
    lives = world.rollbacks
    await say(world, peer, message)
    await world.servers.settle()
    peer.last = message
    if peer.here and lives == world.rollbacks:
        for id, result in peer.stored.items():
            if holders.get(id) != peer.name or isinstance(message, messages.Turned | messages.Answered):
                continue
            if isinstance(result, SampleInfo) or (isinstance(result, Score) and result.reward is not None):
                world.reported[id] = "scored" if peer.role == "reward" else "generated"


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
        peer.drop(id)
    peer.released = []
    await say(world, peer, back)


async def load(world: World, peer: Peer) -> None:
    if peer.role == "rollout" and peer.target >= 0:
        peer.version, peer.target, peer.parked = peer.target, -1, set()
        await say(world, peer, messages.Loaded(worker=peer.name, version=peer.version, seconds=0.1))


async def train(world: World, peer: Peer) -> None:
    """Read the step as the trainer does, refuse what breaks the contract, and report it trained."""
    task = peer.task
    if task is None or task.step != world.position:
        peer.task = None
        return
    await _check_step(world, peer, task)
    before = world.trained.get(task.step)
    if before is not None and before != task.samples and not world.marked & {*before, *task.samples}:
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
        if info.reward is None and info.id not in world.claimed | world.marked:
            raise Fault(f"{info.id} is trained without a reward")
        first, last = min(info.versions)[0], max(info.versions)[0]
        if not oldest <= first <= last <= newest and info.id not in world.forged:  # the trainer leaves these out
            raise Fault(f"{info.id} is trained with versions {info.versions}, allowed are {oldest} to {newest}")
    if world.servers.config.trainer.filters_groups:
        _check_signal(world, task.step, found.answer.message.samples)


def _check_signal(world: World, step: int, infos: list[SampleInfo]) -> None:
    """A group without signal is trained only where the step may replace no more."""
    groups: dict[str, list[SampleInfo]] = {}
    for info in infos:
        groups.setdefault(info.id.prompt, []).append(info)
    flat = [
        prompt
        for prompt, group in groups.items()
        if len({info.reward for info in group}) == 1
        and not (world.tampered | world.claimed | world.marked) & {info.id for info in group}
    ]
    open_step = world.ledger.samples.open_steps.get(step)
    if flat and open_step is not None and open_step.refilled < REFILLS:
        raise Fault(f"step {step} has {flat} without signal, and replaced only {open_step.refilled} groups")


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
        while peer.here and (await store_one(world, peer, 0) or await score_one(world, peer, 0)):
            pass
        if peer.here:
            await park(world, peer)
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
        late = [step.step - EVAL for step in world.ledger.samples.evaluations() if step.step - EVAL < goal]
        if world.position >= goal and not late:
            return
        await world.pass_time(2)
    raise Fault(f"the run does not continue without dishonest peers: {world.look()}, evaluations of {late} are open")
