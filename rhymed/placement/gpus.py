"""The GPUs of a run's machines: found by `nvidia-smi`, or assumed from a text such as `8x H100 80GB`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Literal

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.text import counted

GIB, GB = 1 << 30, 10**9
PATIENCE_S = 10.0
MOST = 1 << 16  # GPUs that are assumed
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.total", "--format=csv,noheader,nounits")
VISIBLE = "CUDA_VISIBLE_DEVICES"
EXAMPLES = "8x H100 80GB, or 4 nodes of 8x H100 80GB"
NODES = re.compile(r"\s*(\d+)\s+nodes?\s+of\s+(.+)", re.IGNORECASE)
GROUP = re.compile(r"\s*(?:(\d+)\s*x\s*)?([a-z].*?)\s+(\d{1,9}(?:\.\d+)?)\s*(GB|GiB)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    kind: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.kind} ({self.bytes / GIB:.0f} GiB)"


@dataclass(frozen=True)
class Inventory:
    """`nodes`: the GPUs of each machine. `names`: of the first machine's, for `CUDA_VISIBLE_DEVICES`."""

    nodes: tuple[tuple[Gpu, ...], ...]
    names: tuple[str, ...] = ()

    @property
    def gpus(self) -> list[Gpu]:
        return [gpu for node in self.nodes for gpu in node]

    @property
    def kinds(self) -> list[Gpu]:
        """Each once, the smallest first."""
        return sorted(set(self.gpus), key=lambda gpu: (gpu.bytes, gpu.kind))

    def alike(self, nodes: int) -> Inventory:
        """With further machines like this one, of which only this one was looked at."""
        return Inventory(self.nodes * max(1, nodes), self.names)

    def __str__(self) -> str:
        each = [_counted(node) for node in self.nodes]
        if len(each) == 1 or len(set(each)) > 1:
            return "; ".join(each)
        return f"{len(each)} nodes of {each[0]}"


def parse(text: str) -> Inventory:
    """`[N nodes of] [N x] KIND MEMORY`, several kinds of a node with `+`. Raises `ConfigError`."""
    nodes = NODES.fullmatch(text)
    count, node = (int(nodes[1]), nodes[2]) if nodes else (1, text)
    gpus: list[Gpu] = []
    for part in node.split("+"):
        group = GROUP.fullmatch(part)
        if group is None:
            raise ConfigError(f"--assume {text!r}: {part.strip()!r} is not understood; write e.g. {EXAMPLES}")
        if int(group[1] or 1) * count > MOST:
            raise ConfigError(f"--assume {text!r}: more than {MOST} GPUs; write e.g. {EXAMPLES}")
        if not (size := int(float(group[3]) * GIB)):  # an 80 GB GPU has about 80 GiB
            raise ConfigError(f"--assume {text!r}: {part.strip()!r} has no memory; write e.g. {EXAMPLES}")
        gpus += [Gpu(group[2], size)] * int(group[1] or 1)
    if not gpus or not count:
        raise ConfigError(f"--assume {text!r} has no GPU; write e.g. {EXAMPLES}")
    return Inventory((tuple(gpus),) * count)


def here(environment: Mapping[str, str] = os.environ) -> Inventory | None:
    """As `listed`; None also with a torch that was built for processors."""
    return None if torch_is_for_cpus() else listed(environment)


def listed(environment: Mapping[str, str] = os.environ) -> Inventory | None:
    """This machine's GPUs that `CUDA_VISIBLE_DEVICES` leaves; None: it has none, or no `nvidia-smi`."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return read(done.stdout, environment.get(VISIBLE))


def torch_is_for_cpus() -> bool:
    """The installed torch was built without GPUs. Does not import it."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version("torch").endswith("+cpu")
    return False


