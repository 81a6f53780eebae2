"""The dashboard's HTTP side: routes, answers, errors. docs/http.md says what each route gives.

Every answer is made in the source's thread and leaves as bytes; on the event loop nothing is read from a disk and
nothing is encoded. Whatever goes wrong is a status and a sentence. Knows neither who started it nor where it listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from rhymed.dashboard.auth import HEADERS, Enter, Guard, Refused
from rhymed.dashboard.data.source import Desk, Source, encode
from rhymed.dashboard.events import Hub
from rhymed.dashboard.snapshots import Live, plain
from rhymed.dashboard.stream import Stream, number
from rhymed.errors import ConfigError, MalformedMessage, Overloaded, RhymedError, UnknownSample
from rhymed.messages import Queues

log = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    "": "text/plain; charset=utf-8",
}
"""What is served; nothing else is."""
SQUEEZE_BYTES = 16 << 10  # answers from this size on are compressed for who takes it
COOKIE_S = 30 * 24 * 3600
STATUS: dict[type[RhymedError], int] = {
    MalformedMessage: 400,
    UnknownSample: 404,
    ConfigError: 404,
    Overloaded: 503,
}
PULSE_S = 1.0
Work = Callable[[Source], Any]


class App:
    """`application` is what aiohttp runs."""

    def __init__(self, desk: Desk, live: Live, guard: Guard, static: Path = STATIC) -> None:
        self._desk, self._live, self._guard, self._static = desk, live, guard, static.resolve()
        self._hub = Hub()
        self._over = False
        self.application = web.Application(middlewares=[self._edge])
        self.application.cleanup_ctx.append(self._pulsing)
        self.application.on_shutdown.append(self._leave)
        get = self.application.router.add_get
        get("/", self._index)
        get("/static/{path:.+}", self._file)
        get("/health", _health)
        get("/metrics", self._metrics)
        get("/events", self._events, allow_head=False)
        get("/api/run", self._run)
        get("/api/queues", self._queues)
        get("/api/steps", self._steps)
        get("/api/timeline", self._timeline)
        get("/api/lengths", self._lengths)
        get("/api/prompts", self._prompts)
        get("/api/prompts/{prompt}", self._prompt)
        get("/api/samples/{step}/{prompt}/{index}", self._sample)
        get("/api/store", self._store)

    # -- the edge ------------------------------------------------------------------------------------------------

    @property
    def _edge(self) -> Any:
        @web.middleware
        async def edge(request: web.Request, handler: Any) -> web.StreamResponse:
            try:
                entry = self._guard.check(request.path, request.query_string, request.headers, request.cookies)
                response: web.StreamResponse = _enter(entry) if entry else await handler(request)
            except Refused as refusal:
                response = _error(refusal.status, refusal.text)
            except web.HTTPException as error:
                response = _error(error.status, f"{request.method} {request.path}: {error.reason.lower()}")
            except RhymedError as error:
                response = _error(STATUS.get(type(error), 500), str(error))
            except ConnectionError:
                raise
            except Exception as error:
                log.exception("an answer of the dashboard failed")
                response = _error(500, f"this is a mistake of the dashboard: {type(error).__name__}")
            if not response.prepared:
                response.headers.update(HEADERS)
                response.headers.setdefault("Cache-Control", "no-store")
            return response

        return edge

    async def _answer(self, request: web.Request, work: Work) -> web.Response:
        """`work` gets the source, in its thread."""
        squeeze = "gzip" in request.headers.get("Accept-Encoding", "")

        def make() -> tuple[bytes, bool]:
            body = encode(work(self._desk.source))
            if not squeeze or len(body) < SQUEEZE_BYTES:
                return body, False
            packer = zlib.compressobj(1, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
            return packer.compress(body) + packer.flush(), True

        body, squeezed = await self._desk.ask(make)
        headers = {"Vary": "Accept-Encoding"} | ({"Content-Encoding": "gzip"} if squeezed else {})
        return web.Response(body=body, content_type="application/json", headers=headers)

    # -- the run -------------------------------------------------------------------------------------------------

    async def _run(self, request: web.Request) -> web.Response:
        queues = await self._live.queues()
        return await self._answer(request, lambda source: source.run(queues))

    async def _queues(self, request: web.Request) -> web.Response:
        queues = await self._live.queues()
        return await self._answer(request, lambda source: plain(queues))

    async def _steps(self, request: web.Request) -> web.Response:
        after = _integer(request, "after", -1)
        return await self._answer(request, lambda source: source.steps(after))

    async def _timeline(self, request: web.Request) -> web.Response:
        since = number(request.query.get("since"), "since", 0.0)
        return await self._answer(request, lambda source: source.timeline(since))

    async def _metrics(self, request: web.Request) -> web.Response:
        from rhymed.dashboard import prometheus

        queues = await self._live.queues()
        if queues is None:
            return _error(503, "the run is not alive, so it has no metrics to scrape")
        body = await self._desk.ask(prometheus.exposition, queues)
        return web.Response(body=body, headers={"Content-Type": prometheus.CONTENT_TYPE})

    # -- the store -----------------------------------------------------------------------------------------------

    async def _lengths(self, request: web.Request) -> web.Response:
        return await self._answer(request, Source.lengths)

    async def _prompts(self, request: web.Request) -> web.Response:
        query, sort = request.query.get("query", ""), request.query.get("sort", "id")
        offset, limit = _integer(request, "offset", 0, 0), _integer(request, "limit", 50, 0)
        order = request.query.get("order", "")
        return await self._answer(request, lambda source: source.prompts(query, sort, offset, limit, order))

    async def _prompt(self, request: web.Request) -> web.Response:
        prompt = request.match_info["prompt"]
        return await self._answer(request, lambda source: source.prompt(prompt))

    async def _sample(self, request: web.Request) -> web.Response:
        given = request.match_info
        step, index = _whole(given["step"], "step"), _whole(given["index"], "index")
        return await self._answer(request, lambda source: source.sample(step, given["prompt"], index))

    async def _store(self, request: web.Request) -> web.Response:
        queues = await self._live.queues()
        return await self._answer(request, lambda source: source.store(queues))

    # -- events --------------------------------------------------------------------------------------------------

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._hub.is_full:
            return _error(503, "too many pages are open already: close one")
        begin = request.query.get("after"), request.query.get("since"), request.headers.get("Last-Event-ID")
        stream = await self._desk.ask(Stream.begin, self._desk.source, *begin)
        response = web.StreamResponse(headers={**HEADERS, "Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        response.content_type = "text/event-stream"
        await response.prepare(request)

        async def make(name: str) -> bytes | None:
            queues = await self._live.queues() if name in ("queues", "end") else None
            return await self._desk.ask(stream.make, name, queues)

        over = self._is_over(await self._live.queues())
        await self._hub.serve(make, response.write, ("queues", "steps", "timeline") + ("end",) * over)
        return response

    def _is_over(self, queues: Queues | None) -> bool:
        """Those who look are told when it begins to be."""
        over = queues.finished if queues else self._live.is_over
        if over and not self._over:
            self._hub.tell("end")
        self._over = over
        return over

    async def _leave(self, application: web.Application) -> None:
        """The server goes: who looks gets what is new, and whether that is because the run is over."""
        self._hub.tell("steps", "timeline", *["end"] * self._live.is_over)
        self._hub.close()

    async def _pulsing(self, application: web.Application) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self._pulse())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def _pulse(self) -> None:
        """Looks for what is new, as long as somebody does."""
        size: Any = None
        while True:
            await asyncio.sleep(PULSE_S)
            if not len(self._hub):
                continue
            try:
                queues = await self._live.queues()
                news = ["queues"] if queues else []
                new_rows, now = await self._desk.ask(_look, self._desk.source)
                news += ["steps"] * new_rows + ["timeline"] * (now != size)
                size = now
                self._hub.tell(*news)
                self._is_over(queues)
            except RhymedError as error:
                log.warning("events: %s", error)
            except Exception:
                log.exception("events")

    # -- files ---------------------------------------------------------------------------------------------------

    async def _index(self, request: web.Request) -> web.StreamResponse:
        return await self._send("index.html")

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request.match_info["path"])

    async def _send(self, name: str) -> web.StreamResponse:
        """Browsers keep it, and ask each time whether it is still the same."""
        file = self._static / name
        kind = TYPES.get(file.suffix.lower())
        if kind is None or not await asyncio.to_thread(_is_inside, file, self._static):
            return _error(404, f"the dashboard has no file {name}")
        return web.FileResponse(file, headers={"Content-Type": kind, "Cache-Control": "no-cache"})


def _look(source: Source) -> tuple[bool, Any]:
    """Are there new rows, and the size of the timeline."""
    size = None
    with contextlib.suppress(OSError):
        size = (source.folder / "timeline.jsonl").stat().st_size
    before = source.seen
    source.rows.refresh()
    source.seen = source.rows.serial
    return source.seen != before, size


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        whole = file.resolve()
        return whole.is_file() and not any(part.startswith(".") for part in whole.relative_to(folder).parts)
    except (OSError, ValueError):
        return False


async def _health(request: web.Request) -> web.Response:
    return web.Response(text="ok")


def _enter(entry: Enter) -> web.Response:
    response = web.Response(status=303, headers={"Location": entry.location})
    response.set_cookie(entry.cookie, entry.value, max_age=COOKIE_S, httponly=True, samesite="Lax")
    return response


def _error(status: int, text: str) -> web.Response:
    return web.Response(
        status=status, text=json.dumps({"error": text}), content_type="application/json", headers={**HEADERS}
    )


def _whole(text: str, name: str) -> int:
    try:
        found = int(text) if len(text) < 20 else None
    except ValueError:
        found = None
    if found is None:
        raise MalformedMessage(f"{name}={text[:40]}: a whole number is expected")
    return found


def _integer(request: web.Request, name: str, default: int, least: int = -(1 << 62)) -> int:
    text = request.query.get(name)
    found = default if text is None else _whole(text, name)
    if found < least:
        raise MalformedMessage(f"{name}={found}: at least {least} is expected")
    return found
