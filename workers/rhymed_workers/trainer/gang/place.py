"""The device and the threads of a rank, and what is wrong with the number of ranks on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from rhymed.config import Config, Trainer
from rhymed.errors import ConfigError
from rhymed.run.layout import layout_of
from rhymed_workers.trainer.gang.size import Seat, too_few


def device_of(trainer: Trainer, seat: Seat) -> Any:
    """Raises `ConfigError` if there are fewer devices than ranks."""
    if trainer.device == "cpu":
        return torch.device("cpu")
    found = torch.cuda.device_count()
    if found < seat.each:
        raise ConfigError(too_few(seat.each, found))
    return torch.device("cuda", seat.local)


def token_of(config: Config, generation: str) -> Path:
    """A file of rank 0 while ranks arrive, by which those of other nodes see that they share its folder."""
    return layout_of(config).folder / f".gang-{generation}"


def check_folder(config: Config, seat: Seat, generation: str) -> None:
    """Raises `ConfigError` on a node without the run's folder: it could write no part of a checkpoint."""
    if seat.node and not token_of(config, generation).exists():
        raise ConfigError(
            f"run.folder: {layout_of(config).folder} on node {seat.node} is not the folder of the trainer's node: put"
            " it on a file system that all nodes share"
        )


def threads(trainer: Trainer) -> None:
    """Ranks on one machine share its processors, unless `trainer.threads` is set."""
    if not trainer.threads and trainer.device == "cpu":
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // trainer.ranks_per_node))
