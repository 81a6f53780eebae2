"""The CUDA builds of torch and vLLM with stand-ins for the driver, as `make test-cuda-imports` runs it: all that a
run on a GPU imports, and what vLLM makes of every configuration, up to where a driver is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import write_tiny_model

ROOT = Path(__file__).parents[2]
if not os.environ.get("RHYMED_STAND_INS"):
    pytest.skip("`make test-cuda-imports` runs it, in an environment of its own", allow_module_level=True)
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
SMI = """#!/bin/sh
i=0; while [ $i -lt ${STAND_IN_GPUS:-1} ]; do
echo "$i, GPU-00000000-0000-0000-0000-$(printf %012d $i), NVIDIA H100 80GB HBM3, 81920"; i=$((i + 1)); done
"""
NODES = {"1x24gb": 1, "1x80gb": 1, "8x80gb": 8, "70b": 8}  # GPUs of a machine, by configuration


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the stand-ins. The libraries that vLLM's are linked to are loaded by
    torch before them, from their packages."""
    folder = tmp_path_factory.mktemp("driver")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        gcc = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", folder / name]
        subprocess.run([*gcc, Path(__file__).with_name("driver.c")], check=True)
    (folder / "nvidia-smi").write_text(SMI)
    (folder / "nvidia-smi").chmod(0o755)
    here = {name: value for name, value in os.environ.items() if not name.startswith(("VLLM_", "CUDA_"))}
    return here | {
        "LD_LIBRARY_PATH": str(folder),
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": ":".join(str(ROOT / part) for part in ("", "workers", "broker", "store")),
        "HF_HUB_OFFLINE": "1",
    }


def probe(driver: dict[str, str], module: str, *words: str, gpus: int = 1) -> Any:
    """The last line that a process prints, which is JSON."""
    command = [sys.executable, "-m", module, *words]
    environment = driver | {"STAND_IN_GPUS": str(gpus)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def test_all_that_a_run_imports_can_be_imported(driver: dict[str, str]) -> None:
    assert probe(driver, "tests.cuda.probe", "imports") == {}


@pytest.mark.parametrize("name", sorted(file.stem for file in (ROOT / "configs/gpu").glob("*.toml")))
def test_vllm_accepts_every_configuration_for_a_gpu(name: str, driver: dict[str, str], tmp_path: Path) -> None:
    made = probe(driver, "tests.cuda.probe", f"configs/gpu/{name}.toml", str(tmp_path), gpus=NODES[name])
    assert made["cuda"]
    assert not made["runner2"]  # keyed sampling and drafts are parts of the first
    assert made["graphs"] == "FULL_AND_PIECEWISE"
    assert (made["drafted"] + 1) % 32 == 0  # a step's graphs are captured for multiples of it


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_has_our_parts_however_its_process_was_started(method: str, driver: dict[str, str]) -> None:
    assert probe(driver, "tests.workers.engines.started", method) == {"registered": True, "keyed": True}


def test_a_run_ends_with_one_sentence_where_a_driver_is_needed(driver: dict[str, str], tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", positions=4096)
    command = ["run", "configs/gpu/1x80gb.toml", "--plain"]
    options = {
        "run.folder": tmp_path / "runs",
        "model.path": tmp_path / "model",
        "data.path": tmp_path / "rows.jsonl",
        "eval.every": 0,
        "eval.datasets": "[]",
    }
    (tmp_path / "rows.jsonl").write_text('{"question": "1 + 1", "answer": "2"}\n' * 64)
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    done = subprocess.run(
        [sys.executable, "-m", "rhymed", *command, *words],
        env=driver,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1100,
    )
    said = f"{done.stdout}\n{done.stderr}"
    assert done.returncode != 0
    assert "Traceback" not in said, said[-6000:]
    (why,) = (line for line in said.splitlines() if line.startswith("run failed: "))
    assert " ended 2 times: " in why, said[-6000:]  # engine or trainer, whichever needs the driver first
    assert "Found no NVIDIA driver" in why, said[-6000:]
