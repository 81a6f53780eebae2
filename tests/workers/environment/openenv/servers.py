"""A server that speaks OpenEnv's protocol, with a game in which a number is guessed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import WSMsgType, web

GUESS = {
    "title": "GuessAction",
    "description": "Guesses the number.",
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "number": {"type": "integer", "description": "1 to 9"}},
    "required": ["number"],
}
SAY = {
    "title": "SayAction",
    "type": "object",
    "properties": {"metadata": {"type": "object"}, "message": {"type": "string"}},
    "required": ["message"],
}
MCP = {
    "title": "CallToolAction",
    "type": "object",
    "properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["tool_name"],
}
ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
}


class Game:
    """`resets`: what `reset` got. `open`: sessions now. `steps`: all actions, in order."""

    def __init__(self, action: Any, most: int = 100) -> None:
        self._action, self._most = action, most
        self.resets: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.url, self.open, self.most_open = "", 0, 0

    async def schema(self, request: web.Request) -> web.Response:
        return web.json_response({"action": self._action, "observation": {}, "state": {}})

    async def socket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        if self.open >= self._most:
            await _error(socket, "CAPACITY_REACHED", "full", active_sessions=self.open, max_sessions=self._most)
            await socket.close()
            return socket
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        secret = 0
        try:
            async for message in socket:
                if message.type is not WSMsgType.TEXT:
                    break
                asked = json.loads(message.data)
                if asked["type"] == "close":
                    break
                if asked["type"] == "reset":
                    self.resets.append(asked["data"])
                    secret = int(asked["data"].get("secret", 5))
                    await _observe(socket, {"hint": "Guess from 1 to 9."})
                else:
                    await self._step(socket, secret, asked["data"])
        finally:
            self.open -= 1
        return socket

    async def _step(self, socket: web.WebSocketResponse, secret: int, action: dict[str, Any]) -> None:
        if action.get("type") == "list_tools":
            return await _observe(socket, {"tools": [ADD]})
        self.steps.append(action)
        if action.get("type") == "call_tool":
            if "a" not in action["arguments"]:
                error = {"error_type": "invalid_args", "message": "a is missing"}
                return await _observe(socket, {"tool_name": "add", "result": None, "error": error})
            total = action["arguments"]["a"] + secret
            result = {"content": [{"type": "text", "text": f"{total}"}], "data": total}
            done = total > 99
            return await _observe(socket, {"tool_name": "add", "result": result, "error": None}, float(done), done)
        said = action.get("number", action.get("message"))
        match said:
            case "raise":
                return await _error(socket, "EXECUTION_ERROR", "the board is on fire")
            case "vanish":
                assert socket._req is not None
                assert socket._req.transport is not None
                return socket._req.transport.abort()
            case "sleep":
                await asyncio.sleep(60)
            case "nonsense":
                return await socket.send_str("[1, 2]")
            case "infinite":
                return await socket.send_str('{"type": "observation", "data": {"observation": {}, "reward": 1e999}}')
        try:
            guess = int(said)
        except (TypeError, ValueError):
            errors = [{"loc": ["number"], "msg": "Input should be a valid integer"}]
            return await _error(socket, "VALIDATION_ERROR", "Invalid message", errors=errors)
        if guess == secret:
            return await _observe(socket, {"hint": "Right."}, 1.0, True)
        return await _observe(socket, {"hint": "Higher." if guess < secret else "Lower."}, -0.25)


async def _observe(
    socket: web.WebSocketResponse, seen: dict[str, Any], reward: float | None = None, done: bool = False
) -> None:
    data = {"observation": {"metadata": {}, **seen}, "reward": reward, "done": done}
    await socket.send_str(json.dumps({"type": "observation", "data": data}))


async def _error(socket: web.WebSocketResponse, code: str, message: str, **more: Any) -> None:
    await socket.send_str(json.dumps({"type": "error", "data": {"message": message, "code": code, **more}}))


@contextlib.asynccontextmanager
async def playing(action: Any, most: int = 100) -> AsyncIterator[Game]:
    game = Game(action, most)
    app = web.Application()
    app.router.add_get("/schema", game.schema)
    app.router.add_get("/ws", game.socket)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    game.url = f"ws://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield game
    finally:
        await runner.cleanup()
