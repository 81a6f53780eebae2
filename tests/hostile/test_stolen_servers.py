"""What a server's stolen key can do, as docs/security.md has it: be that server; the broker's changes the store."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.actors import LOGPROBS, TOKENS, Reward, Rollout
from rhymed.core import messages
from rhymed.core.errors import DeadlineExceeded, NotAllowed, UnknownSample
from rhymed.core.messages import SampleId
from rhymed.core.wire.keys import KeyRole
from rhymed.core.wire.sockets import DONE, Client, Server
from rhymed_store.client import NewSample
from tests.broker.cluster import until
from tests.hostile.locked import Locked, a_run, locked_run
from tests.hostile.test_stolen_keys import info
from tests.ports import free_ports

ACCEPTS = {"broker": messages.ToBroker, "store": messages.ToStore, "trainer": messages.ToWeights}
ASKS = {
    "broker": messages.GetQueues(),
    "store": messages.GetStoreStats(),
    "trainer": messages.GetSlice(edition="e", index=0),
}


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[Locked]:
    async with locked_run(tmp_path) as run:
        yield run


@contextlib.contextmanager
def pretender(locked: Locked, server: str, key: KeyRole) -> Iterator[str]:
    """Listens for what this server gets, with a stolen key. Yields its address."""

    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        return DONE

    (port,) = free_ports(1)
    stolen = Server(f"tcp://127.0.0.1:{port}", ACCEPTS[server], answer, keys=locked.where.keys(key))
    try:
        yield stolen.address
    finally:
        stolen.close()


@pytest.mark.parametrize("server", ["broker", "store", "trainer"])
async def test_a_servers_key_is_believed_at_its_address_and_no_other_key_is(locked: Locked, server: KeyRole) -> None:
    honest = locked.where.keys("rollout").to(server)
    with pretender(locked, server, server) as address:
        link = Client(address, "rollout-0", peer=server, keys=honest)
        assert (await link.request(ASKS[server], deadline_s=60)).message == DONE
        link.close()
    for key in ("rollout", "operator", "store" if server != "store" else "broker"):
        with pretender(locked, server, key) as address:
            link = Client(address, "rollout-0", peer=server, keys=honest)
            with pytest.raises(DeadlineExceeded):
                await link.request(ASKS[server], deadline_s=0.3)
            link.close()


async def test_a_brokers_key_changes_the_store_but_no_sample_that_is_there(locked: Locked) -> None:
    trainer, _ = await a_run(locked)
    await locked.actor(Reward, "reward-0")
    await until(lambda: trainer.steps, "a step")
    thief, ids = locked.store("broker"), trainer.steps[0].samples
    wrong = NewSample(info(ids[0]), TOKENS[:1], TOKENS[::-1].copy(), LOGPROBS)
    await thief.put_samples([wrong])
    (kept,) = await thief.get_samples([ids[0]])
    assert list(kept.tokens) == list(TOKENS), "the first record stays"
    forged = SampleId(-1, ids[0].prompt, 0)
    await thief.put_samples([NewSample(info(forged), TOKENS[:1], TOKENS, None)])
    assert (await thief.history(ids[0].prompt, 0))[0].info.id == forged
    future = SampleId(2, ids[0].prompt, 0)
    await thief.mark([future], "dropped", "stolen")
    assert {entry.id: entry.reason for entry in (await thief.journal(2)).entries}[future] == "stolen"
    await thief.forget_logprobs(1)
    with pytest.raises(UnknownSample, match="log-probs"):
        await thief.get_samples(list(ids), logprobs=True)
    with pytest.raises(NotAllowed):
        await thief.put_partials({future: (0, TOKENS)})


async def test_a_brokers_key_is_no_worker_and_no_operator(locked: Locked) -> None:
    _, rollout = await a_run(locked, work_s=1000)
    assert isinstance(rollout, Rollout)
    thief = locked.link("broker")
    for role in ("rollout", "reward", "trainer", "broker"):
        join = messages.Join(role="rollout" if role == "broker" else role, worker=f"{role}-9", host="h", pid=1)
        with pytest.raises(NotAllowed):
            await thief.request(join, deadline_s=60)
    with pytest.raises(NotAllowed):
        await thief.request(messages.Pause(paused=True), deadline_s=60)
    assert not locked.broker.ledger.control.paused
    assert len(rollout.holding) == 8
