"""Writes the list of folders in docs/architecture.md from the docstring of each package: `make docs`."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
START = "## Folders\n"
TOPS = ("rhymed", "store/rhymed_store", "broker/rhymed_broker", "workers/rhymed_workers")


def section() -> str:
    """One line a folder: the first paragraph of its docstring."""
    lines = [START]
    for top in TOPS:
        for file in sorted((ROOT / top).rglob("__init__.py")):
            about = ast.get_docstring(ast.parse(file.read_text())) or ""
            lines.append(f"* `{file.parent.relative_to(ROOT)}/`: {' '.join(about.split(chr(10) * 2)[0].split())}")
    return "\n".join(lines) + "\n"


def page() -> str:
    return PAGE.read_text().partition(START)[0] + section()


if __name__ == "__main__":
    PAGE.write_text(page())