def read(listing: str, visible: str | None = None) -> Inventory | None:
    """From the output of `QUERY`. `visible`: indices or uuids that this process may use; None: all.

    A GPU that shares the host's memory has `[N/A]` as its own. Nothing can be estimated for it, so it is left out.
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in listing.splitlines() if line.count(",") == 3]
    named = [rows[place] for place in chosen(visible, [uuid for _, uuid, _, _ in rows])]
    found = {index: Gpu(name, int(mib) << 20) for index, _, name, mib in named if mib.isdecimal()}
    return Inventory((tuple(found.values()),), tuple(found)) if found else None


def chosen(visible: str | None, uuids: Sequence[str]) -> list[int]:
    """Which of these devices `CUDA_VISIBLE_DEVICES` leaves; None: all. As for CUDA, an entry is an index or the start
    of one device's uuid, and an entry that names no device ends the list. Slices of a device (MIG) count as none."""
    if visible is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            named = [int(entry)] if int(entry) < len(uuids) else []
        else:
            named = [index for index, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
        if len(named) != 1 or named[0] in found:
            break
        found += named
    return found


def _counted(node: tuple[Gpu, ...]) -> str:
    kinds = list(dict.fromkeys(node))
    return " + ".join(f"{node.count(kind)} x {kind}" for kind in kinds)


# Which process of a run has which GPUs. Pure.
#
# The trainer's ranks take the first `trainer.gpus` of each of the first `trainer.nodes` machines. Engines take the
# next ones, each `tensor_parallel x pipeline_parallel` of one machine; with `schedule.colocate` they begin at the
# first GPU.


@dataclass(frozen=True)
class Seat:
    """GPUs of one process, or of the trainer's ranks on one machine."""

    name: str
    node: int
    gpus: tuple[int, ...]  # of that machine, from 0


def trains_on_gpus(config: Config) -> bool:
    return config.trainer.engine == "torch" and config.trainer.device != "cpu" and config.trainer.steps != 0


def generates_on_gpus(config: Config) -> bool:
    return config.rollout.engine == "vllm"


def seats(config: Config, inventory: Inventory) -> list[Seat]:
    """Of all that fit; `problems` names what does not."""
    trainer, rollout = config.trainer, config.rollout
    taken: list[Seat] = []
    if trains_on_gpus(config):
        for node in range(min(trainer.nodes, len(inventory.nodes))):
            if trainer.gpus <= len(inventory.nodes[node]):
                taken.append(Seat("trainer", node, tuple(range(trainer.gpus))))
    if not generates_on_gpus(config):
        return taken
    first, number = {seat.node: len(seat.gpus) for seat in taken}, 0
    reached = inventory.nodes[:1] if inventory.names else inventory.nodes  # `rhymed run` starts processes here only
    for node, gpus in enumerate(reached):
        start = 0 if config.schedule.colocate else first.get(node, 0)
        while number < rollout.workers and start + rollout.engine_gpus <= len(gpus):
            taken.append(Seat(f"rollout-{number}", node, tuple(range(start, start + rollout.engine_gpus))))
            start, number = start + rollout.engine_gpus, number + 1
    return taken


def problems(config: Config, inventory: Inventory) -> Iterator[str]:
    """Why the run's processes do not get their GPUs."""
    trainer, rollout, node = config.trainer, config.rollout, min(map(len, inventory.nodes))
    if len(inventory.kinds) > 1:
        kinds = " and ".join(map(str, inventory.kinds))
        yield (
            f"GPUs of several kinds ({kinds}): ranks that work together would wait for the slowest, and memory is"
            f" counted for all alike: choose those of one kind by {VISIBLE}, or start workers on the others yourself"
        )
    if trains_on_gpus(config) and (trainer.gpus > node or trainer.nodes > len(inventory.nodes)):
        yield (
            f"trainer.nodes x trainer.gpus = {trainer.nodes} x {trainer.gpus}, but there {_are(inventory)}: more"
            " ranks than devices; lower them"
        )
    if not generates_on_gpus(config):
        return
    if rollout.engine_gpus > node:
        yield (
            f"rollout.tensor_parallel x pipeline_parallel = {rollout.tensor_parallel} x {rollout.pipeline_parallel}"
            f" GPUs for one engine, but a machine has {node}: lower one of them"
        )
        return
    placed = sum(seat.name.startswith("rollout-") for seat in seats(config, inventory))
    if placed < rollout.workers:
        yield (
            f"rollout.workers = {rollout.workers} engines of {counted(rollout.engine_gpus, 'GPU')} each, but only"
            f" {placed} find GPUs ({inventory}): {_room_for_engines(config, placed)}"
        )


def _room_for_engines(config: Config, placed: int) -> str:
    """What to change so that all engines find GPUs."""
    cures = [f"lower rollout.workers to {placed}"] if placed else []
    cures += ["lower rollout.tensor_parallel"] if config.rollout.tensor_parallel > 1 else []
    if config.schedule.colocate or not trains_on_gpus(config):
        cures.append("add GPUs")
    else:
        cures += ["lower trainer.gpus"] if config.trainer.gpus > 1 else []
        cures += ["add GPUs for engines", "set schedule.colocate = true"]
    return ", or ".join(cures)


def visible(config: Config, inventory: Inventory | None) -> dict[str, dict[str, str]]:
    """Environment of each process on this machine, by its name; empty without GPUs."""
    if inventory is None or not inventory.names:
        return {}
    here = [seat for seat in seats(config, inventory) if seat.node == 0]
    found = {seat.name: {VISIBLE: ",".join(inventory.names[gpu] for gpu in seat.gpus)} for seat in here}
    if not trains_on_gpus(config) and config.trainer.device != "cuda":
        found["trainer"] = {VISIBLE: ""}  # without a seat it would take an engine's memory
    return found


def _are(inventory: Inventory) -> str:
    return f"{'is' if len(inventory.gpus) == 1 else 'are'} {inventory}"


# How weights reach the engines on the trainer's machine: a pure function of settings and placement.
#
# Engines on other machines get slices over TCP (`rhymed_workers.weights`). An engine that cannot use what is chosen
# takes the file, which every version has.

NOT_SHARED = (
    "net.transport = 'ipc' has no effect: engines take the file in shared memory, unless one rank trains all weights"
    " (no LoRA), and vLLM shares its GPU (schedule.colocate) or both are on processors"
)


def transport(config: Config) -> Literal["file", "ipc"]:
    trainer = config.trainer
    whole = trainer.engine == "torch" and trainer.lora is None and trainer.world == 1
    shared = config.rollout.engine == "vllm" and (config.schedule.colocate or not trains_on_gpus(config))
    return "ipc" if config.net.transport == "ipc" and whole and shared else "file"
