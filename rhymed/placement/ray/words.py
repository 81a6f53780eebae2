"""What `rhymed run` and the process that holds its connection to Ray say to each other: a line of JSON each."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Word(msgspec.Struct, frozen=True, tag=str.lower):
    """Base of all."""


class Node(msgspec.Struct, frozen=True):
    """A living machine of the cluster, with what it has in all."""

    host: str
    cpus: float = 0.0
    gpus: float = 0.0
    memory_gib: float = 0.0


class Ready(Word, frozen=True):
    """The connection is there."""

    head: str  # host:port of Ray's head
    host: str  # this machine's address in the cluster
    nodes: list[Node]


class Start(Word, frozen=True):
    """Find a place for a process, and start it there. In its environment, `{host}` is that machine's address,
    `{ranks}` that of the first machine of its gang, and `{port}` a free port."""

    id: int
    name: str
    arguments: list[str]  # of `rhymed`
    environment: dict[str, str]
    files: dict[str, str]
    output: str
    broker: str
    needs: str = ""
    cpus: float = 1.0
    gpus: int = 0
    memory_gib: float = 0.0
    gang: int = 1  # machines of its gang
    number: int = 0  # its own among them


class Say(Word, frozen=True):
    """To a process: `terminate` or `kill`."""

    id: int
    what: str


class Placed(Word, frozen=True):
    id: int
    host: str


class Ended(Word, frozen=True):
    id: int
    status: int
    words: str


class Failed(Word, frozen=True):
    """It could not be started there."""

    id: int
    why: str


class Lost(Word, frozen=True):
    """Its machine, or its keeper there."""

    id: int
    why: str


ToPlacer: TypeAlias = Start | Say
FromPlacer: TypeAlias = Ready | Placed | Ended | Failed | Lost
