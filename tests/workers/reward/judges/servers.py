"""A server that speaks the parts of the OpenAI API and of vLLM's that a judge needs, as well or as badly as told."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


class Server:
    """`bodies`, `keys`: of the requests. `busiest`: requests at the same time."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str] = []
        self.url, self.busy, self.busiest = "", 0, 0

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path)
        self.keys.append(request.headers.get("Authorization", ""))
        self.bodies.append(body := json.loads(await request.read() or b"{}"))
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            return await self._handler(request, body)
        finally:
            self.busy -= 1


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Server]:
    server = Server(handler)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server._handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()


def written(text: Any, finish: str = "stop") -> web.Response:
    """A chat completion."""
    return web.json_response({"choices": [{"message": {"content": text}, "finish_reason": finish}]})


def says(text: Any, finish: str = "stop", after_s: float = 0.0) -> Handler:
    async def handler(request: web.Request, body: dict[str, Any]) -> web.Response:
        await asyncio.sleep(after_s)
        return written(text, finish)

    return handler
