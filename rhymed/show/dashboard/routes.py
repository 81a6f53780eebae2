"""The dashboard's HTTP routes; docs/http.md says what each of them answers.

Every answer is made in the source's thread and leaves as bytes: the event loop reads no files and encodes nothing.
Does not know what started it, nor its address.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from aiohttp import web

from rhymed.core.errors import ConfigError, MalformedMessage, Overloaded, RhymedError, UnknownSample
from rhymed.core.http import CONNECTIONS
from rhymed.core.messages import Queues
from rhymed.core.messages.fields import MOST
from rhymed.show.dashboard.auth import HEADERS, OPEN_TO_ALL, AccessControl, AccessDenied, SetCookie
from rhymed.show.dashboard.data.source import Source, encode
from rhymed.show.dashboard.data.thread import SourceThread
from rhymed.show.dashboard.snapshots import LiveRun

COMPRESS_BYTES = 16 << 10  # answers from this size on are compressed if the client accepts it
Work = Callable[[Source, web.Request], Any]
Living = Callable[[Source, Queues | None], Any]
"""With the snapshot of a living run."""


class App:
    """`application` is what aiohttp runs."""

    def __init__(self, thread: SourceThread, live: LiveRun, access: AccessControl) -> None:
        self._thread, self._live = thread, live
        self.application = web.Application(middlewares=[edge(access)])
        self.handlers: dict[str, Handler] = {}  # by path
        get = self._get
        get("/", _index)
        get("/static/{path:.+}", _file)
        get("/health", _health)
        get("/metrics", self._metrics)
        get("/api/news", self._news)
        for path, work in ANSWERS.items():
            get(f"/api/{path}", partial(self._answered, work))
        for path, living in LIVING.items():
            get(f"/api/{path}", partial(self._answered_living, living))

    def _get(self, path: str, handler: Handler) -> None:
        self.handlers[path] = handler
        self.application.router.add_get(path, handler)

    async def _answered(self, work: Work, request: web.Request) -> web.Response:
        return await self._answer(request, lambda source: work(source, request))

    async def _answered_living(self, work: Living, request: web.Request) -> web.Response:
        queues = await self._live.queues()
        return await self._answer(request, lambda source: work(source, queues))

    async def _answer(self, request: web.Request, work: Callable[[Source], Any]) -> web.Response:
        """`work` is called in the source's thread."""
        compress = "gzip" in request.headers.get("Accept-Encoding", "")

        def make() -> tuple[bytes, bool]:
            body = encode(work(self._thread.source))
            if not compress or len(body) < COMPRESS_BYTES:
                return body, False
            packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
            return packer.compress(body) + packer.flush(), True

        body, compressed = await self._thread.run(make)
        headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if compressed else {})
        return web.Response(body=body, content_type="application/json", headers=headers)

    async def _metrics(self, request: web.Request) -> web.Response:
        from rhymed.show.dashboard import prometheus

        queues = await self._live.queues()
        if queues is None:
            return error(503, "the run is not alive, so it has no metrics to scrape")
        body = await self._thread.run(prometheus.exposition, queues)
        return web.Response(body=body, headers={"Content-Type": prometheus.CONTENT_TYPE})

    async def _news(self, request: web.Request) -> web.Response:
        serial, since = integer(request.query, "serial", 0, 0), number(request.query, "since", 0.0)
        queues = await self._live.queues()
        over = queues.finished if queues else self._live.is_over
        return await self._answer(request, lambda source: {"over": over, **source.news(queues, serial, since)})


def _prompts(source: Source, request: web.Request) -> Any:
    query, sort = request.query.get("query", ""), request.query.get("sort", "id")
    offset, limit = integer(request.query, "offset", 0, 0), integer(request.query, "limit", 50, 0)
    return source.prompts(query, sort, offset, limit, request.query.get("order", ""), request.query.get("kind", ""))


def _logs(source: Source, request: web.Request) -> Any:
    query = request.query
    libraries = integer(query, "libraries", 0) != 0
    return source.logs(
        query.get("level", "info"), query.get("process", ""), query.get("query", ""), libraries=libraries
    )


def _sample(source: Source, request: web.Request) -> Any:
    match = request.match_info
    step, index = whole(match["step"], "step"), whole(match["index"], "index")
    return source.sample(step, match["prompt"], index, by_token=integer(request.query, "tokens", 0) != 0)


