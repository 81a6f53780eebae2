"""Writes requirements/slim.txt: the part of requirements/cpu.txt that broker, store and dashboard need.

These are the base dependencies of pyproject.toml, with their own, and `tokenizers` without its dependencies: the
dashboard only decodes tokens with it. `make requirements` does it, or `python -m scripts.slim`. With names, as
`python -m scripts.slim pytest`, it prints these and that part of cpu.txt, and writes no file.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import requires

from packaging.requirements import Requirement

from scripts.supply.pins import FOLDER, ROOT, canonical, page, read

PINNED, SLIM = FOLDER / "cpu.txt", FOLDER / "slim.txt"
ALONE = ("tokenizers",)
HEAD = "What broker, store and dashboard need: a part of cpu.txt, written by `make requirements`."


def needed(more: Iterable[str] = ()) -> set[str]:
    """Canonical names of the base dependencies, of `more`, and of their dependencies on this platform."""
    found: set[str] = set()
    wanted = [*tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"], *more]
    while wanted:
        requirement = Requirement(wanted.pop())
        name = canonical(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            wanted += requires(name) or []
    return found


def slim(more: Iterable[str] = ()) -> str:
    """The file's text, with `more` packages. Raises `KeyError` with a name that cpu.txt does not pin."""
    pinned = read(PINNED)
    return page(HEAD, {name: pinned[name] for name in needed(more) | set(ALONE)})


if __name__ == "__main__":
    if sys.argv[1:]:
        print(slim(sys.argv[1:]), end="")
    else:
        SLIM.write_text(slim())
