"""Tools of servers that speak MCP, by the client of the official SDK.

A server is started, or connected to, with the first call of one of its tools, and again after it has ended or has not
answered in time. All samples of the process share it. Who lists the tools starts it for this alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rhymed.core import secret
from rhymed.core.config import Environment
from rhymed.core.config.environment import McpServer
from rhymed.core.errors import EnvironmentFailed
from rhymed.core.tasks import watched
from rhymed.core.text import short
from rhymed_workers.environment.hosting.tool import Tool
from rhymed_workers.sandbox.usercode import describe

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as Listed

ENDED = frozenset({-32000, -32001, -32600})
"""Codes of the client's own errors: the connection is closed, no answer in time, the session is gone. Others are
answers of the server to the call."""
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""A tool's name as MCP has it, and colons. Others would be lines of a prompt, or of a log."""
QUOTED = 80  # characters of what a server wrote


class CallFailed(Exception):
    """The policy reads it."""


class _Connection:
    """A task has the client, as its cancel scopes must be left where they were entered. It ends when it is given up
    and no call is in flight."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self.client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self.lost, self.calls, self._end = False, 0, asyncio.Event()
        self.task = watched(self._hold(connect))

    async def _hold(self, connect: Callable[[], Any]) -> None:
        try:
            async with connect() as client:
                self.client.set_result(client)
                await self._end.wait()
        except Exception as error:  # of the server, or of its program
            if not self.client.done():
                self.client.set_exception(error)
                self.client.exception()  # it was reported, also if no caller waits any more

    @asynccontextmanager
    async def call(self) -> AsyncIterator[Client]:
        """Gives the connection up if the call is not answered."""
        self.calls += 1
        try:
            yield await asyncio.shield(self.client)
        except BaseException as error:
            self.lost = self.lost or not _is_answer(error)
            raise
        finally:
            self.calls -= 1
            if self.lost and not self.calls:
                self.end()

    def end(self) -> None:
        self.lost = True
        self._end.set()
        if not self.client.done():  # the server does not start
            self.task.cancel()


class Server:
    def __init__(self, settings: McpServer) -> None:
        self._settings = settings
        self._secrets = secret.of_environment(settings.env | settings.headers)
        self._connection: _Connection | None = None

    async def tools(self, within_s: float) -> list[Tool]:
        """Raises `EnvironmentFailed`."""
        found: list[Listed] = []
        try:
            async with asyncio.timeout(within_s), self._connected().call() as client:
                page = await client.list_tools()
                found += page.tools
                while page.next_cursor is not None:
                    page = await client.list_tools(cursor=page.next_cursor)
                    found += page.tools
        except TimeoutError:
            raise self._failed("its tools", f"no answer within {within_s:g} s (environment.timeout_s)") from None
        except Exception as error:
            raise self._failed("its tools", _words(error)) from None
        return [self._tool(each) for each in found]

    async def close(self) -> None:
        if self._connection is not None:
            self._connection.end()
            await asyncio.wait([self._connection.task])

    def _connected(self) -> _Connection:
        if self._connection is None or self._connection.lost or self._connection.task.done():
            self._connection = _Connection(self._connect)
        return self._connection

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        # What a program prints besides messages: it would log a traceback of a millisecond for each line.
        logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)
        settings = self._settings
        async with AsyncExitStack() as stack:
            transport: Any
            if settings.url:
                http = await stack.enter_async_context(create_mcp_http_client(headers=settings.headers))
                transport = streamable_http_client(settings.url, http_client=http)
            else:
                transport = StdioServerParameters(
                    command=settings.command,
                    args=settings.args,
                    env=settings.env,
                    encoding_error_handler="replace",  # what is no text is no message, and ends nothing
                )
            yield await stack.enter_async_context(Client(transport))

    def _tool(self, listed: Listed) -> Tool:
        """A tool that changes nothing may be called again."""
        if not NAME.fullmatch(listed.name):
            why = "letters, digits and . _ - / : expected, at most 128"
            raise self._failed("its tools", f"the name {short(listed.name, QUOTED)}: {why}")
        hints = listed.annotations
        again = bool(hints and (hints.read_only_hint or hints.idempotent_hint))

        async def call(**arguments: Any) -> str:
            return await self._call(listed.name, arguments, again=again)

        about = {"name": listed.name, "description": listed.description or "", "parameters": listed.input_schema}
        return Tool(listed.name, call, {"type": "function", "function": about}, idempotent=again)

    async def _call(self, name: str, arguments: dict[str, Any], *, again: bool) -> str:
        """Raises `CallFailed`, and `EnvironmentFailed` where there is no server. A call that the end of the server
        interrupted is made once more if it may be."""
        connection = self._connected()
        try:
            async with connection.call() as client:
                result = await client.call_tool(name, arguments)
        except Exception as error:
            if connection.client.done() and connection.client.exception() is not None:
                raise self._failed("it cannot be started", _words(error)) from None
            words = secret.hide(_words(error), self._secrets)
            if not connection.lost:
                raise CallFailed(words) from None
            if again:
                return await self._call(name, arguments, again=False)
            raise CallFailed(f"the call was interrupted, as its server ended: {words}") from None
        text = _text(result)
        if result.is_error:
            raise CallFailed(text)
        return text

    def _failed(self, what: str, words: str) -> EnvironmentFailed:
        return EnvironmentFailed(
            secret.hide(f"environment.mcp: {self._settings.name}: {what}: {words}", self._secrets)
        )


def find_tools(settings: Environment) -> list[Tool]:
    """Of all servers, within `environment.timeout_s`. Blocking. Raises `EnvironmentFailed`."""
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        raise EnvironmentFailed(f"environment.mcp: {error}; pip install 'rhymed[mcp]'") from None

    async def find(server: Server) -> list[Tool]:
        try:
            return await server.tools(settings.timeout_s)
        finally:
            await server.close()  # calls are made on another event loop

    servers = [Server(McpServer.model_validate(each)) for each in settings.mcp]  # in a jail they are plain values
    return [tool for server in servers for tool in asyncio.run(find(server))]


def _is_answer(error: BaseException) -> bool:
    """Whether the server has answered the call: with an error, or with what is no result of its tool."""
    if isinstance(error, ValidationError | RuntimeError):
        return True
    code = getattr(error, "code", None)
    return code is not None and code not in ENDED


def _words(error: BaseException) -> str:
    """Of the first error in a group, as task groups raise them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"its answer is no {error.title}: {place}: {first['msg']}"
    return describe(error)


def _text(result: CallToolResult) -> str:
    """What the policy reads: its texts; what is no text is named. Without content its structured content, as JSON."""
    parts = []
    for block in result.content:
        text = getattr(block, "text", None)
        if text is None:
            text = getattr(getattr(block, "resource", None), "text", None)
        parts.append(f"[{block.type}]" if text is None else str(text))
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)
