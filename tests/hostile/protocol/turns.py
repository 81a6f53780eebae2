"""What honest peers do with samples in turns: the same calls of the store that real workers make.

How many turns a sample has, and what is in them, follows from its id.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from rhymed.core import messages
from rhymed.core.errors import RhymedError
from rhymed.core.messages import Answer, SampleId, SampleInfo, Turn
from rhymed_store.client import NewSample
from rhymed_store.sessions import NewTurn, StoredSession, get_session, put_answer, put_turns
from rhymed_workers.sessions.finish import joined
from tests.hostile.protocol.peers import Peer, content
from tests.hostile.protocol.world import Fault, World

MOST = 3  # turns
REWARD = 0.5


class StoreLink:
    """The store as one peer reaches it: what `rhymed_store.sessions` needs of a client."""

    def __init__(self, world: World, peer: Peer) -> None:
        self._world, self._peer = world, peer

    def of(self, prompt: str) -> StoreLink:
        return self

    async def ask(self, question: messages.Message, kind: Any, *frames: Any) -> tuple[Any, Any]:
        outcome = await self._world.ask(self._peer, "store", question, *frames)
        if outcome.error is not None:
            raise outcome.error
        assert isinstance(outcome.answer.message, kind), f"{outcome.answer.message} is no {kind}"
        return outcome.answer.message, outcome.answer.frames


async def write_turn(world: World, peer: Peer, id: SampleId) -> None:
    """A rollout worker writes the next turn of a sample, unless it is not its turn."""
    link: Any = StoreLink(world, peer)
    stored = await get_session(link, id)
    info = SampleInfo(id=id, prompt_length=0, length=0, finish_reason="stop", versions=[])
    if not (stored.session.acts or stored.session.done):
        number = len(stored.turns)
        made = content(id, f"{peer.name} {number}", peer.version)
        turn = Turn(length=made.info.length, finish_reason="stop", versions=[(peer.version, made.info.length)])
        tokens, logprobs = np.asarray(made.tokens, np.uint32), np.asarray(made.logprobs, np.float32)
        try:
            await put_turns(link, [NewTurn(id, number, turn, tokens, logprobs)])
        except RhymedError as error:
            raise Fault(f"{peer.name} is honest, but turn {number} of {id} was not stored: {error}") from error
        world.enter(id, "turn", number, tokens)
        info = made.info
    peer.stored[id] = info
    peer.drop(id)


async def act(world: World, peer: Peer, id: SampleId) -> None:
    """An environment worker answers the last turn of a sample, or ends it."""
    link: Any = StoreLink(world, peer)
    stored = await get_session(link, id, logprobs=True)
    result: SampleInfo | None = None
    if stored.session.stored:
        result = await _stored(world, peer, id)
    elif stored.session.done or await _answer(world, peer, link, id, stored):
        result = await _complete(world, peer, id, await get_session(link, id, logprobs=True))
    peer.stored[id] = result
    peer.drop(id)


async def _answer(world: World, peer: Peer, link: Any, id: SampleId, stored: StoredSession) -> bool:
    """Whether it is the last answer. An earlier one of somebody else stays."""
    if not stored.session.acts:
        return False
    number = len(stored.turns)
    done = number > zlib.crc32(str(id).encode()) % MOST
    tokens = np.zeros(0, np.uint32) if done else np.arange(1 + number, dtype=np.uint32)
    try:
        await put_answer(
            link, id, number, Answer(length=len(tokens), done=done, reward=REWARD if done else None), tokens
        )
    except RhymedError as error:
        raise Fault(f"{peer.name} is honest, but answer {number} of {id} was not stored: {error}") from error
    world.enter(id, "answer", number, tokens)
    return done


async def _complete(world: World, peer: Peer, id: SampleId, stored: StoredSession) -> SampleInfo | None:
    if stored.session.stored:
        return await _stored(world, peer, id)
    if not stored.session.done:  # the answer before it was somebody else's
        return None
    made: NewSample = joined(stored)
    arrays = [np.asarray(part) for part in (made.prompt_tokens, made.tokens, made.logprobs)]
    outcome = await world.ask(peer, "store", messages.PutSamples(samples=[made.info]), *arrays)
    answer = getattr(outcome.answer, "message", None)
    if isinstance(answer, messages.Kept):
        return answer.samples[0]
    if not isinstance(answer, messages.Done):
        raise Fault(f"{peer.name}: {id} was not stored: {outcome}")
    world.acknowledge(made)
    return made.info


async def _stored(world: World, peer: Peer, id: SampleId) -> SampleInfo:
    outcome = await world.ask(peer, "store", messages.GetSamples(samples=[id]))
    if outcome.error is not None:
        raise Fault(f"{id} is stored, says the store, but cannot be read: {outcome}")
    info: SampleInfo = outcome.answer.message.samples[0]
    return info
