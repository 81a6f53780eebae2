"""The GPU part of `python -m benchmarks sampler`, in Triton's interpreter, and what it prints where there is no
GPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import json, warnings
warnings.simplefilter("ignore")
from benchmarks.sampling import gpu
print(json.dumps([gpu.cell(rows, 700, "cpu", 1) for rows in (1, 20)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.timeout(900)
@pytest.mark.thorough
def test_a_cell_compares_three_ways_and_counts_equal_tokens() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    one, several = json.loads(done.stdout)
    assert (one["equal"], one["compared"]) == (1, 1)
    assert several["equal"] == several["compared"] >= 2 * 5  # half of the drafts are right, and one token more
    assert all(several[f"{way}_us"] > 0 for way in ("kernels", "launched", "vllm"))


@pytest.mark.parametrize("gpu_here", [False, True])
@pytest.mark.parametrize("cpu_vllm", [False, True])
def test_each_part_is_measured_where_it_can_be_the_one_on_a_gpu_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], gpu_here: bool, cpu_vllm: bool
) -> None:
    platforms = pytest.importorskip("vllm.platforms")
    from benchmarks.sampling import cpu, gpu, run

    order: list[str] = []
    monkeypatch.setattr(cpu, "run", lambda quick: order.append("cpu"))
    monkeypatch.setattr(gpu, "record", lambda record: order.append("gpu") or {"good": False})
    monkeypatch.setattr(run.gpus, "here", lambda: object() if gpu_here else None)
    monkeypatch.setattr(type(platforms.current_platform), "is_cpu", lambda self: cpu_vllm)
    found = run.run(True)
    assert order == ["gpu"] * gpu_here + ["cpu"] * cpu_vllm
    assert found.get("good", True) is not gpu_here
    printed = capsys.readouterr().out
    assert (run.NO_GPU in printed, run.NO_CPU in printed) == (not gpu_here, not cpu_vllm)
