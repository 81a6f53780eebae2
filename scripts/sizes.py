"""Checks sizes: `python -m scripts.sizes` lists every file, function and folder that is too large.

Divide a crowded folder by the purpose of its files, not by line count. Tests have no limits.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOPS = ("rhymed", "store/rhymed_store", "broker/rhymed_broker", "workers/rhymed_workers")
FILE_LINES, FUNCTION_LINES, FOLDER_FILES, FOLDER_DEPTH = 300, 46, 12, 2


def sources(root: Path = ROOT) -> list[Path]:
    """Python and JavaScript files of the product, without vendored ones."""
    found = [file for top in TOPS for kind in ("*.py", "*.js") for file in (root / top).rglob(kind)]
    return sorted(file for file in found if "vendor" not in file.parts)


def too_large(files: list[Path], root: Path = ROOT) -> Iterator[str]:
    """One line per violation."""
    folders: Counter[Path] = Counter()
    for file in files:
        name, text = file.relative_to(root), file.read_text()
        lines = len(text.splitlines())
        if lines > FILE_LINES:
            yield f"{name}: {lines} lines, at most {FILE_LINES}"
        if file.suffix == ".py":
            yield from (f"{name}:{line}: {what}" for line, what in _functions(text))
            depth = len(name.parts) - len(next(Path(top).parts for top in TOPS if name.is_relative_to(top))) - 1
            if depth > FOLDER_DEPTH:
                yield f"{name}: {depth} folders below its package, at most {FOLDER_DEPTH}"
        if not file.name.startswith("__"):
            folders[name.parent] += 1
    yield from (f"{folder}/: {n} files, at most {FOLDER_FILES}" for folder, n in folders.items() if n > FOLDER_FILES)


def _functions(text: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {lines} lines, at most {FUNCTION_LINES}"


if __name__ == "__main__":
    violations = list(too_large(sources()))
    print("\n".join(violations) or f"{len(sources())} files, none too large")
    sys.exit(bool(violations))
