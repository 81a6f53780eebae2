"""How a sample goes on after the policy's first turn: tools and environments."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from rhymed.core.config.base import MOST_PROCESSES, ProcessGib, Section


class McpServer(Section):
    """A server that speaks MCP: a program (stdio), or an address (streamable HTTP)."""

    command: str = Field("", description="program of a server that speaks over stdin and stdout")
    args: list[str] = Field([], description="its arguments")
    env: dict[str, str] = Field({}, description="its variables, besides HOME, PATH and their like")
    url: str = Field(
        "", pattern=r"^(https?://[^\s@/]+[^\s@]*)?$", description="address of a server: http://host:port/mcp"
    )
    headers: dict[str, str] = Field({}, description="of each request to url")

    @property
    def name(self) -> str:
        return self.url or " ".join([self.command, *self.args])

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has either command or url")
        if self.url and (self.args or self.env):
            raise ValueError("args and env have no effect: they are for command")
        if self.command and self.headers:
            raise ValueError("headers have no effect: they are for url")
        return self


class Environment(Section):
    """With `tools`, `mcp`, `factory`, `url` or `command` a sample is turns; otherwise it is one response."""

    tools: str = Field("", description="functions that the policy may call: file.py:name,name")
    mcp: list[McpServer] = Field(
        [],
        description='servers whose tools the policy may call: {command = "…", args = ["…"], env = {…}} over stdio,'
        ' {url = "…", headers = {…}} over HTTP; each subprocess has its own',
    )
    factory: str = Field(
        "",
        description="class of a sample's environment, file.py:Class: TRL's environment_factory (its public methods"
        " are tools), a dict of such classes by the row's column `environment`, or SkyRL-Gym's BaseTextEnv;"
        " package.module:Class and skyrl_gym:id also work",
    )
    command: str = Field(
        "",
        description="program that a sample is, such as python my_agent.py: it asks the policy through the"
        " OpenAI-compatible endpoint at OPENAI_BASE_URL; started for each sample",
    )
    url: str = Field(
        "",
        pattern=r"^((wss?|https?)://[^\s@/]+[^\s@]*)?$",
        description="OpenEnv server that has the samples' environments, ws://host:port; each sample has a session",
    )
    action: Literal["auto", "text", "tool"] = Field(
        "auto",
        description="how the policy acts at url: text: its turn is the text of the action; tool: it calls a tool with"
        " the action's fields; auto: text, if the action has one text",
    )
    args: dict[str, Any] = Field({}, description="keyword arguments of factory; of url's reset, besides the row's")
    max_turns: int = Field(8, ge=1, le=10_000, description="turns of a sample; then it ends with what it has")
    parser: str = Field(
        "hermes", min_length=1, description="how calls are written: hermes (JSON in <tool_call>), or a parser of vLLM"
    )
    workers: int = Field(1, ge=1, le=MOST_PROCESSES, description="started by `rhymed run`; more can join at any time")
    processes: int = Field(2, gt=0, le=MOST_PROCESSES, description="subprocesses per worker")
    concurrency: int = Field(
        256,
        gt=0,
        le=65_536,
        description="samples at once per worker, if functions of the environment are async; with sync ones alone, 8"
        " for each of its subprocesses",
    )
    timeout_s: float = Field(
        30.0,
        gt=0,
        description="time limit of a call, and of a program between two calls; then an async call is cancelled, and"
        " anything else is killed with its subprocess",
    )
    sessions: int = Field(
        0,
        ge=0,
        description="samples that a worker has open at once, with environment or program; 0: 1024, 32 of programs",
    )
    memory_gib: ProcessGib = Field(4.0, ge=0, description="writable memory of a subprocess; 0: no limit")
    replay: bool = Field(
        True,
        description="after the loss of a subprocess, rebuild an environment of factory or url by making its calls"
        " again, and start a program of command again, whose calls are answered as before; false: its sample is"
        " dropped",
    )
    bind: str = Field("127.0.0.1", min_length=1, description="address at which a worker serves its programs")
    port: int = Field(0, ge=0, le=65535, description="likewise; 0: a free port, as several workers of a host need")

    @property
    def active(self) -> bool:
        return bool(self.tools or self.mcp or self.stateful or self.command)

    @property
    def stateful(self) -> str:
        """What makes an environment for each sample, which can be rebuilt; empty: nothing."""
        return self.factory or self.url

    @property
    def most_open(self) -> int:
        """Samples that a worker has open at once; 0: any number, since tools alone have no state."""
        return 0 if not (self.stateful or self.command) else self.sessions or (32 if self.command else 1024)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.command and (self.tools or self.mcp or self.stateful):
            raise ValueError(
                "command cannot be combined with tools, mcp, factory or url: a program has tools of its own"
            )
        if self.url and (self.tools or self.mcp or self.factory):
            raise ValueError("url cannot be combined with tools, mcp or factory: its server has the tools")
        if self.action != "auto" and not self.url:
            raise ValueError(f"action = {self.action!r} has no effect: it is for url")
        return self
