"""How weights reach the engines on the trainer's machine: a pure function of settings and placement, with its reason.

Engines on other machines get slices over TCP (`rhymed_workers.weights`). An engine that cannot use what is chosen
takes the file, which every version has.
"""

from __future__ import annotations

from typing import NamedTuple

from rhymed.config import Config
from rhymed.gpus.placement import trains_on_gpus
from rhymed.text import counted

UNTRIED = "not tried on a GPU"


class Choice(NamedTuple):
    transport: str  # "file", "ipc" or "broadcast"
    why: str


def choose(config: Config, *, gpu: bool | None = None) -> Choice:
    """`gpu`: the trainer computes on one; None: as its settings say."""
    trainer, rollout = config.trainer, config.rollout
    on_gpu = trains_on_gpus(config) if gpu is None else gpu
    if config.net.transport == "auto":
        return Choice("file", f'the trainer\'s file in shared memory is mapped; net.transport = "ipc" is {UNTRIED}')
    if rollout.engine != "vllm" or trainer.engine != "torch":
        return Choice("file", "only vLLM's engine takes weights from memory, of a trainer with a model")
    if trainer.lora:
        return Choice("file", "adapters are small")
    if trainer.world > 1:
        return Choice("file", "several ranks gather the weights in host memory, where the file is already")
    return _broadcast(config, on_gpu) if config.net.transport == "broadcast" else _ipc(config, on_gpu)


def _ipc(config: Config, on_gpu: bool) -> Choice:
    if on_gpu and not config.schedule.colocate:
        return Choice("file", "engines have other GPUs than the trainer: schedule.colocate = true would share them")
    if not on_gpu:
        return Choice("ipc", "engines map host memory of the trainer, as they would map memory of a GPU")
    gpus = config.rollout.engine_gpus
    ranks = f", its first rank of {gpus}" if gpus > 1 else ""
    return Choice("ipc", f"the engine{ranks} maps memory of the trainer's GPU ({UNTRIED}); the file is the fallback")


def _broadcast(config: Config, on_gpu: bool) -> Choice:
    """Where engines neither come nor go, and all wait for the same version."""
    members = config.rollout.workers * config.rollout.engine_gpus
    if on_gpu and config.schedule.colocate:
        return Choice("file", 'engines share the trainer\'s GPU, where net.transport = "ipc" needs no broadcast')
    if config.schedule.max_staleness or config.schedule.run_ahead:
        return Choice("file", "engines take a version at different times, with max_staleness or run_ahead")
    if not members or config.placement.engine != "local":
        return Choice("file", "a broadcast reaches engines that `rhymed run` starts on the trainer's machine only")
    how = f"by NCCL ({UNTRIED})" if on_gpu else "by gloo"
    return Choice(
        "broadcast", f"the trainer sends to {counted(members, 'rank')} at once {how}; the file is the fallback"
    )
