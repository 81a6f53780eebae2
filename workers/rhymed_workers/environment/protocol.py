"""What the pool asks a process with environments, and what it answers. MessagePack over the pipes of a cage."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rhymed.messages import Call
from rhymed_workers.sessions.calls import Chat as Chat
from rhymed_workers.sessions.calls import Wanted as Wanted

Kind = Literal["tools", "methods", "text"]
"""Functions; a class whose public methods are tools, as TRL's; a class that reads text, as SkyRL-Gym's."""


class Open(msgspec.Struct, frozen=True, tag=True):
    """Make the environment of the sample `name`; one that it had is closed."""

    name: str
    row: str  # JSON object
    chat: Chat
    number: int = 0  # random: the answer repeats it


class Step(msgspec.Struct, frozen=True, tag=True):
    """The policy wrote this turn."""

    name: str
    text: str  # without special tokens
    calls: list[Wanted] = []
    malformed: str = ""  # why its calls cannot be read; empty: they can
    last: bool = False  # it writes no other turn
    number: int = 0


class Close(msgspec.Struct, frozen=True, tag=True):
    name: str
    number: int = 0


class Stepped(msgspec.Struct, frozen=True):
    """The environment's answer: messages to the policy, unless it is done."""

    messages: Chat = []
    done: bool = False
    reward: float | None = None
    calls: list[Call] = []


class Answer(msgspec.Struct, frozen=True):
    number: int  # of the request
    chat: Chat = []  # to `Open`
    stepped: Stepped | None = None  # to `Step`
    error: str = ""  # the environment is broken


class Ready(msgspec.Struct, frozen=True):
    """First frame of the process."""

    kind: Kind = "tools"
    tools: list[dict[str, Any]] = []  # JSON schemas, as in OpenAI's API
    idempotent: list[str] = []  # tools that may be called again if a call was interrupted
    error: str = ""  # the user's code cannot be loaded


Request = Open | Step | Close
