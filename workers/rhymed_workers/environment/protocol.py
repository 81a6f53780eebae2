"""What the pool asks a process with environments, and what it answers. MessagePack over the pipes of a jail.

A process has many requests at once. Its first frame is `Ready`; each `Reply` names a request by its number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from rhymed.core.messages import Call
from rhymed.inputs.chats import Chat
from rhymed_workers.sessions.calls import Wanted

MOST_BYTES = 16 << 20  # of an answer: a turn's results, which no context could hold

STEP = "step"  # the call of an environment that reads text

Kind = Literal["tools", "methods", "text"]
"""Functions; a class whose public methods are tools, as TRL's; a class that reads text, as SkyRL-Gym's."""

Phase = Literal["queued", "sync", "async"]
"""Of a request: waits until other user code has returned, runs a sync function, or awaits async ones. Whoever runs
when the process ends is to blame."""


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
    calls: str = "[]"  # JSON: MessagePack has no integers of more than 64 bits, and policies write them
    malformed: str = ""  # why its calls cannot be read; empty: they can
    last: bool = False  # it writes no other turn
    number: int = 0

    @property
    def wanted(self) -> list[Wanted]:
        return [Wanted(name, arguments) for name, arguments in json.loads(self.calls)]


def calls_text(calls: Sequence[Wanted]) -> str:
    """As `Step` has them."""
    return json.dumps([[call.name, call.arguments] for call in calls])


class Close(msgspec.Struct, frozen=True, tag=True):
    name: str
    number: int = 0


class Stepped(msgspec.Struct, frozen=True):
    """The environment's answer: messages to the policy, unless it is done."""

    messages: Chat = []
    done: bool = False
    reward: float | None = None
    calls: list[Call] = []
    state: str = ""  # JSON object: public attributes of the environment, when it is done or the turn was the last one
    lists: dict[int, str] = {}  # by the place of a message: JSON of the list that the tool returned, for rewards


class Answer(msgspec.Struct, frozen=True, tag=True):
    number: int  # of the request
    chat: Chat = []  # to `Open`
    tools: list[str] = []  # to `Open`: names of those that the sample has
    stepped: Stepped | None = None  # to `Step`
    error: str = ""  # the environment is broken
    unsuitable: bool = False  # the error is the row's: no other process could answer


class Moved(msgspec.Struct, frozen=True, tag=True):
    """The request is in this phase from now on; a phase may be told again, when another function begins."""

    number: int
    phase: Phase


class Ready(msgspec.Struct, frozen=True):
    """First frame of the process."""

    kind: Kind = "tools"
    tools: list[dict[str, Any]] = []  # JSON schemas, as in OpenAI's API
    idempotent: list[str] = []  # tools that may be called again if a call was interrupted
    awaits: bool = False  # some of its functions are async: many samples may wait for them at once
    error: str = ""  # the user's code cannot be loaded


Request = Open | Step | Close
Reply = Answer | Moved
