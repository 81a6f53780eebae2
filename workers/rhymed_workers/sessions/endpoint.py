"""The endpoint of the programs of one worker, over HTTP: `/sessions/<sample>/v1/chat/completions` and its like.

Invariant: nothing is answered without the token of the sample, whatever is asked. Errors are OpenAI's objects. Large
bodies are read and written in threads. Knows neither store nor broker.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Self

import msgspec
from aiohttp import web

from rhymed.errors import AddressRefused, CallRefused
from rhymed.text import short
from rhymed_workers.sessions.chat import answers
from rhymed_workers.sessions.chat.asked import Asked, chat_asked, tokens_asked
from rhymed_workers.sessions.session import Session

log = logging.getLogger(__name__)

MOST_BYTES = 64 << 20  # of a request
INLINE_BYTES = 64 << 10  # what is larger is read and written in a thread
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
            ("POST", "/chat/completions", self._chat),
            ("POST", "/inference/v1/generate", self._generate),
            ("POST", "/reward", self._reward),
            ("GET", "/models", self._models),
            ("GET", "/models/{model:.+}", self._models),
            ("*", "/{rest:.*}", self._unknown),
        ):
            application.router.add_route(method, base + path, self._guarded(handler))
        self._runner = web.AppRunner(application, handler_cancellation=True, access_log=None)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._bind, self._port, backlog=1024)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise AddressRefused(
                f"programs cannot be served at {self._bind} port {self._port} (environment.bind, environment.port):"
                f" {error.strerror or error}"
            ) from None
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def host(self) -> str:
        """As its programs reach it."""
        return EVERYWHERE.get(self._bind, self._bind)

    def url(self, name: str) -> str:
        """`OPENAI_BASE_URL` of a session."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self._port}/sessions/{name}/v1"

    def _guarded(self, handler: Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                return await handler(request, self._session(request))
            except CallRefused as error:
                return await _json(answers.refusal(error), error.status)
            except asyncio.CancelledError:
                raise  # its client has gone, or its session has ended
            except web.HTTPException as error:
                return await _json(answers.refusal(CallRefused(error.reason, status=error.status)), error.status)
            except Exception:
                log.exception("a program's call failed")
                broken = CallRefused("the endpoint failed; its worker's log says why", "internal_error", status=500)
                return await _json(answers.refusal(broken), 500)

        return guarded

    def _session(self, request: web.Request) -> Session:
        """Raises `CallRefused`, in the same words for a sample that is not here and for a wrong token."""
        session = self._sessions.get(request.match_info["sample"])
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = request.headers.get("api-key") or request.headers.get("x-api-key") or ""
        if session is None or not secrets.compare_digest(
            given.strip().encode(errors="replace"), session.token.encode()
        ):
            raise CallRefused("this key is not that of a sample that is here", code="invalid_api_key", status=401)
        return session

    async def _chat(self, request: web.Request, session: Session) -> web.StreamResponse:
        arrived, raw = time.time(), await request.read()
        asked = chat_asked(await _decoded(raw))
        call = session.call(asked, *_identity(request, raw))
        written = await session.answer(call)
        if not asked.stream:
            return await _json(answers.completion(asked, written, int(arrived)))
        try:
            return await self._stream(request, asked, written, int(arrived))
        except (ConnectionError, asyncio.CancelledError):
            call.delivered = False
            raise

    async def _stream(
        self, request: web.Request, asked: Asked, written: answers.Written, created: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        await response.prepare(request)
        for chunk in answers.chunks(asked, written, created):
            await response.write(answers.event(chunk))
        await response.write(answers.event(None))
        await response.write_eof()
        return response

    async def _generate(self, request: web.Request, session: Session) -> web.StreamResponse:
        arrived, raw = time.time(), await request.read()
        asked = tokens_asked(await _decoded(raw))
        call = session.call(asked, *_identity(request, raw))
        return await _json(answers.generated(asked, await session.answer(call), int(arrived)))

    async def _reward(self, request: web.Request, session: Session) -> web.StreamResponse:
        body = await _decoded(await request.read())
        reward = body.get("reward") if isinstance(body, dict) else None
        session.reward = _finite(reward)
        return await _json({"reward": session.reward})

    async def _models(self, request: web.Request, session: Session) -> web.StreamResponse:
        listed = answers.models(self._model)
        return await _json(listed["data"][0] if "model" in request.match_info else listed)

    async def _unknown(self, request: web.Request, session: Session) -> web.StreamResponse:
        raise CallRefused(
            f"{request.method} {request.path}: there are chat/completions, models, reward and inference/v1/generate",
            code="unknown_url",
            status=404,
        )


def _finite(reward: Any) -> float:
    """Raises `CallRefused`."""
    try:
        number = math.nan if isinstance(reward, bool | str) else float(reward)
    except (TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise CallRefused(f"reward = {short(reward, 40)}: a finite number expected", param="reward")
    return number


def _identity(request: web.Request, raw: bytes) -> tuple[bytes, str, bool]:
    """Of the call: its body's digest, its key, and whether its client says that it repeats it."""
    key = request.headers.get("Idempotency-Key", "")
    retried = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
    return hashlib.blake2b(raw, digest_size=16).digest(), key, retried


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
