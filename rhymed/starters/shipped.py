"""Where the files are that come with rhymed: configurations, examples and lists of tested versions.

In a clone they are folders of the repository; setuptools installs the same folders under `rhymed/shipped/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import rhymed

PACKAGE = Path(rhymed.__file__).parent
PLACES = (PACKAGE / "shipped", PACKAGE.parent)
"""Installed, and in a clone."""


def shipped(name: str) -> Path:
    """The folder `configs`, `examples` or `requirements`. Raises `FileNotFoundError` if the installation lacks it."""
    for place in PLACES:
        if (place / name).is_dir():
            return place / name
    raise FileNotFoundError(f"this installation of rhymed has no folder {name}; install it again")


def configurations() -> dict[str, Path]:
    """Name, such as `quickstart` or `gpu/1x24gb`, and file of every configuration."""
    folder = shipped("configs")
    files = sorted(folder.rglob("*.toml"), key=lambda file: (file.parent != folder, file))
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def about(configuration: Path) -> str:
    """Its first sentence: the comment that it begins with."""
    lines: list[str] = []
    for line in configuration.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines).partition(". ")[0].rstrip(".")


def constraints() -> Iterator[tuple[str, Path]]:
    """Name and file of each list of tested versions, for `pip install -c`."""
    for name in ("cpu", "cuda"):
        yield name, shipped("requirements") / f"{name}.in"
