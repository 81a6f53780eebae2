"""Server-sent events, as clients get them: the first ones, what is new, who does not read, and one too many."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from rhymed.core.run.timeline import Writer
from rhymed.show.dashboard import stream as sse
from rhymed.show.dashboard.stream import Client, Hub, frame
from tests.show.dashboard.rows import NOW, queues, row, span

WAIT_S = 60


async def events(response: Any) -> AsyncIterator[tuple[str, Any, str]]:
    """(name, data, id) of each event."""
    name = id = ""
    async for line in response.content:
        key, _, value = line.decode().rstrip("\n").partition(": ")
        if key == "event":
            name, id = value, ""
        elif key == "id":
            id = value
        elif key == "data":
            yield name, json.loads(value), id


async def first(response: Any, wanted: str) -> tuple[Any, str]:
    async with asyncio.timeout(WAIT_S):
        async for name, data, id in events(response):
            if name == wanted:
                return data, id
    raise AssertionError(f"no event {wanted}")


async def test_what_is_there_comes_at_once_and_what_is_new_follows(run: Path, serve: Any) -> None:
    async with serve(run, queues) as ask, ask.session.get(ask.url + f"/events?since={NOW + 2}") as response:
        assert response.content_type == "text/event-stream"
        data, _ = await first(response, "queues")
        assert data["workers"][0]["worker"] == "rollout-0"
        data, _ = await first(response, "steps")
        assert [row_["step"] for row_ in data["steps"]] == [0, 1, 2, 3]
        data, id = await first(response, "timeline")
        assert [row_["t"] - NOW for row_ in data["spans"]] == [3.0, 4.0, 5.0]

        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(4)) + "\n" + json.dumps(row(1, again=1.0)) + "\n")
        data, _ = await first(response, "steps")
        assert [row_["step"] for row_ in data["steps"]] == [1, 4]  # one of them trained again
        write(run, span(NOW + 6))
        data, id = await first(response, "timeline")
        assert [row_["t"] - NOW for row_ in data["spans"]] == [6.0]
        write(run, span(NOW + 5.5, "rollout-1"))  # written late
        data, _ = await first(response, "timeline")
        assert [row_["worker"] for row_ in data["spans"]] == ["rollout-1"]

    headers = {"Last-Event-ID": id}  # of another process, to which the browser comes back
    async with serve(run, queues) as ask, ask.session.get(ask.url + "/events", headers=headers) as response:
        data, _ = await first(response, "steps")
        assert data["steps"] == []
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row(5)) + "\n")
        data, _ = await first(response, "steps")
        assert [row_["step"] for row_ in data["steps"]] == [5]


def write(folder: Path, one: Any) -> None:
    writer = Writer(folder)
    writer.write([one])
    writer.close()


async def test_the_end_is_sent(run: Path, serve: Any) -> None:
    now = {"finished": False}
    async with serve(run, lambda: queues(**now)) as ask, ask.session.get(ask.url + "/events?after=3") as response:
        data, _ = await first(response, "steps")
        assert data["steps"] == []
        now["finished"] = True
        data, _ = await first(response, "end")
        assert data["state"] == "finished"
        async with ask.session.get(ask.url + "/events") as late:
            assert (await first(late, "end"))[0]["state"] == "finished"


async def test_a_run_that_is_over_says_so_at_once(run: Path, serve: Any) -> None:
    async with serve(run) as ask, ask.session.get(ask.url + "/events") as response:
        assert (await first(response, "queues"))[0] is None
        assert (await first(response, "end"))[0]["live"] is False


async def test_strange_ids_do_no_harm(run: Path, serve: Any) -> None:
    async with serve(run) as ask:
        for id in ("", "x", "1", "99999/1", "-5/0", "1/2/3", "9" * 999):
            async with ask.session.get(ask.url + "/events", headers={"Last-Event-ID": id}) as response:
                assert response.status in (200, 400)


async def test_who_never_reads_costs_nothing(run: Path, serve: Any) -> None:
    async with serve(run, queues) as ask, contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            silent = socket.socket()
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            stack.callback(silent.close)
            silent.connect(("127.0.0.1", ask.port))
            silent.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with ask.session.get(ask.url + "/events") as response:
            for step in range(4, 7):
                with (run / "metrics.jsonl").open("a") as file:
                    file.write(json.dumps(row(step, **{f"big/{n}": 1.0 for n in range(20_000)})) + "\n")
                while True:
                    data, _ = await first(response, "steps")
                    if data["steps"][-1]["step"] == step:
                        break
        assert (await ask("/api/run"))[0] == 200


async def test_one_too_many(run: Path, serve: Any) -> None:
    async with serve(run) as ask, contextlib.AsyncExitStack() as stack:
        status = 200
        for _ in range(40):
            response = await stack.enter_async_context(ask.session.get(ask.url + "/events"))
            if (status := response.status) != 200:
                assert "too many" in (await response.json())["error"]
                break
        assert status == 503
        assert (await ask("/api/run"))[0] == 200


async def test_the_limit_holds_for_those_who_ask_at_once(run: Path, serve: Any) -> None:
    async with serve(run) as ask, contextlib.AsyncExitStack() as stack:
        asked = [stack.enter_async_context(ask.session.get(ask.url + "/events")) for _ in range(100)]
        statuses = [response.status for response in await asyncio.gather(*asked)]
        assert (statuses.count(200), statuses.count(503)) == (sse.MOST_CLIENTS, 100 - sse.MOST_CLIENTS)


async def test_who_leaves_makes_room_at_once(run: Path, serve: Any) -> None:
    async with serve(run) as ask:  # over: there is nothing to write, at which a lost client would be noticed
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(sse.MOST_CLIENTS):
                response = await stack.enter_async_context(ask.session.get(ask.url + "/events"))
                await first(response, "end")
        async with asyncio.timeout(sse.BEAT_S / 2):
            while True:
                async with ask.session.get(ask.url + "/events") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.01)


async def test_the_newest_replaces_what_was_not_sent() -> None:
    sent, free = [], asyncio.Event()

    async def make(name: str) -> bytes:
        return frame(name, b"1")

    async def write_slowly(text: bytes) -> None:
        sent.append(text)
        await free.wait()

    hub = Hub()
    stack = contextlib.ExitStack()
    task = asyncio.ensure_future(sse.serve(stack.enter_context(hub.client()), make, write_slowly, ("steps",)))
    async with asyncio.timeout(WAIT_S):
        while not sent:
            await asyncio.sleep(0)
        for _ in range(1000):
            hub.notify("queues", "steps")
        free.set()
        while len(sent) < 3:
            await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [text.split()[1] for text in sent] == [b"steps", b"queues", b"steps"]
    assert len(hub) == 1
    stack.close()
    assert len(hub) == 0


async def test_a_client_is_woken_once_for_each_name() -> None:
    client = Client()
    for name in ("a", "b", "a"):
        client.notify(name)
    names = client.names()
    assert [await anext(names), await anext(names)] == ["a", "b"]
    assert not client.waiting
    await names.aclose()
