"""Tools of real MCP servers of the official SDK, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed
from rhymed.core.secret import HIDDEN, redacted
from rhymed_workers.environment.hosting.mcp import find_tools
from rhymed_workers.environment.preview import Preview
from rhymed_workers.environment.protocol import Wanted
from rhymed_workers.sessions.calls import Read
from tests.packages import needs
from tests.workers.environment.pools import CHAT, Make, ask, maker, reported

pytestmark = needs("mcp")

SERVER = '''
import asyncio, os, sys
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

server = MCPServer("mine")

@server.tool(annotations=ToolAnnotations(read_only_hint=True, open_world_hint=False))
def add(left: int, right: int = 1) -> str:
    """Adds two numbers."""
    return str(left + right)

@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def variable(key: str) -> str:
    """A variable of the server."""
    return f"{os.environ.get(key)} in {os.getpid()}"

@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def once(file: str) -> str:
    """Ends the server at the first call."""
    if not os.path.exists(file):
        open(file, "w").close()
        os._exit(7)
    return "again"

@server.tool()
async def misbehave(how: str) -> str:
    """Does what it should not."""
    if how == "die":
        os._exit(7)
    if how == "raise":
        raise ToolError("no such luck")
    await asyncio.sleep(3600)
    return ""

if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
'''


RAW = """
import json, os, sys

def put(**message):
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **message}), flush=True)

def listed(name, **more):
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **more}

for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "raw", "version": "1"}}
            put(result={"protocolVersion": asked["params"]["protocolVersion"], **about})
        case "tools/list":
            tools = [listed(name) for name in ("pid", "prints", "wrong", "fails")]
            tools.append(listed("unstructured", outputSchema={"type": "object", "properties": {}}))
            put(result={"tools": json.loads(sys.argv[1]) if sys.argv[1:] else tools})
        case "tools/call":
            text = {"type": "text", "text": str(os.getpid())}
            if asked["params"]["name"] == "prints":
                for number in range(1000):
                    print(f"{number} password=hush-hush-2")
                sys.stdout.flush()
                os.write(1, bytes(range(255, 127, -1)) + b"\\n")
            if asked["params"]["name"] == "fails":
                put(error={"code": -32603, "message": "out of luck"})
            else:
                put(result={"content": [{"type": "?"} if asked["params"]["name"] == "wrong" else text]})
        case "ping":
            put(result={})
        case _ if "id" in asked:  # a client waits 10 s for an answer to server/discover
            put(error={"code": -32601, "message": "no such method"})
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    return tmp_path / "server.py"


@pytest.fixture
def stdio(file: Path) -> dict[str, Any]:
    return {"command": sys.executable, "args": [str(file)], "env": {"MY_TOKEN": "hush-hush-1"}}


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(
        tmp_path,
        'def more(text: str) -> str:\n    """More.\n\n    Args:\n        text: Any.\n    """\n    return text\n',
    )


@pytest.fixture
def http(file: Path) -> Iterator[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(file), str(port)], env={"MY_TOKEN": "hush-hush-1", **os.environ})
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer hush-hush-1"}}
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_servers_tools_are_the_policys(transport: str, make: Make, request: pytest.FixtureRequest) -> None:
    async with make(mcp=[request.getfixturevalue(transport)], tools="more") as pool:
        about = {tool["function"]["name"]: tool["function"] for tool in pool.about.tools}
        assert list(about) == ["more", "add", "variable", "once", "misbehave"]
        assert about["add"]["description"] == "Adds two numbers."
        assert about["add"]["parameters"]["required"] == ["left"]
        assert pool.about.idempotent == ["add", "variable", "once"]
        opened = await pool.open("a", {}, CHAT)
        assert sorted(opened.tools) == ["add", "misbehave", "more", "once", "variable"]
        assert await reported(pool, "add", left=20, right=3) == "23"
        assert (await reported(pool, "variable", key="MY_TOKEN")).startswith("hush-hush-1 in ")
        assert "no such luck" in await reported(pool, "misbehave", how="raise")
        stepped = await ask(pool, "add", left="many")
        assert stepped.calls[0].error
        assert "left" in str(stepped.messages[0]["content"]), "the policy reads what is wrong with its call"
        many = Read("", [Wanted("add", {"left": number}) for number in range(20)])
        answers = (await pool.step("a", many, last=False)).messages
        assert [message["content"] for message in answers] == [str(number + 1) for number in range(20)]


async def test_a_server_that_dies_is_started_again(make: Make, stdio: dict[str, Any], tmp_path: Path) -> None:
    async with make(mcp=[stdio]) as pool:
        await pool.open("a", {}, CHAT)
        first = await reported(pool, "variable", key="MY_TOKEN")
        assert await reported(pool, "variable", key="MY_TOKEN") == first, "of the same process"
        assert "the call was interrupted, as its server ended" in await reported(pool, "misbehave", how="die")
        assert await reported(pool, "variable", key="MY_TOKEN") != first
        assert await reported(pool, "once", file=str(tmp_path / "called")) == "again", "it may be called again"


