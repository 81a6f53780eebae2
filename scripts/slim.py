"""Writes requirements/slim.txt: the part of requirements/cpu.txt that broker, store and dashboard need.

These are the base dependencies of pyproject.toml, with their own, and `tokenizers` without its dependencies: the
dashboard only decodes tokens with it. `make requirements` does it, or `python -m scripts.slim`.
"""

from __future__ import annotations

import tomllib
from importlib.metadata import requires

from packaging.requirements import Requirement

from scripts.supply.pins import FOLDER, ROOT, canonical, page, read

PINNED, SLIM = FOLDER / "cpu.txt", FOLDER / "slim.txt"
ALONE = ("tokenizers",)
HEAD = "What broker, store and dashboard need: a part of cpu.txt, written by `make requirements`."


def needed() -> set[str]:
    """Canonical names of the base dependencies and of their dependencies on this platform."""
    found: set[str] = set()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonical(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            wanted += requires(name) or []
    return found


def slim() -> str:
    """The file's text. Raises `KeyError` with a name that cpu.txt does not pin."""
    pinned = read(PINNED)
    return page(HEAD, {name: pinned[name] for name in needed() | set(ALONE)})


if __name__ == "__main__":
    SLIM.write_text(slim())
