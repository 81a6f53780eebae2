"""Malformed messages by the thousand: the series itself, and a short siege of the real servers."""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import zmq

from rhymed.core import errors, messages
from rhymed.core.wire.sockets import Client, Server
from tests.hostile import fuzz
from tests.hostile.malformed import Malformed

COUNT = 4000


@pytest.mark.parametrize("receiver", [messages.ToBroker, messages.ToStore, messages.ToWeights])
def test_the_series_is_that_of_its_seed_and_knows_every_way(receiver: Any) -> None:
    one, same, other = (Malformed(receiver, seed) for seed in (7, 7, 8))
    frames = [one.next() for _ in range(COUNT)]
    assert frames == [same.next() for _ in range(COUNT)]
    assert frames != [other.next() for _ in range(COUNT)]
    assert len(one.counts) == 15
    assert min(one.counts.values()) > COUNT / 32


def test_what_it_draws_as_valid_is() -> None:
    decoder = msgspec.msgpack.Decoder(messages.ToBroker)
    series, seen = Malformed(messages.ToBroker, 0), set()
    for _ in range(COUNT):
        head, body = series._valid()
        assert isinstance(msgspec.msgpack.decode(head, type=messages.Envelope), messages.Envelope)
        seen.add(type(decoder.decode(body)))
    assert seen == set(get_args(messages.ToBroker))


@pytest.mark.parametrize("receiver", [messages.ToBroker, messages.ToStore, messages.ToWeights])
async def test_a_server_answers_honest_clients_between_malformed_messages(
    receiver: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And its log stays short."""

    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        return messages.Done()

    question = {
        messages.ToBroker: messages.GetQueues(),
        messages.ToStore: messages.GetStoreStats(),
        messages.ToWeights: messages.GetManifest(version=0),
    }
    server = Server(f"ipc://{tmp_path}/link", receiver, answer)
    honest = Client(server.address, peer="server")
    series = Malformed(receiver, 1)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with caplog.at_level(logging.INFO):
        for number in range(COUNT):
            if number % 100 == 0:
                stranger = context.socket(zmq.DEALER)
                stranger.linger = 0
                stranger.connect(server.address)
            stranger.send_multipart(series.next())
            if number % 100 == 99:
                assert (await honest.request(question[receiver], deadline_s=60)).message == messages.Done()
                stranger.close()
    assert len(caplog.records) < COUNT / 20
    assert not [record for record in caplog.records if record.exc_info]
    honest.close()
    server.close()


async def test_who_sends_nothing_but_nonsense_is_not_listened_to_for_a_while(tmp_path: Path) -> None:
    heard: list[bytes] = []

    async def answer(peer: bytes, message: Any, frames: Sequence[bytes]) -> messages.Message:
        heard.append(peer)
        return messages.Done()

    server = Server(f"ipc://{tmp_path}/link", messages.ToBroker, answer)
    bad = Client(server.address, "bad", peer="broker")
    good = Client(server.address, "good", peer="broker")
    for _ in range(150):
        bad.notify(messages.Finish(reason="is not for a broker"))
    with pytest.raises(errors.DeadlineExceeded):
        await bad.request(messages.GetQueues(), deadline_s=0.5)
    assert (await good.request(messages.GetQueues(), deadline_s=60)).message == messages.Done()
    assert [peer.partition(b"#")[0] for peer in heard] == [b"good"]
    for link in (bad, good, server):
        link.close()
    await asyncio.sleep(0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["locked", "open"])
def test_broker_store_and_weights_stand_a_short_siege(mode: str) -> None:
    result = fuzz.run(True, frames=3000, seed=1, modes=mode)
    assert result[f"{mode}/frames"] == 3000
    assert result[f"{mode}/died"] == 0
    for name in fuzz.TARGETS:
        assert result[f"{mode}/{name}/honest_asked"] > 0
        assert result[f"{mode}/{name}/honest_failed"] == 0
        assert result[f"{mode}/{name}/log_kib"] < 2048
