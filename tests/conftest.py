"""Fixtures that several test modules share: a real model small enough to train in a test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rhymed.core.service.retry import WAITS

# Several tests run at the same time: threads of torch and numpy would spin for the cores that they share.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # what a property takes is the machine's, not its own


LONGEST = (
    "workers/engines/test_runners",
    "system/test_readme",
    "system/test_ranks",
    "system/test_lora",
    "system/test_loop",
    "workers/trainer/ranks/test_teacher",
    "workers/trainer/ranks/test_lora",
    "workers/trainer/ranks/test_ranks",
    "system/test_onoff",
    "workers/sandbox/test_jail",
    "system/test_mistakes",
    "workers/engines/test_vllm",
    "workers/engines/test_places",
    "workers/engines/test_samplers",
    "histospec/test_exact",
    "histospec/test_v2_async",
    "histospec/test_v2",
    "histospec/test_v2_ranks",
    "bench_v2/test_bench",
    "benchmarks/test_gpu",
    "system/test_teacher",
    "system/test_vllm",
    "check/devices/test_ranks",
    "stress/test_machines",
    "stress/test_refill",
    "stress/test_slurm",
    "histospec/sampling/test_kernels",
    "system/test_critic",
    "scripts/test_wheel",
    "system/test_pages",
    "hostile/test_remove",
    "hostile/protocol/test_protocol",
    "system/test_colocate",
    "workers/trainer/teacher/test_vllm",
    "stress/test_chaos",
    "stress/test_agents",
    "system/test_turns",
    "hostile/disk/test_storms",
    "hostile/disk/test_cuts",
    "start/api/test_training",
    "show/dashboard/test_page",
    "workers/reward/test_pool",
    "workers/sessions/test_programs",
    "system/test_programs",
)
"""Files of half a minute and more, in `make test` or `make test-thorough`, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files go first, then those with slow tests: no worker begins one when the others are done.

    xdist keeps this order with `--no-loadscope-reorder`; else files with few tests, which are the long ones, go last.
    """
    root = Path(__file__).parent
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    place = {root / f"{name}.py": number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (place.get(item.path, len(place)), -slow[item.path]))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m thorough` imports files with such tests only: each worker would spend 20 seconds of CPU on the others."""
    if config.option.markexpr == "thorough" and collection_path.match("test_*.py"):
        return "thorough" not in collection_path.read_text() or None
    return None


@pytest.fixture(scope="session", autouse=True)
def sockets() -> Iterator[None]:
    """Sockets of the tests lie in one folder, with a path short enough for them, that goes with the session."""
    folder = tempfile.mkdtemp(prefix="rhymed-tests-", dir="/tmp")
    patch = pytest.MonkeyPatch()
    patch.setenv("TMPDIR", folder)
    patch.setattr(tempfile, "tempdir", folder)
    patch.setenv("RHYMED_NET__HTTP", "")  # no dashboards, but where a test asks for one
    patch.setenv("RHYMED_RUN__REPORT", "false")  # no reports, likewise: each costs seconds
    yield
    patch.undo()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def waits() -> None:
    """A process reports its longest wait: none is of a test before, whose worker was closed while it waited."""
    WAITS._open.clear()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import write_tiny_model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="session")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.tiny import write_sharp_model

    folder = tmp_path_factory.mktemp("sharp")
    write_sharp_model(tiny_model, folder)
    return folder
