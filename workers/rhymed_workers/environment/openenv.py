"""A session on an OpenEnv server: one WebSocket, on which each message gets one answer.

The server holds an environment for each session, and closes it with the WebSocket. Every wait ends at a deadline; a
server that is away, or has no room, is waited for until then, and what it says is in the error.

`Session` exchanges the messages. `Action` and `Observed` are what they mean; `action_of` says which of three kinds an
environment is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import aiohttp

from rhymed.core.errors import EnvironmentFailed
from rhymed.core.text import short, truncated

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


# What an OpenEnv server says, as tools and messages for the policy, and what the policy says, as actions. Pure.
#
# An environment is of one of three kinds. `mcp`: its actions are calls of MCP tools. `text`: its action has one text,
# which is the policy's turn. `tool`: another action is a tool, which the policy calls with the action's fields.

Kind = Literal["mcp", "text", "tool"]

ALWAYS = "metadata"  # a field of all actions and observations, and none of the policy's
LIST_TOOLS = {"type": "list_tools"}
ACT = "act"  # the tool's name, if the action's class has none
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Action(NamedTuple):
    """How the policy acts. `name`: of the text's field, or of the tool."""

    kind: Kind
    name: str = ""
    schema: Mapping[str, Any] = MappingProxyType({})  # of the tool, as in OpenAI's API


class Observed(NamedTuple):
    """An answer to `reset` or `step`."""

    text: str
    done: bool
    reward: float | None
    failed: str = ""  # why a tool could not be called


def action_of(schema: Any, wanted: Literal["auto", "text", "tool"]) -> Action:
    """From the action's JSON schema. Raises `EnvironmentFailed`."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties", {}), Mapping):
        raise EnvironmentFailed(f"its /schema has no schema of actions: {short(schema)}")
    fields = {name: each for name, each in schema.get("properties", {}).items() if name != ALWAYS}
    if {"tool_name", "arguments"} <= fields.keys() or not fields:
        return Action("mcp")
    needed = [name for name in schema.get("required", []) if name in fields]
    texts = [name for name in fields if isinstance(fields[name], Mapping) and fields[name].get("type") == "string"]
    one = needed if needed else list(fields) if len(fields) == 1 else []
    speaks = len(one) == 1 and one[0] in texts and "enum" not in fields[one[0]]
    if wanted == "text" and not speaks:
        raise EnvironmentFailed(
            f"environment.action = 'text' needs an action with one text, and this one has {', '.join(fields)}"
        )
    if speaks and wanted != "tool":
        return Action("text", one[0])
    title = str(schema.get("title", ""))
    name = title if NAME.fullmatch(title) else ACT
    parameters = {key: part for key, part in schema.items() if key in ("$defs", "definitions")}
    parameters |= {"type": "object", "properties": fields, "required": needed}
    about = str(schema.get("description", "")).strip() or "Acts in the environment."
    return Action("tool", name, _function(name, about, parameters))


def tools_of(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """From the answer to `LIST_TOOLS`. Raises `EnvironmentFailed`."""
    try:
        return [
            _function(tool["name"], tool.get("description") or "", tool.get("input_schema") or {"type": "object"})
            for tool in answer["observation"]["tools"]
        ]
    except (KeyError, TypeError, AttributeError):
        raise EnvironmentFailed(f"its answer to list_tools has no tools: {short(answer)}") from None


def call_of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The action that calls an MCP tool."""
    return {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}


def observed(answer: Mapping[str, Any]) -> Observed:
    """Raises `EnvironmentFailed`."""
    seen, reward, done = answer.get("observation"), answer.get("reward"), answer.get("done", False)
    if not isinstance(seen, Mapping):
        raise EnvironmentFailed(f"its answer has no observation: {short(answer)}")
    if reward is not None and not (isinstance(reward, int | float) and math.isfinite(reward)):
        raise EnvironmentFailed(f"it gave the reward {short(reward)}: a finite number expected")
    given = None if reward is None else float(reward)
    if "tool_name" in seen and ("result" in seen or "error" in seen):
        failed = _failure(seen)
        return Observed(failed or _result(seen.get("result")), bool(done), given, failed)
    return Observed(_text(seen), bool(done), given)


def _text(seen: Mapping[str, Any]) -> str:
    """One field is its value, several are JSON; those that say nothing are left out."""
    shown = {name: value for name, value in seen.items() if name != ALWAYS and value not in (None, "", [], {})}
    if len(shown) == 1:
        (value,) = shown.values()
        return value if isinstance(value, str) else _json(value)
    return _json(shown) if shown else ""


def _failure(seen: Mapping[str, Any]) -> str:
    error, result = seen.get("error"), seen.get("result")
    if isinstance(error, Mapping):
        return str(error.get("message") or error.get("error_type") or "failed")
    if error:
        return str(error)
    if isinstance(result, Mapping) and result.get("is_error"):
        return _result(result) or "failed"
    return ""


def _result(result: Any) -> str:
    """FastMCP's results hold the value as `data`, and as blocks of content."""
    if isinstance(result, Mapping) and "content" in result:
        if result.get("data") is not None:
            return result["data"] if isinstance(result["data"], str) else _json(result["data"])
        blocks = result["content"] if isinstance(result["content"], list) else []
        return "\n".join(str(block["text"]) for block in blocks if isinstance(block, Mapping) and "text" in block)
    return result if isinstance(result, str) else _json(result)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _function(name: Any, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": str(name), "description": description, "parameters": dict(parameters)},
    }
