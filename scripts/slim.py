"""Writes requirements/slim.txt: the part of requirements/cpu.txt that broker, store and dashboard need.

These are the base dependencies of pyproject.toml, with their own, and `tokenizers` without its dependencies: the
dashboard only decodes tokens with it. `python scripts/slim.py`.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINNED, SLIM = ROOT / "requirements" / "cpu.txt", ROOT / "requirements" / "slim.txt"
ALONE = ("tokenizers",)
HEAD = "# What broker, store and dashboard need: a part of cpu.txt, written by `python scripts/slim.py`.\n"


def pins(file: Path) -> dict[str, str]:
    """Canonical name -> line."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(line.partition("==")[0]): line for line in lines}


def needed() -> set[str]:
    """Canonical names of the base dependencies and of their dependencies on this platform."""
    found: set[str] = set()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            wanted += requires(name) or []
    return found


def page() -> str:
    """The file's text. Raises `KeyError` with a name that cpu.txt does not pin."""
    pinned = pins(PINNED)
    lines = [pinned[name] for name in needed() | set(ALONE)]
    return HEAD + "".join(f"{line}\n" for line in sorted(lines, key=str.lower))


if __name__ == "__main__":
    SLIM.write_text(page())