async def test_a_call_that_is_late_is_an_answer(make: Make, stdio: dict[str, Any]) -> None:
    async with make(mcp=[stdio], timeout_s=20.0) as pool:
        await pool.open("a", {}, CHAT)
        late, other = await asyncio.gather(
            reported(pool, "misbehave", how="wait"), reported(pool, "add", name="b", left=4)
        )
        assert "took longer than 20 s (environment.timeout_s)" in late
        assert other == "5"
        assert await reported(pool, "add", left=1) == "2"


async def test_what_is_no_answer_or_a_wrong_one_costs_no_server(
    make: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    """A thousand printed lines, and bytes that are no text, are no lines of the log and no delay."""
    async with make(mcp=[{"command": sys.executable, "args": ["-c", RAW]}]) as pool:
        await pool.open("a", {}, CHAT)
        first = await reported(pool, "pid")
        assert await reported(pool, "prints") == first
        for tool, words in (
            ("wrong", "its answer is no CallToolResult: content.0"),
            ("unstructured", "has an output schema but did not return structured content"),
            ("fails", "MCPError: out of luck"),
        ):
            answer = await reported(pool, tool)
            assert words in answer, tool
            assert "server ended" not in answer
            assert "http" not in answer, "a page about the library that reads it"
            assert await reported(pool, "pid") == first, tool
    wrote = capfd.readouterr().err
    assert "password" not in wrote
    assert "Traceback" not in wrote


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ({"command": "/no/such/server"}, "environment.mcp: /no/such/server: its tools: FileNotFoundError"),
        ({"command": sys.executable, "args": ["-c", "raise SystemExit(3)"]}, "SystemExit(3): its tools: "),
        ({"command": "sleep", "args": ["3600"]}, "sleep 3600: its tools: no answer within 3 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "environment.mcp: http://127.0.0.1:9/mcp: its tools: "),
    ],
    ids=["missing", "ends", "silent", "away"],
)
def test_a_server_that_lists_no_tools_is_an_error_in_words(server: dict[str, Any], words: str) -> None:
    config = Config.model_validate(
        {"environment": {"mcp": [server], "timeout_s": 3.0, "processes": 1}, "rollout": {"engine": "trace"}}
    )
    with pytest.raises(EnvironmentFailed) as error, Preview(config):
        pass
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"name": "a"}, "its answer is no ListToolsResult: tools.0.inputSchema: Field required"),
        ({"name": "", "inputSchema": {"type": "object"}}, "the name '': letters, digits"),
        ({"name": "a b", "inputSchema": {"type": "object"}}, "the name 'a b': letters, digits"),
        ({"name": "a\n", "inputSchema": {"type": "object"}}, r"the name 'a\n': letters, digits"),
    ],
    ids=["no-schema", "no-name", "two-words", "two-lines"],
)
def test_a_tool_that_cannot_be_one_is_an_error_in_words(tool: dict[str, Any], words: str) -> None:
    server = {"command": sys.executable, "args": ["-c", RAW, json.dumps([tool])]}
    with pytest.raises(EnvironmentFailed) as error:
        find_tools(Config.model_validate({"environment": {"mcp": [server], "timeout_s": 120.0}}).environment)
    assert f"its tools: {words}" in str(error.value)


def test_a_missing_package_is_named_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(EnvironmentFailed, match=r"environment.mcp: .*; pip install 'rhymed\[mcp\]'"):
        find_tools(Config.model_validate({"environment": {"mcp": [{"command": "a"}]}}).environment)


def test_settings_of_one_kind() -> None:
    def problem(**environment: Any) -> str:
        with pytest.raises(ValidationError) as error:
            Config.model_validate({"environment": environment})
        return str(error.value)

    assert "either command or url" in problem(mcp=[{}])
    assert "either command or url" in problem(mcp=[{"command": "a", "url": "http://a"}])
    assert "headers have no effect" in problem(mcp=[{"command": "a", "headers": {"a": "b"}}])
    assert "args and env have no effect" in problem(mcp=[{"url": "http://a", "args": ["b"]}])
    assert "a program has tools of its own" in problem(mcp=[{"command": "a"}], command="b")
    assert "its server has the tools" in problem(mcp=[{"command": "a"}], url="ws://a:1")


def test_secrets_of_servers_are_hidden() -> None:
    server = {"url": "http://a/mcp", "headers": {"Authorization": "Bearer abc", "X-Api-Key": "d"}}
    program = {"command": "a", "env": {"MODE": "fast", "GITHUB_TOKEN": "e"}}
    config = Config.model_validate({"environment": {"mcp": [server, program]}})
    shown = redacted(config.model_dump())["environment"]["mcp"]
    assert shown[0]["headers"] == {"Authorization": HIDDEN, "X-Api-Key": HIDDEN}
    assert shown[1]["env"] == {"MODE": "fast", "GITHUB_TOKEN": HIDDEN}
