"""Writes the list of modules in docs/architecture.md from the first line of each docstring: `make docs`."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
START = "## Modules\n"
PARTS = (
    "rhymed",
    "rhymed/check",
    "rhymed/cli",
    "rhymed/bench",
    "rhymed/history",
    "rhymed/logs",
    "rhymed/report",
    "rhymed/top",
    "rhymed/histospec",
    *(f"{part}/rhymed_{part}" for part in ("broker", "store", "workers")),
)


def section() -> str:
    """One line a module."""
    lines = [START.rstrip()]
    for part in PARTS:
        lines.append(f"\n**{part}/**\n")
        for file in sorted((ROOT / part).glob("*.py")):
            about = ast.get_docstring(ast.parse(file.read_text()))
            if about and file.name != "__init__.py":
                lines.append(f"* `{file.stem}`: {' '.join(about.split(chr(10) * 2)[0].split())}")
    return "\n".join(lines) + "\n"


def page() -> str:
    return PAGE.read_text().partition(START)[0] + section()


if __name__ == "__main__":
    PAGE.write_text(page())
    sys.exit(0)
