"""The endpoint of the programs of one worker, over HTTP: `/sessions/<sample>/v1/chat/completions`.

Invariant: no request is answered without the token of the sample. Errors are OpenAI's objects. Large bodies are read
and written in threads. Unauthenticated connections are few and short (rhymed.core.http), and so are those of one
session. Knows neither store nor broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import resource
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Self

import msgspec
from aiohttp import web

from rhymed.core.errors import AddressRefused, CallRefused
from rhymed.core.http import LINGER_S, MOST_STRANGERS, Connections, Places, quiet_log
from rhymed.core.text import short
from rhymed_workers.reward.scorers.result import LARGEST, TOO_LARGE
from rhymed_workers.sessions import completions
from rhymed_workers.sessions.session import Session

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20  # of a request
INLINE_BYTES = 64 << 10  # what is larger is read and written in a thread
MOST_HELD_BYTES = 4 * MOST_BYTES  # of all requests that are read or answered; the others wait
MOST_FILES = 1 << 16
AT_ONCE = 128  # requests of one session
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Address that binds all of its kind -> this host's own."""

Handler = Callable[[web.Request, Session], Awaitable[web.StreamResponse]]


class Endpoint:
    """`async with Endpoint(...) as endpoint:`. `sessions`: by their names in URLs; shared with its owner."""

    def __init__(self, bind: str, port: int, model: str, sessions: Mapping[str, Session]) -> None:
        self._bind, self._port, self._model, self._sessions = bind, port, model, sessions
        application = web.Application(client_max_size=MOST_BYTES)
        base = "/sessions/{sample}{version:(/v1)*}"
        for method, path, handler in (
            ("POST", "/chat/completions", self._turn),
            ("POST", "/reward", self._reward),
            ("GET", "/models", self._models),
            ("GET", "/models/{model:.+}", self._models),
            ("*", "/{rest:.*}", self._unknown),
        ):
            application.router.add_route(method, base + path, self._guarded(handler))
        self._places = places()
        self._connections, self._busy = Connections(self._places), Counter[str]()
        self._held, self._room = 0, asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, logger=quiet_log(), lingering_time=LINGER_S
        )

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        protocols = self._runner.server
        assert protocols is not None, "it was set up"
        try:
            self._server = await asyncio.get_running_loop().create_server(
                self._connections.factory(protocols),
                self._bind,
                self._port,
                backlog=self._places.near // 2,  # all that are accepted at once have a place
            )
        except OSError as error:
            await self._runner.cleanup()
            raise AddressRefused(
                f"programs cannot be served at {self._bind} port {self._port} (environment.bind, environment.port):"
                f" {error.strerror or error}"
            ) from None
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        await self._runner.cleanup()
        self._connections.close()

    @property
    def host(self) -> str:
        """As its programs reach it."""
        return EVERYWHERE.get(self._bind, self._bind)

    @property
    def port(self) -> int:
        return self._port

    def url(self, name: str) -> str:
        """`OPENAI_BASE_URL` of a session."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self._port}/sessions/{name}/v1"

    def _guarded(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                session = self._session(request)
            except CallRefused as error:
                with self._connections.answering(request.transport, proven=False):
                    refused = await _json(completions.refusal(error), error.status)
                    refused.force_close()
                    return refused
            try:
                with self._connections.answering(request.transport, proven=True), self._one_more(request):
                    async with self._memory(request):
                        return await handler(request, session)
            except CallRefused as error:
                return await _json(completions.refusal(error), error.status)
            except asyncio.CancelledError:
                raise  # its client has gone, or its session has ended
            except web.HTTPException as error:
                return await _json(completions.refusal(CallRefused(error.reason, status=error.status)), error.status)
            except Exception:
                log.exception("a program's call failed")
                broken = CallRefused("the endpoint failed; its worker's log says why", "internal_error", status=500)
                return await _json(completions.refusal(broken), 500)

        return guarded

    @contextlib.contextmanager
    def _one_more(self, request: web.Request) -> Iterator[None]:
        """Raises `CallRefused`."""
        name = request.match_info["sample"]
        if self._busy[name] >= AT_ONCE:
            raise CallRefused(
                f"this sample has {AT_ONCE} requests at once: wait for answers", "rate_limit_exceeded", status=429
            )
        self._busy[name] += 1
        try:
            yield
        finally:
            self._busy[name] -= 1
            if not self._busy[name]:
                del self._busy[name]

    @contextlib.asynccontextmanager
    async def _memory(self, request: web.Request) -> AsyncIterator[None]:
        """For a large body, which stays in its socket until others have left room."""
        size = MOST_BYTES if request.content_length is None else min(request.content_length, MOST_BYTES)
        if not request.body_exists or size <= INLINE_BYTES:
            yield
            return
        async with self._room:
            await self._room.wait_for(lambda: self._held + size <= MOST_HELD_BYTES)
            self._held += size
        try:
            read = len(await request.read())  # where the length was not known before
            await self._leave(size - read)
            size = read
            yield
        finally:
            await self._leave(size)

    async def _leave(self, size: int) -> None:
        self._held -= size
        async with self._room:
            self._room.notify_all()

    def _session(self, request: web.Request) -> Session:
        """Raises `CallRefused`, with the same message for an unknown sample and for a wrong token."""
        session = self._sessions.get(request.match_info["sample"])
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        key = bearer if scheme.lower() == "bearer" else request.headers.get("api-key", "")
        given = key.strip().encode(errors="replace")
        if session is None or not secrets.compare_digest(given, session.token.encode()):
            raise CallRefused("this key is not that of a sample that is here", code="invalid_api_key", status=401)
        return session

    async def _turn(self, request: web.Request, session: Session) -> web.StreamResponse:
        arrived, raw = time.time(), await request.read()
        asked = completions.chat_asked(await _decoded(raw))
        call = session.call(asked, *_identity(request, raw))
        written = await session.answer(call)
        if not asked.stream:
            return await _json(completions.completion(asked, written, int(arrived)))
        try:
            return await self._stream(request, completions.chunks(asked, written, int(arrived)))
        except (ConnectionError, asyncio.CancelledError):
            call.delivered = False
            raise

    async def _stream(self, request: web.Request, events: Iterator[dict[str, Any] | None]) -> web.StreamResponse:
        streamed = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await streamed.prepare(request)
        for event in events:
            await streamed.write(completions.event(event))
        await streamed.write_eof()
        return streamed

    async def _reward(self, request: web.Request, session: Session) -> web.StreamResponse:
        body = await _decoded(await request.read())
        reward = body.get("reward") if isinstance(body, dict) else None
        session.reward = _finite(reward)
        return await _json({"reward": session.reward})

    async def _models(self, request: web.Request, session: Session) -> web.StreamResponse:
        listed = completions.models(self._model)
        return await _json(listed["data"][0] if "model" in request.match_info else listed)

    async def _unknown(self, request: web.Request, session: Session) -> web.StreamResponse:
        raise CallRefused(
            f"{request.method} {request.path}: there are chat/completions, models and reward",
            code="unknown_url",
            status=404,
        )


def places() -> Places:
    """Limits of connections with which the worker always has files left for its programs."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if files == resource.RLIM_INFINITY else min(files, MOST_FILES)
    strangers = min(MOST_STRANGERS, files // 4)
    return Places(strangers, near=strangers, known=files // 2)


def _finite(reward: Any) -> float:
    """Raises `CallRefused`."""
    try:
        number = math.nan if isinstance(reward, bool | str) else float(reward)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise CallRefused(f"reward = {short(reward, 40)}: a finite number expected", param="reward")
    if abs(number) > LARGEST:
        raise CallRefused(f"reward = {number:g}: {TOO_LARGE}", param="reward")
    return number


def _identity(request: web.Request, raw: bytes) -> tuple[bytes, bool]:
    """Of the call: its body's digest, and whether its client says that it repeats it."""
    retried = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
    return hashlib.blake2b(raw, digest_size=16).digest(), retried


async def _decoded(raw: bytes) -> Any:
    try:
        if len(raw) <= INLINE_BYTES:
            return msgspec.json.decode(raw)
        return await asyncio.to_thread(msgspec.json.decode, raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CallRefused(f"the request's body is no JSON: {error}") from None


async def _json(body: dict[str, Any], status: int = 200) -> web.Response:
    choices = body.get("choices") or [{}]
    large = 16 * len(choices[0].get("token_ids", ())) + 8 * len(body.get("prompt_token_ids", ())) > INLINE_BYTES
    data = await asyncio.to_thread(msgspec.json.encode, body) if large else msgspec.json.encode(body)
    return web.Response(body=data, status=status, content_type="application/json")