LIVING: dict[str, Living] = {"run": Source.run, "store": Source.store}
ANSWERS: dict[str, Work] = {
    "lengths": lambda source, _: source.lengths(),
    "rewards": lambda source, _: source.rewards(),
    "prompts": _prompts,
    "responses": lambda source, request: source.responses(
        request.query.get("query", ""), request.query.get("from", "")
    ),
    "logs": _logs,
    "prompts/{prompt}": lambda source, request: source.prompt(request.match_info["prompt"]),
    "samples/{step}/{prompt}/{index}": _sample,
}
"""Path below /api/ -> what is answered."""


async def _index(request: web.Request) -> web.StreamResponse:
    return page()


async def _file(request: web.Request) -> web.StreamResponse:
    return await send(request.match_info["path"])


async def _health(request: web.Request) -> web.Response:
    return web.Response(text="ok")


# Numbers in requests. All functions raise `MalformedMessage`, which names the parameter.


def whole(text: str, name: str) -> int:
    try:
        value = int(text) if len(text) < 20 else None
    except ValueError:
        value = None
    if value is None:
        raise MalformedMessage(f"{name}={text[:40]}: a whole number is expected")
    return value


def integer(query: Mapping[str, str], name: str, default: int, least: int = -MOST) -> int:
    text = query.get(name)
    value = default if text is None else whole(text, name)
    if not least <= value <= MOST:
        raise MalformedMessage(f"{name}={value}: {least} to {MOST} is expected")
    return value


def number(query: Mapping[str, str], name: str, default: float) -> float:
    text = query.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e15:
        raise MalformedMessage(f"{name}={str(text)[:40]}: a number is expected")
    return value


# The page's own files. Only the listed types are served, and nothing outside the folder or hidden in it.

STATIC = (Path(__file__).parent / "static").resolve()
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
"""Suffix -> content type."""

SCRIPT = "views/main.js"
"""Makes the contents of the page."""


def page() -> web.Response:
    """The page of a run."""
    text = Template((STATIC / "page.html").read_text()).substitute(script=SCRIPT)
    return web.Response(text=text, headers={"Content-Type": TYPES[".html"], "Cache-Control": "no-cache"})


async def send(name: str) -> web.StreamResponse:
    """Browsers cache it, and ask each time whether it has changed."""
    file = STATIC / name
    kind = TYPES.get(file.suffix.lower())
    if kind is None or not await asyncio.to_thread(_is_inside, file):
        return error(404, f"the dashboard has no file {name}")
    return web.FileResponse(file, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


def _is_inside(file: Path) -> bool:
    try:
        path = file.resolve()
        return path.is_file() and not any(part.startswith(".") for part in path.relative_to(STATIC).parts)
    except (OSError, ValueError):
        return False


# What every answer passes through: access control, errors as a status and a sentence, security headers.

log = logging.getLogger(__name__)

COOKIE_S = 30 * 24 * 3600
STATUS: dict[type[RhymedError], int] = {
    MalformedMessage: 400,
    UnknownSample: 404,
    ConfigError: 404,
    Overloaded: 503,
}
"""All other errors are 500."""

CLOSING = (401, 403, 503)
"""A refused client keeps no connection."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def edge(access: AccessControl) -> Any:

    @web.middleware
    async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            cookie = access.check(request.path, request.query_string, request.headers, request.cookies)
            with _answering(request):
                response: web.StreamResponse = _redirect(cookie) if cookie else await handler(request)
        except AccessDenied as refusal:
            response = error(refusal.status, refusal.text)
        except web.HTTPException as failure:
            response = error(failure.status, f"{request.method} {request.path}: {failure.reason.lower()}")
        except RhymedError as failure:
            response = error(STATUS.get(type(failure), 500), str(failure))
        except ConnectionError:
            raise
        except Exception as failure:
            log.exception("an answer of the dashboard failed")
            response = error(500, f"this is a bug in the dashboard: {type(failure).__name__}")
        if not response.prepared:
            response.headers.update(HEADERS)
            response.headers.setdefault("Cache-Control", "no-store")
            if response.status in CLOSING:
                response.force_close()
        return response

    return checked


def _answering(request: web.Request) -> contextlib.AbstractContextManager[None]:
    connections = request.app.get(CONNECTIONS)
    if connections is None:  # the application is served in another way
        return contextlib.nullcontext()
    return connections.answering(request.transport, proven=request.path not in OPEN_TO_ALL)


def error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": text}), content_type="application/json", headers={**HEADERS}
    )


def _redirect(cookie: SetCookie) -> web.Response:
    response = web.Response(status=303, headers={"Location": cookie.location})
    response.set_cookie(cookie.name, cookie.value, max_age=COOKIE_S, httponly=True, samesite="Lax")
    return response
