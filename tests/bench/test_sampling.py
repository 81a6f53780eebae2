"""The GPU part of `rhymed bench sampler`, in Triton's interpreter, and what it prints where there is no GPU."""

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
from rhymed.bench.sampling import gpu
print(json.dumps([gpu.cell(rows, 700, "cpu", 1) for rows in (1, 20)]))
"""


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.timeout(900)
def test_a_cell_compares_three_ways_and_counts_equal_tokens() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    one, several = json.loads(done.stdout)
    assert (one["equal"], one["compared"]) == (1, 1)
    assert several["equal"] == several["compared"] >= 2 * 5  # half of the drafts are right, and one token more
    assert all(several[f"{way}_us"] > 0 for way in ("kernels", "launched", "torch", "vllm"))


def test_without_a_gpu_a_sentence_stands_for_the_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    import torch

    from rhymed.bench.sampling import cpu, run

    monkeypatch.setattr(cpu, "run", lambda quick: {"threads": 1})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run.run(True) == {"cpu": {"threads": 1}, "gpu": None}
    assert "no GPU" in capsys.readouterr().out
