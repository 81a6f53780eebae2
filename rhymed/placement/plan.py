"""What a run consists of, wherever its processes are placed: configuration -> seats. Pure.

The list that `rhymed run` starts on one machine (`commands`), the actors of Ray and the batch scripts of Slurm come
from these seats, so there is one answer to what a run needs. A seat stands for equal processes. Hosts
are not known here: `addresses` takes their names, which may be placeholders that a shell or an engine fills in.

`Demand` says how many elastic workers the waiting samples occupy.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rhymed.core.config import Config, Environment, Reward
from rhymed.core.wire.keys import PUBLIC, KeyRole, secret_name
from rhymed.placement.gpus import generates_on_gpus, trains_on_gpus

Name: TypeAlias = Literal["store", "broker", "trainer", "rollout", "environment", "reward"]
Kind: TypeAlias = Literal["pinned", "gang", "elastic"]

PROGRAM = ("rhymed",)
STORE_PORT, BROKER_PORT, WEIGHTS_PORT, RANKS_PORT = 5551, 5550, 5552, 5553


@dataclass(frozen=True)
class Seat:
    """Equal processes of a run. Requirements are those of one process.

    `kind`: pinned, `count` processes that stay next to their disk with the run's folder, on one machine; gang, one
    process on each of `count` machines, which all end with any of them and may start again on others that reach the
    same folder; elastic, any number, each of which may end, move, or join at any time, with a folder for its logs.
    """

    name: Name
    kind: Kind
    arguments: tuple[str, ...]  # of `rhymed`, before the configuration's file
    count: int = 1  # processes that the configuration asks for; with a gang: machines
    gpus: int = 0  # all on one machine
    cpus: float = 1.0
    memory_gib: float = 0.0  # 0: not stated
    ports: Mapping[str, int] = field(default_factory=dict)  # key of [net] -> TCP port that it serves

    @property
    def role(self) -> KeyRole:
        """Whose secret key each process needs; it needs no other."""
        return self.name

    @property
    def secrets(self) -> tuple[str, str]:
        """Files of `net.keys` that each process needs."""
        return (PUBLIC, secret_name(self.role))

    def process(self, number: int = 0) -> str:
        """A process's name, unique in the run: `store`, `trainer`, `trainer-node-1`, `rollout-0`."""
        if self.kind == "elastic":
            return f"{self.name}-{number}"
        return f"{self.name}-node-{number}" if number else self.name

    def processes(self) -> list[str]:
        return [self.process(number) for number in range(self.count)]

    def command(self, config: str | Path, number: int | None = None, program: Sequence[str] = PROGRAM) -> list[str]:
        """One process's. `number`: its own, below `count`, for a name that stays; None: named by its host and process
        id, for engines that start as many copies as wanted."""
        argv = [*program, *self.arguments]
        if number and self.kind == "gang":
            argv += ["--node", str(number)]
        if self.arguments[0] == "worker" and number is not None:
            argv += ["--name", self.process(number)]
        return [*argv, str(config)]


@dataclass(frozen=True)
class Hosts:
    """Where others reach the servers: names, addresses or placeholders, e.g. `${HEAD}`."""

    store: str
    broker: str
    trainer: str  # with several nodes: the first one's


def seats(config: Config, *, gpus: bool = True) -> tuple[Seat, ...]:
    """In the order in which they start. `gpus`: whether the machines have any."""
    asked, memory = config.placement.cpus, config.placement.memory
    trainer, rollout = config.trainer, config.rollout
    ports = {"weights": WEIGHTS_PORT} | ({"ranks": RANKS_PORT} if trainer.nodes > 1 else {})
    return (
        Seat("store", "pinned", ("store",), 1, 0, asked.store, memory.store, {"store": STORE_PORT}),
        Seat("broker", "pinned", ("broker",), 1, 0, asked.broker, memory.broker, {"broker": BROKER_PORT}),
        Seat(
            "trainer",
            "gang",
            ("worker", "--role", "trainer"),
            count=trainer.nodes,
            gpus=trainer.gpus if gpus and trains_on_gpus(config) else 0,
            cpus=asked.trainer or max(1, trainer.threads, trainer.ranks_per_node),
            memory_gib=memory.trainer,
            ports=ports,
        ),
        Seat(
            "rollout",
            "elastic",
            ("worker", "--role", "rollout"),
            count=rollout.workers,
            gpus=rollout.engine_gpus if gpus and generates_on_gpus(config) else 0,
            cpus=asked.rollout,
            memory_gib=memory.rollout,
        ),
        *_isolated(config),
    )


