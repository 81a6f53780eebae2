"""The cache of compiled loops."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOOP = """
from {module} import Pair
from rhymed.histospec.jit import native

@native
def added(pair):
    return pair.first + pair.second

print(added(Pair(1, 2)))
"""
PAIR = "from typing import NamedTuple\n\nclass Pair(NamedTuple):\n    first: int\n    second: int\n"


def test_a_cache_whose_types_were_in_a_module_that_is_gone_is_compiled_again(tmp_path: Path) -> None:
    def run(module: str) -> str:
        (tmp_path / f"{module}.py").write_text(PAIR)
        (tmp_path / "loop.py").write_text(LOOP.format(module=module))
        command = [sys.executable, "-B", "-c", "import loop"]  # sources change within the time stamp of a .pyc
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("old") == "3\n"
    (tmp_path / "old.py").unlink()
    assert list(tmp_path.rglob("*.nbi")), "the loop was cached"
    assert run("new") == "3\n"
