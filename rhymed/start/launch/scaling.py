"""The workers of a living run, of which there may be more or fewer than at its start.

`rhymed scale` writes the wanted numbers to a file of the run's folder. With `placement.max`, the waiting samples
decide about rollout workers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec

from rhymed.core import atomic
from rhymed.core.config import Config
from rhymed.core.config.base import MOST_PROCESSES
from rhymed.core.errors import ConfigError
from rhymed.core.messages import Queues
from rhymed.core.run.layout import RunLayout
from rhymed.placement import gpus
from rhymed.placement.gpus import problems, visible
from rhymed.placement.plan import Demand, command_of, seats
from rhymed.start.launch.supervisor import Supervisor

Elastic: TypeAlias = Literal["rollout", "environment", "reward"]
ELASTIC: tuple[Elastic, ...] = get_args(Elastic)
LOOK_S = 0.5


def file_of(folder: Path) -> Path:
    return folder / "scale.json"


def ask(folder: Path, wanted: Mapping[Elastic, int]) -> None:
    """For the process that supervises the run in this folder. Numbers that are not named stay."""
    atomic.write(file_of(folder), msgspec.json.encode({**asked(folder), **wanted}) + b"\n")


def asked(folder: Path) -> dict[Elastic, int]:
    """Empty: nothing, or what is there cannot be understood."""
    try:
        return msgspec.json.decode(file_of(folder).read_bytes(), type=dict[Elastic, int])
    except (OSError, msgspec.DecodeError):
        return {}


def withdraw(folder: Path, role: Elastic, number: int) -> None:
    """This request was refused, and may be made again; what was asked for since stays."""
    left = asked(folder)
    if left.get(role) == number:
        del left[role]
        atomic.write(file_of(folder), msgspec.json.encode(left) + b"\n")


def parse(words: list[str], config: Config) -> dict[Elastic, int]:
    """`rollout=12`. Raises `ConfigError`."""
    wanted: dict[Elastic, int] = {}
    for word in words:
        role, _, number = word.partition("=")
        if role not in ELASTIC or not number.isdecimal() or int(number) > MOST_PROCESSES:
            raise ConfigError(
                f"{word!r}: write {' or '.join(f'{role}=N' for role in ELASTIC)}, with N from 0 to {MOST_PROCESSES}"
            )
        if role == "rollout" and config.placement.max:
            raise ConfigError(
                f"the run has between {config.placement.min} and {config.placement.max} rollout workers, as many as"
                " the waiting samples occupy (placement.min, placement.max): resume it without placement.max to"
                " choose their number"
            )
        if role == "environment" and not config.environment.active:
            raise ConfigError("the run has no environment: its workers would have nothing to do")
        wanted[role] = int(number)
    return wanted


class Scaling:
    def __init__(
        self, config: Config, layout: RunLayout, supervisor: Supervisor, report: Callable[[str], None]
    ) -> None:
        self._config, self._layout, self._supervisor, self._report = config, layout, supervisor, report
        self._now: dict[Elastic, int] = {
            "rollout": config.rollout.workers,
            "environment": config.environment.workers if config.environment.active else 0,
            "reward": config.reward.workers,
        }
        self._wanted = dict(self._now)
        self._demand = Demand(config, time.monotonic()) if config.placement.max else None
        file_of(layout.folder).unlink(missing_ok=True)  # of an earlier start

    def see(self, queues: Queues) -> None:
        """A snapshot of the run: with autoscaling, its samples are the demand for rollout workers."""
        if self._demand is not None:
            samples = queues.queues.get("waiting", 0) + queues.queues.get("running", 0)
            self._wanted["rollout"] = self._demand.wanted(samples, time.monotonic())

    async def follow(self) -> None:
        """Changes the numbers of workers as wanted, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self._wanted |= asked(self._layout.folder)
            for role in ELASTIC:
                if (wanted := self._wanted[role]) != self._now[role]:
                    await self._change(role, wanted)

    async def _change(self, role: Elastic, wanted: int) -> None:
        before, self._now[role] = self._now[role], wanted
        if wanted < before:
            self._report(f"{role} workers: {before} -> {wanted}; what the others hold is given to those that stay")
            await self._supervisor.dismiss({f"{role}-{number}" for number in range(wanted, before)})
            return
        config = self._config.model_copy(
            update={role: getattr(self._config, role).model_copy(update={"workers": wanted})}
        )
        environments, why = await asyncio.to_thread(self._devices, config)
        if why:
            self._report(f"{role} workers: still {before}, not {wanted}: {why}")
            self._now[role] = self._wanted[role] = before
            withdraw(self._layout.folder, role, wanted)
            return
        self._report(f"{role} workers: {before} -> {wanted}")
        seat = next(seat for seat in seats(config) if seat.name == role)
        for number in range(before, wanted):
            environment = environments.get(seat.process(number))
            self._supervisor.add(command_of(seat, number, self._layout.config, environment))

    def _devices(self, config: Config) -> tuple[dict[str, dict[str, str]], str]:
        """Environments of processes on this machine, and why there are too few GPUs for them."""
        if config.placement.engine != "local" or (found := gpus.here()) is None:
            return {}, ""
        return visible(config, found), next(problems(config, found), "")