def _isolated(config: Config) -> Iterator[Seat]:
    """Workers that run the user's code, and a model's, in subprocesses."""
    asked, memory = config.placement.cpus, config.placement.memory
    acts, reward = config.environment, config.reward
    wanted: tuple[tuple[Name, Environment | Reward, float, float], ...] = (
        ("environment", acts, asked.environment, memory.environment),
        ("reward", reward, asked.reward, memory.reward),
    )
    for name, section, cpus, memory_gib in wanted:
        if section is reward or acts.active:
            arguments = ("worker", "--role", name)
            cpus = cpus or section.processes
            yield Seat(name, "elastic", arguments, section.workers, 0, cpus, memory_gib)


def addresses(config: Config, hosts: Hosts, first_port: int = BROKER_PORT) -> dict[str, str]:
    """Settings of `[net]` for processes on different machines, which also need `net.keys` or `net.insecure`.
    `first_port`: of four, in place of 5550."""
    moved = first_port - BROKER_PORT
    found = {
        "broker": f"tcp://{hosts.broker}:{BROKER_PORT + moved}",
        "store": f"tcp://{hosts.store}:{STORE_PORT + moved}",
        "weights": f"tcp://{hosts.trainer}:{WEIGHTS_PORT + moved}",
        "bind": "0.0.0.0",
    }
    return found | ({"ranks": f"tcp://{hosts.trainer}:{RANKS_PORT + moved}"} if config.trainer.nodes > 1 else {})


def environment(config: Config, hosts: Hosts, keys: str, first_port: int = BROKER_PORT) -> dict[str, str]:
    """The same as environment variables, equal for all processes. `keys`: each process's folder of `Seat.secrets`."""
    found = addresses(config, hosts, first_port) | {"keys": keys, "http": ""}
    return {f"RHYMED_NET__{name.upper()}": value for name, value in found.items()}


@dataclass(frozen=True)
class Command:
    """One process, ready to be started."""

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)  # besides ours


def commands(
    config: Config,
    config_file: Path,
    environments: Mapping[str, Mapping[str, str]] | None = None,
    *,
    everywhere: bool = False,
) -> list[Command]:
    """All processes of a run on this machine, which has one node of the trainer, or `everywhere`, with all nodes.
    `environments`: by the process's name."""
    started = [
        command_of(seat, number, config_file, (environments or {}).get(seat.process(number)))
        for seat in seats(config)
        for number in range(seat.count if everywhere or seat.kind != "gang" else 1)
    ]
    if copies := uploader(config, config_file, (sys.executable, "-m", "rhymed")):
        started.append(Command("uploader", copies))
    return started


def uploader(
    config: Config, config_file: str | Path, program: Sequence[str] = PROGRAM, options: str = ""
) -> list[str] | None:
    """The command of the process that keeps the run's copy; None: it has none. No seat, as it talks to no other
    process: it needs no key and no port, but the disk of the store and, in the same folder, the checkpoints."""
    return [*program, "upload", *options.split(), str(config_file)] if config.run.remote else None


def command_of(seat: Seat, number: int, config_file: Path, environment: Mapping[str, str] | None = None) -> Command:
    program = (sys.executable, "-m", "rhymed")
    return Command(seat.process(number), seat.command(config_file, number, program), environment or {})


# How many rollout workers the waiting samples occupy. Pure: counts and times in, a count out.


class Demand:
    """More workers are wanted at once; fewer only after they were enough for `placement.idle_s`, because every step
    ends with few samples, and the next one begins with many."""

    def __init__(self, config: Config, now: float) -> None:
        placement = config.placement
        self._least, self._most, self._idle_s = placement.min, placement.max, placement.idle_s
        self._each = config.rollout.max_concurrency
        self._seen = deque([(now, config.rollout.workers)])  # times and needs, largest first

    def wanted(self, samples: int, now: float) -> int:
        """`samples`: waiting or being generated."""
        need = min(self._most, max(self._least, -(-samples // self._each)))
        while self._seen and (self._seen[-1][1] <= need):
            self._seen.pop()
        self._seen.append((now, need))
        while self._seen[0][0] < now - self._idle_s:
            self._seen.popleft()
        return self._seen[0][1]
