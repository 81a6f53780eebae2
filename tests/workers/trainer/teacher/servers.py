"""A small server that answers as vLLM's OpenAI API does where a teacher asks it; for its failures, too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

Reply = Callable[[web.Request, dict[str, Any]], Awaitable[web.Response | None]]
"""Answers a request in place of the server; None: the server answers."""

Tokenize = Callable[[str], list[int]]


def logprob(place: int, token: int) -> float:
    """What this teacher thinks of a token at this place of a sequence."""
    return -0.5 - 0.01 * place - 0.1 * (token % 11)


class TeacherServer:
    """`score`: log-probs of every token of the vocabulary at each place of a sequence but the first; else `logprob`.
    `reply` sees every request first. `asked`: the bodies of /completions, in order of arrival.
    """

    def __init__(
        self,
        tokenize: Tokenize = lambda text: list(text.encode()),
        reply: Reply | None = None,
        score: Callable[[list[int]], Any] | None = None,
    ) -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.busy = self.busiest = 0
        self.models: list[dict[str, Any]] = [{"id": "teacher", "max_model_len": 512}]
        self._tokenize, self._reply, self._score = tokenize, reply, score

    async def list_models(self, request: web.Request) -> web.Response:
        replied = await self._reply(request, {}) if self._reply else None
        return replied or web.json_response({"object": "list", "data": self.models})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization", ""))
        self.busy += 1
        self.busiest = max(self.busy, self.busiest)
        try:
            replied = await self._reply(request, body) if self._reply else None
            return replied or web.json_response(self.answer(body))
        finally:
            self.busy -= 1

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        tokens = self._tokenize(prompt) if isinstance(prompt, str) else prompt
        if self._score is not None:
            return {"choices": [{"prompt_logprobs": [None, *self._rows(tokens, body["prompt_logprobs"])]}]}
        rows: list[Any] = [None]
        for place, token in enumerate(tokens[1:], 1):
            row = {str(token): {"logprob": logprob(place, token), "rank": 3}}
            for other in range(body["prompt_logprobs"]):
                row[str(other)] = {"logprob": logprob(place, other), "rank": other}
            rows.append(row)
        return {"choices": [{"prompt_logprobs": rows, "prompt_token_ids": tokens, "text": "x"}]}

    def _rows(self, tokens: list[int], topk: int) -> Iterator[dict[str, Any]]:
        assert self._score is not None
        for token, scores in zip(tokens[1:], self._score(tokens), strict=True):
            best = sorted(range(len(scores)), key=lambda other: -scores[other])[:topk]
            yield {str(other): {"logprob": float(scores[other])} for other in (token, *best)}


@contextmanager
def serving(server: TeacherServer) -> Iterator[str]:
    """Its address. Runs on a thread of its own: a teacher blocks the caller's."""
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), list[str]()

    async def start() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/models", server.list_models)
        app.router.add_post("/v1/completions", server.complete)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        address.append(f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1")  # type: ignore[attr-defined]
        return runner

    def run() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        loop.call_soon(ready.set)
        loop.run_forever()
        for handler in asyncio.all_tasks(loop):  # some hang on purpose
            handler.cancel()
        loop.run_until_complete(runner.cleanup())

    thread = threading.Thread(target=run, name="teacher-server", daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
