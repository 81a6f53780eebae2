"""What does not fit on a GPU, each with what to change. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from rhymed.check.devices import cures
from rhymed.check.devices.cures import Fits, advice
from rhymed.check.devices.needs import EngineNeeds, TrainerNeeds, engine_needs, tensor_sizes, trainer_needs
from rhymed.check.devices.shape import Shape
from rhymed.check.memory import Needs
from rhymed.config import Config
from rhymed.gpus.transport import choose
from rhymed.text import size_of


@dataclass(frozen=True)
class Room:
    """What settings need of one GPU. `needs`: of a whole run with these settings, see `memory.needs`."""

    needs: Callable[[Config], Needs]
    shape: Shape
    parameters: int
    gpu: int  # bytes of the smallest one
    most: int  # GPUs of a machine

    def trainer(self, config: Config) -> TrainerNeeds:
        return trainer_needs(self.needs(config), choose(config).transport)

    def engine(self, config: Config) -> EngineNeeds:
        return engine_needs(config, self.shape, self.parameters)

    def trains(self, config: Config) -> bool:
        return self.trainer(config).most <= self.gpu

    def generates(self, config: Config) -> bool:
        """A sample at full length."""
        engine = self.engine(config)
        return engine.cache(config.rollout.gpu_memory * self.gpu) >= engine.sequence

    def shares(self, config: Config) -> bool:
        """Engines that are awake leave room for a colocated trainer."""
        return self.trainer(config).waiting + config.rollout.gpu_memory * self.gpu <= self.gpu

    def sleeps(self, config: Config) -> bool:
        """Engines that sleep leave room for a colocated trainer."""
        return self.trainer(config).most + self.engine(config).asleep <= self.gpu


def trainer_misfits(config: Config, room: Room) -> Iterator[str]:
    if not room.trains(config):
        most, cure = size_of(room.trainer(config).most), advice(config, cures.TRAINER, room.trains)
        yield f"the trainer needs {most} on each GPU, which has {size_of(room.gpu)}: {cure}"


def engine_misfits(config: Config, room: Room) -> Iterator[str]:
    if room.generates(config):
        return
    engine, share = room.engine(config), config.rollout.gpu_memory
    changes = (*cures.ENGINE, cures.wider(tensor_sizes(room.shape, room.most)))
    cure = advice(config, changes, partial(_beside, room) if config.schedule.colocate else room.generates)
    if (cache := engine.cache(share * room.gpu)) <= 0:
        yield (
            f"the model does not fit on an engine's GPU: weights {size_of(engine.weights)} and a pass"
            f" {size_of(engine.working)} are more than rollout.gpu_memory = {share:g} of {size_of(room.gpu)}: {cure}"
        )
    else:
        yield (
            f"the KV cache of {size_of(cache)} holds no sample at full length ({size_of(engine.sequence)}): {cure}"
        )


def turn_misfits(config: Config, room: Room) -> Iterator[str]:
    """Of engines and trainer on the same GPUs."""
    if not room.shares(config):
        waiting, share = size_of(room.trainer(config).waiting), config.rollout.gpu_memory
        yield (
            f"schedule.colocate: the trainer keeps {waiting} while engines are awake, so rollout.gpu_memory ="
            f" {share:g} is too much: {_smaller_share(config, room)}"
        )
    if room.trains(config) and not room.sleeps(config):
        most, asleep = room.trainer(config).most, room.engine(config).asleep
        yield (
            f"schedule.colocate: the trainer's {size_of(most)} and sleeping engines' {size_of(asleep)} are more than"
            f" {size_of(room.gpu)}: {advice(config, cures.TRAINER, room.sleeps)}"
        )


def _beside(room: Room, config: Config) -> bool:
    return room.generates(config) and room.shares(config)


def _smaller_share(config: Config, room: Room) -> str:
    left = int(100 * (1 - room.trainer(config).waiting / room.gpu)) / 100
    if left > 0 and room.generates(cures.changed(config, "rollout", gpu_memory=left)):
        return f"set it to at most {left:g}"
    fits: Fits = room.shares
    return advice(config, (cures.half_precision, cures.more_ranks, cures.adapters), fits)
