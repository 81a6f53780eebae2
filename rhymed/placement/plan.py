"""What a run consists of, wherever its processes are placed: configuration -> seats. Pure.

The list that `rhymed run` starts on one machine (`commands`), the actors of Ray, and the files for compose, Slurm and
Kubernetes come from these seats, so there is one answer to what a run needs. A seat stands for equal processes. Hosts
are not known here: `addresses` takes their names, which may be placeholders that a shell or an engine fills in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from rhymed.config import Config, Environment, Reward
from rhymed.errors import ConfigError
from rhymed.gpus.placement import generates_on_gpus, trains_on_gpus
from rhymed.run.layout import store_name
from rhymed.wire.keys import PUBLIC, KeyRole, secret_name

Name: TypeAlias = Literal["store", "broker", "trainer", "rollout", "environment", "reward"]
Kind: TypeAlias = Literal["pinned", "gang", "elastic"]
Files: TypeAlias = Literal["disk", "shared", "logs"]

PROGRAM = ("rhymed",)
STORE_PORT, BROKER_PORT, WEIGHTS_PORT, RANKS_PORT = 5551, 5550, 5552, 5553


@dataclass(frozen=True)
class Seat:
    """Equal processes of a run. Requirements are those of one process.

    `kind`: pinned, `count` processes that stay beside their disk, on one machine; gang, one process on each of
    `count` machines, which all end with any of them and may start again on others; elastic, any number, each of which
    may end, move, or join at any time.
    `files`: what it needs of the run's folder. disk: the folder, on a disk of its own machine; shared: the same
    folder, for checkpoints, which may be reached over the network; logs: a folder of its own is enough.
    """

    name: Name
    kind: Kind
    files: Files
    arguments: tuple[str, ...]  # of `rhymed`, before the configuration's file
    count: int = 1  # processes that the configuration asks for; with a gang: machines
    gpus: int = 0  # all on one machine
    cpus: float = 1.0
    memory_gib: float = 0.0  # 0: not stated
    ports: Mapping[str, int] = field(default_factory=dict)  # key of [net] -> TCP port that it serves
    beside: Name | None = None  # it shares the GPUs of that seat, so it needs the same machine and none of its own

    @property
    def role(self) -> KeyRole:
        """Whose secret key each process needs; it needs no other."""
        return self.name

    @property
    def secrets(self) -> tuple[str, str]:
        """Files of `net.keys` that each process needs."""
        return (PUBLIC, secret_name(self.role))

    def process(self, number: int = 0) -> str:
        """A process's name, unique in the run: `store`, `store-1`, `trainer`, `trainer-node-1`, `rollout-0`."""
        if self.name == "store":
            return store_name(number)
        if self.kind == "elastic":
            return f"{self.name}-{number}"
        return f"{self.name}-node-{number}" if number else self.name

    def processes(self) -> list[str]:
        return [self.process(number) for number in range(self.count)]

    def command(
        self, config: str | Path, number: int | None = None, program: Sequence[str] = PROGRAM, options: str = ""
    ) -> list[str]:
        """One process's. `number`: its own, below `count`, for a name that stays; None: named by its host and process
        id, for engines that start as many copies as wanted. `options`: further ones, e.g. `--stay` of the broker."""
        argv = [*program, *self.arguments, *options.split()]
        if self.name == "store" and self.count > 1:
            argv += ["--shard", str(number or 0)]
        if number and self.kind == "gang":
            argv += ["--node", str(number)]
        if self.arguments[0] == "worker" and number is not None:
            argv += ["--name", self.process(number)]
        return [*argv, str(config)]

    def health(self, config: str | Path, program: Sequence[str] = PROGRAM) -> list[str]:
        """A probe for container engines: exit status 0 if a process of this seat on the same host is healthy."""
        return [*program, "health", self.name, str(config)]


@dataclass(frozen=True)
class Hosts:
    """Where others reach the servers: names, addresses or placeholders, e.g. `${HEAD}`."""

    store: str
    broker: str
    trainer: str  # with several nodes: the first one's


def seats(config: Config, *, gpus: bool = True) -> tuple[Seat, ...]:
    """In the order in which they start. `gpus`: whether the machines have any."""
    asked, memory = config.placement.cpus, config.placement.memory
    trainer, rollout, shards = config.trainer, config.rollout, config.store.shards
    ports = {"weights": WEIGHTS_PORT} | ({"ranks": RANKS_PORT} if trainer.nodes > 1 else {})
    shares = gpus and config.schedule.colocate and generates_on_gpus(config)
    return (
        Seat("store", "pinned", "disk", ("store",), shards, 0, asked.store, memory.store, {"store": STORE_PORT}),
        Seat("broker", "pinned", "disk", ("broker",), 1, 0, asked.broker, memory.broker, {"broker": BROKER_PORT}),
        Seat(
            "trainer",
            "gang",
            "shared",
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
            "logs",
            ("worker", "--role", "rollout"),
            count=rollout.workers,
            gpus=rollout.engine_gpus if gpus and generates_on_gpus(config) else 0,
            cpus=asked.rollout,
            memory_gib=memory.rollout,
            beside="trainer" if shares else None,
        ),
        *_caged(config),
    )


def _caged(config: Config) -> Iterator[Seat]:
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
            yield Seat(name, "elastic", "logs", arguments, section.workers, 0, cpus, memory_gib)


def check_one_store(config: Config, what: str) -> None:
    """For placements in which each process has a host of its own. Raises `ConfigError`."""
    if config.store.shards > 1:
        raise ConfigError(
            f"store.shards = {config.store.shards}: {what} have one store; set store.shards = 1, or start the run"
            " with `rhymed run` on one machine, which workers of others may join"
        )


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
