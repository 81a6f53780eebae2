"""The GPUs of a run's machines: found by `nvidia-smi`, or assumed from a text such as `8x H100 80GB`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from rhymed.errors import ConfigError

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
    """This machine's GPUs that `CUDA_VISIBLE_DEVICES` leaves; None: it has none, no `nvidia-smi`, or a torch that was
    built for processors."""
    if torch_is_for_cpus():
        return None
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
    found = {index: (uuid, Gpu(name, int(mib) << 20)) for index, uuid, name, mib in rows if mib.isdecimal()}
    if visible is None:
        chosen = list(found)
    else:
        asked = [name.strip() for name in visible.split(",") if name.strip()]
        named = {name: index for index, (uuid, _) in found.items() for name in (index, uuid)}
        chosen = [named[name] for name in asked if name in named]
    if not chosen:
        return None
    return Inventory((tuple(found[index][1] for index in chosen),), tuple(chosen))


def _counted(node: tuple[Gpu, ...]) -> str:
    kinds = list(dict.fromkeys(node))
    return " + ".join(f"{node.count(kind)} x {kind}" for kind in kinds)
