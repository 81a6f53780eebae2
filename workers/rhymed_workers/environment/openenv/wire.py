"""A session on an OpenEnv server: one WebSocket, on which each message gets one answer.

The server holds an environment for each session, and closes it with the WebSocket. Every wait ends at a deadline; a
server that is away, or has no room, is waited for until then, and what it says is in the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from rhymed.errors import EnvironmentFailed
from rhymed.text import short, truncated

PAUSE_S = 0.25  # between attempts to get a session
MOST_BYTES = 16 << 20  # of a message
HEARTBEAT_S = 30.0  # between pings, so that a host that vanished is noticed
CLOSE_S = 5.0
REASON_CHARS = 500
NO_ROOM = "CAPACITY_REACHED"
REFUSED = "VALIDATION_ERROR"


class Refused(Exception):
    """The server finds an action invalid: the policy's fault, and the session goes on."""


class NoRoom(Exception):
    """All sessions of the server are taken."""


class Server:
    """At `url`: ws or http, without the protocol's paths. For one event loop."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/").removesuffix("/ws")
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def schema(self, within_s: float) -> Any:
        """Of its actions. Raises `EnvironmentFailed`."""
        address = "http" + self.url.removeprefix("ws").removeprefix("http") + "/schema"
        answer = await self._patiently(lambda: self._get(address), within_s)
        if not isinstance(answer, Mapping) or "action" not in answer:
            raise EnvironmentFailed(f"{address} answers {short(answer)}: no OpenEnv server is there")
        return answer["action"]

    async def session(self, within_s: float, first: Mapping[str, Any]) -> tuple[Session, Mapping[str, Any]]:
        """A session, and its answer to the first message. Raises `EnvironmentFailed`.

        The server refuses a session only when it is asked: so a session without an answer is none.
        """
        return await self._patiently(lambda: self._begin(first), within_s)

    async def _begin(self, first: Mapping[str, Any]) -> tuple[Session, Mapping[str, Any]]:
        address = "ws" + self.url.removeprefix("http").removeprefix("ws") + "/ws"
        socket = await self._client().ws_connect(
            address,
            max_msg_size=MOST_BYTES,
            heartbeat=HEARTBEAT_S,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
        )
        session = Session(socket, self.url)
        try:
            return session, await session.ask(first)
        except BaseException:
            await session.close()
            raise

    async def _get(self, address: str) -> Any:
        async with self._client().get(address, allow_redirects=False) as response:
            content = await response.content.read(MOST_BYTES)
            if response.status != 200:
                said = truncated(content.decode(errors="replace"), REASON_CHARS)
                raise EnvironmentFailed(f"{address} answers {response.status}: {said}")
            try:
                return json.loads(content)
            except (ValueError, RecursionError):
                raise EnvironmentFailed(f"{address} answers no JSON: no OpenEnv server is there") from None

    async def _patiently(self, attempt: Any, within_s: float) -> Any:
        """Repeats what fails because the server is away or full."""
        why = "it does not answer"
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        return await attempt()
                    except NoRoom as error:
                        why = str(error)
                    except (aiohttp.ClientError, OSError) as error:
                        why = f"it cannot be reached: {truncated(str(error) or type(error).__name__, REASON_CHARS)}"
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            raise EnvironmentFailed(f"{self.url}: {why}; tried for {within_s:g} s") from None

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            trace = aiohttp.TraceConfig()
            trace.on_request_redirect.append(_refuse_redirect)  # ws_connect has no such option
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None),
                trace_configs=[trace],
            )
        return self._http


async def _refuse_redirect(client: Any, context: Any, redirect: aiohttp.TraceRequestRedirectParams) -> None:
    """A server must not choose which addresses the worker asks."""
    where = truncated(redirect.response.headers.get("Location", ""), REASON_CHARS)
    raise EnvironmentFailed(f"{redirect.url} redirects to {where}: write that address as environment.url")


class Session:
    """One message at a time."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, url: str) -> None:
        self._socket, self._url = socket, url

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """The data of the answer. Raises `EnvironmentFailed`, `Refused` or `NoRoom`."""
        with contextlib.suppress(ConnectionError, aiohttp.ClientError):  # it has said why before it closed
            await self._socket.send_str(json.dumps(message))
        received = await self._socket.receive()
        if received.type is not aiohttp.WSMsgType.TEXT:
            why = self._socket.exception() or f"it was closed ({self._socket.close_code})"
            raise EnvironmentFailed(f"{self._url}: its session is lost: {why}")
        try:
            answer = json.loads(received.data)
            kind, data = answer["type"], answer["data"]
            if not isinstance(data, dict):
                raise TypeError(data)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise EnvironmentFailed(f"{self._url}: it says what OpenEnv does not: {short(received.data)}") from None
        if kind == "error":
            self._fail(data)
        return data

    def _fail(self, data: Mapping[str, Any]) -> None:
        code, text = str(data.get("code", "")), truncated(str(data.get("message", "")), REASON_CHARS)
        if code == NO_ROOM:
            raise NoRoom(
                f"all of its sessions ({data.get('max_sessions', '?')}) are taken: raise max_concurrent_envs of its"
                " app, or lower environment.sessions"
            )
        if code == REFUSED:
            raise Refused(_invalid(data.get("errors")) or text)
        raise EnvironmentFailed(f"{self._url}: {code}: {text}")

    async def close(self) -> None:
        """Ends the environment on the server."""
        with contextlib.suppress(TimeoutError, ConnectionError, aiohttp.ClientError):  # the server notices it, too
            async with asyncio.timeout(CLOSE_S):
                if not self._socket.closed:
                    await self._socket.send_str('{"type": "close"}')
                await self._socket.close()


def _invalid(errors: Any) -> str:
    """Pydantic's errors in a line."""
    if not isinstance(errors, list):
        return ""
    parts = [
        f"{'.'.join(map(str, error.get('loc', ())))}: {error.get('msg', '')}"
        for error in errors
        if isinstance(error, Mapping)
    ]
    return truncated("; ".join(parts), REASON_CHARS)
