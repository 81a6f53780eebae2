"""Locked links between real sockets: who gets in, and who does not."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from rhymed.core import errors
from rhymed.core.messages import Done, Envelope, Finish, GetQueues, Join, Leave, Message, ToBroker, ToRollout, Trained
from rhymed.core.wire import curve
from rhymed.core.wire.keys import ROLES, Keyring, KeyRole, make_keys
from rhymed.core.wire.sockets import Client, Server
from tests.ports import free_ports

LOCAL = "tcp://127.0.0.1:*"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused caller tries again soon."""
    monkeypatch.setattr(curve, "PAUSE_S", 0.2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_keys(tmp_path / "keys", ROLES)
    return tmp_path / "keys"


class Heard:
    """Done to everything; remembers it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.peers: list[bytes] = []

    async def __call__(self, peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        self.messages.append(message)
        self.peers.append(peer)
        return Done()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def server(folder: Path, heard: Heard) -> AsyncIterator[Server]:
    made = Server(LOCAL, ToBroker, heard, keys=Keyring("broker", folder))
    yield made
    made.close()


@contextlib.asynccontextmanager
async def calling(server: Server, ring: Keyring, name: str = "", **more: Any) -> AsyncIterator[Client]:
    made = Client(server.address, name, peer="broker", keys=ring, **more)
    try:
        yield made
    finally:
        made.close()


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


async def answered(client: Client) -> None:
    """It is, sooner or later."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(errors.DeadlineExceeded, errors.Overloaded):
                await client.request(GetQueues(), deadline_s=0.5)
                return
            await asyncio.sleep(0.05)


async def silent(client: Client) -> None:
    """It is not."""
    with pytest.raises((errors.DeadlineExceeded, errors.Overloaded)):
        await client.request(GetQueues(), deadline_s=0.7)


@pytest.mark.parametrize("role", ROLES)
async def test_every_known_key_gets_in(server: Server, folder: Path, role: KeyRole) -> None:
    async with calling(server, Keyring(role, folder)) as client:
        assert (await client.request(GetQueues(), deadline_s=60)).message == Done()


async def test_the_link_is_encrypted_and_carries_what_it_did(server: Server, folder: Path) -> None:
    async def take(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
        return Done()

    async with calling(server, Keyring("rollout", folder), "rollout-0", accepts=ToRollout, handler=take) as client:
        await client.request(GetQueues(), deadline_s=60)
        answers = await asyncio.gather(*(client.request(GetQueues(), deadline_s=60) for _ in range(500)))
        assert all(answer.message == Done() for answer in answers)


async def test_an_unknown_key_is_turned_away_and_named_once(
    server: Server, folder: Path, tmp_path: Path, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    make_keys(tmp_path / "theirs", ROLES)
    theirs = tmp_path / "theirs" / "public"
    broker = next(line for line in (folder / "public").read_text().splitlines() if line.startswith("broker"))
    others = [line for line in theirs.read_text().splitlines() if not line.startswith("broker")]
    theirs.write_text("\n".join([*others, broker, ""]))  # they know whom they want to reach

    def says(words: str) -> bool:
        return any(words in record.message for record in caplog.records)

    with caplog.at_level(logging.WARNING):
        async with calling(server, Keyring("trainer", tmp_path / "theirs")) as stranger:
            await silent(stranger)
            await until(lambda: says("unknown key") and says("it does not know our key: is trainer's key"))
            async with calling(server, Keyring("viewer", folder)) as honest:
                await honest.request(GetQueues(), deadline_s=60)
    assert heard.messages == [GetQueues()]
    lines = [record.message for record in caplog.records]
    assert any("unknown key" in line and "127.0.0.1 refused" in line for line in lines)
    assert sum("no handshake" in line for line in lines) <= 2  # one a try would be many


async def test_without_keys_nobody_gets_in(server: Server, heard: Heard) -> None:
    plain = Client(server.address, peer="broker")
    await silent(plain)
    plain.close()
    assert not heard.messages


async def test_a_false_server_hears_nothing(folder: Path, tmp_path: Path, heard: Heard) -> None:
    make_keys(tmp_path / "false", ROLES)
    false = Server(LOCAL, ToBroker, heard, keys=Keyring("broker", tmp_path / "false"))
    async with calling(false, Keyring("rollout", folder)) as client:
        await silent(client)
    false.close()
    assert not heard.messages


async def test_another_role_is_no_broker(folder: Path, heard: Heard) -> None:
    """A worker's machine cannot stand in for the broker: callers want the broker's own key."""
    false = Server(LOCAL, ToBroker, heard, keys=Keyring("rollout", folder))
    async with calling(false, Keyring("reward", folder)) as client:
        await silent(client)
    false.close()
    assert not heard.messages


async def test_a_key_may_do_what_its_role_does(server: Server, folder: Path, heard: Heard) -> None:
    async with calling(server, Keyring("rollout", folder), "rollout-0") as client:
        with pytest.raises(errors.NotAllowed, match="a rollout key may not send Trained"):
            await client.request(Trained(worker="rollout-0", step=0, metrics={}))
        with pytest.raises(errors.NotAllowed, match="may not join as trainer"):
            await client.request(Join(role="trainer", worker="rollout-0", host="h", pid=1))
        with pytest.raises(errors.NotAllowed, match="name begins with rollout-"):
            await client.request(Leave(worker="reward-0"))
        assert (await client.request(Leave(worker="rollout-0"))).message == Done()
    assert heard.messages == [Leave(worker="rollout-0")]


async def test_events_that_are_not_allowed_do_nothing(server: Server, folder: Path, heard: Heard) -> None:
    async with calling(server, Keyring("viewer", folder)) as client:
        client.notify(Leave(worker="rollout-0"))
        await client.request(GetQueues())
    assert heard.messages == [GetQueues()]


async def test_nobody_takes_over_the_link_of_another(server: Server, folder: Path, heard: Heard) -> None:
    takers: list[str] = []

    def taker(name: str) -> Any:
        async def take(peer: bytes, message: Any, frames: Sequence[bytes]) -> Message:
            takers.append(name)
            return Done()

        return take

    ring = Keyring("rollout", folder)
    async with calling(server, ring, "rollout-0", accepts=ToRollout, handler=taker("victim")) as victim:
        await victim.request(GetQueues())
        thief = zmq.Context.instance().socket(zmq.DEALER)
        thief.linger = 0
        thief.curve_secretkey, thief.curve_publickey = _pair(Keyring("reward", folder))
        thief.curve_serverkey = ring.server_key()
        thief.routing_id = b"rollout-0"  # all that is known of the victim
        thief.connect(server.address)
        head = msgspec.msgpack.encode(Envelope(kind="request", id=1))
        thief.send_multipart([head, msgspec.msgpack.encode(GetQueues())])
        await until(lambda: thief.poll(0))
        await server.request(heard.peers[0], Finish(reason="x"), deadline_s=60)
        assert takers == ["victim"]
        assert heard.peers[0] != heard.peers[1] == b"rollout-0"
        thief.close()


def _pair(ring: Keyring) -> tuple[bytes, bytes]:
    return ring.secret(), ring.own_public()


async def bound(make: Callable[[], Server]) -> Server:
    """On an address whose socket was closed just now: it is free a moment later."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(errors.AddressRefused):
                return make()
            await asyncio.sleep(0.05)


async def test_what_waits_without_a_connection_outlives_a_retry(folder: Path, heard: Heard) -> None:
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    client = Client(address, peer="broker", keys=Keyring("rollout", folder))
    connector = client._connection
    assert isinstance(connector, curve.Connector)
    asked = asyncio.ensure_future(client.request(GetQueues(), deadline_s=60))
    await asyncio.sleep(0.1)  # it is queued; nobody is there
    connector._refused(our_key=False)  # as after a server that went away when it had refused us
    await until(lambda: connector._retry_timer is None)
    server = await bound(lambda: Server(address, ToBroker, heard, keys=Keyring("broker", folder)))
    assert (await asked).message == Done()
    client.close()
    server.close()


async def test_a_caller_whose_key_comes_later_gets_in_then(server: Server, folder: Path) -> None:
    good = (folder / "public").read_text()
    without = "".join(line for line in good.splitlines(keepends=True) if not line.startswith("reward"))
    (folder / "public").write_text(without)
    ring = Keyring("reward", folder)
    (folder / "public").write_text(good)
    async with calling(server, ring) as client:
        (folder / "public").write_text(without)
        (folder / "public").write_text(good)
        await answered(client)


async def test_an_open_address_is_taken_with_keys_only(folder: Path, heard: Heard) -> None:
    server = Server("tcp://0.0.0.0:*", ToBroker, heard, keys=Keyring("broker", folder))
    port = server.address.rpartition(":")[2]
    client = Client(f"tcp://127.0.0.1:{port}", peer="broker", keys=Keyring("viewer", folder))
    await answered(client)
    client.close()
    server.close()
    with pytest.raises(errors.AddressRefused, match="rhymed keygen"):
        Client("tcp://192.0.2.1:5550", peer="broker")
    Client("tcp://192.0.2.1:5550", peer="broker", keys=Keyring(insecure=True)).close()


async def test_ipc_needs_no_keys(folder: Path, heard: Heard, tmp_path: Path) -> None:
    server = Server(f"ipc://{tmp_path}/link", ToBroker, heard, keys=Keyring("broker", folder))
    async with calling(server, Keyring("viewer", folder)) as client:
        await client.request(Trained(worker="t", step=0, metrics={}), deadline_s=60)
    server.close()


async def test_missing_keys_are_reported_before_anything_is_bound(folder: Path, heard: Heard) -> None:
    (folder / "broker.secret").unlink()
    with pytest.raises(errors.ConfigError, match=r"broker\.secret: No such file"):
        Server(LOCAL, ToBroker, heard, keys=Keyring("broker", folder))
    (folder / "store.secret").write_text("")
    with pytest.raises(errors.ConfigError, match=r"store\.secret holds no secret key"):
        Client("tcp://127.0.0.1:1", peer="broker", keys=Keyring("store", folder))


async def test_servers_of_one_process_have_their_own_keys(folder: Path, tmp_path: Path, heard: Heard) -> None:
    make_keys(tmp_path / "b", ROLES)
    one = Server(LOCAL, ToBroker, heard, keys=Keyring("broker", folder))
    two = Server(LOCAL, ToBroker, heard, keys=Keyring("broker", tmp_path / "b"))
    async with calling(one, Keyring("viewer", folder)) as a, calling(two, Keyring("viewer", tmp_path / "b")) as b:
        await answered(a)
        await answered(b)
    one.close()
    async with calling(two, Keyring("viewer", tmp_path / "b")) as b:
        await answered(b)
    two.close()


async def test_a_server_opened_right_after_the_last_one_was_closed_authenticates(folder: Path, heard: Heard) -> None:
    server = Server(LOCAL, ToBroker, heard, keys=Keyring("broker", folder))
    for _ in range(50):
        server.close()
        server = Server(LOCAL, ToBroker, heard, keys=Keyring("broker", folder))
        async with calling(server, Keyring("viewer", folder)) as client:
            await client.request(GetQueues(), deadline_s=10.0)
    server.close()


async def test_an_authenticator_that_fails_is_started_again(
    server: Server, folder: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise RuntimeError("out of order")

    with monkeypatch.context() as broken:
        broken.setattr(curve.Authenticator, "handle_zap_message", fail)
        async with calling(server, Keyring("viewer", folder)) as client:
            await silent(client)
        assert not heard.messages
    async with calling(server, Keyring("viewer", folder)) as client:
        await answered(client)
    assert "the authenticator failed and is started again" in caplog.text
