"""Verbs of the Makefile that decide whether something is skipped or failed, with stand-ins for Python and pip."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
test "$2" = venv || exit 0
mkdir -p "$3/bin"
cat > "$3/bin/pip" <<'END'
#!/bin/sh
case "$*" in *listed.txt*) echo "$ERRORS" >&2; exit 1;; esac
END
chmod +x "$3/bin/pip"
"""


@pytest.mark.parametrize(
    ("errors", "skipped"),
    [
        ("ERROR: Could not find a version\nERROR: No matching distribution found for torch==2.11.0", True),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", False),
        ("ERROR: Could not install packages due to an OSError: No space left on device", False),
    ],
)
def test_cuda_imports_are_skipped_only_where_the_index_lacks_the_builds(
    tmp_path: Path, errors: str, skipped: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    command = ["make", "--no-print-directory", "test-cuda-imports", f"VENV={tmp_path / 'venv'}", f"PYTHON={python}"]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "ERRORS": errors}, capture_output=True, text=True, check=False
    )
    assert errors in found.stderr, "what pip says is shown"
    assert (found.returncode == 0) == skipped, found.stderr
    assert found.stdout.splitlines()[-1].startswith("skipped: the package index has no CUDA builds") == skipped


def test_the_files_and_modules_that_verbs_name_are_there() -> None:
    text = (ROOT / "Makefile").read_text()
    paths = [*re.findall(r"(?<![\w./-])tests/[\w/.]+", text), *re.findall(r"^PAGE := (\S+)", text, re.MULTILINE)]
    modules = [name.replace(".", "/") for name in re.findall(r"-m ((?:scripts|tests|benchmarks)[\w.]*)", text)]
    lacking = [path for path in paths if not (ROOT / path).exists()]
    lacking += [
        name for name in modules if not any((ROOT / f"{name}{end}").is_file() for end in (".py", "/__main__.py"))
    ]
    assert len(paths) > 5
    assert len(modules) > 20
    assert not lacking
