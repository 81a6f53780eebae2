"""The engine of rhymed with vLLM's model runner V2, by Triton's interpreter: drafts change neither tokens nor
log-probs, nor does the runner, with weights that change, an adapter, carried tokens, continued samples, after sleep,
and on two tensor-parallel ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench_v2.bench import environment
from tests.packages import needs

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
pytestmark = [needs("vllm"), needs("triton"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]
PARTS = ("first", "again", "updated", "carried", "continued", "adapted", "slept")


def run(model: Path, folder: Path, method: str, runner: str, *, ranks: int = 1) -> dict[str, Any]:
    from safetensors.torch import load_file, save_file

    weights, generator = folder / "next.safetensors", torch.Generator().manual_seed(1)
    base = load_file(model / "model.safetensors")
    save_file({name: one + 0.01 * torch.randn(one.shape, generator=generator) for name, one in base.items()}, weights)
    given = [model, weights, model.with_suffix(".adapter.safetensors"), method, ranks, folder]
    command = [sys.executable, "-m", "tests.workers.engines.runner", *map(str, given)]
    around = environment(runner=runner)
    around |= {"VLLM_CPU_OMP_THREADS_BIND": "0|0"} if ranks > 1 else {}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=ROOT, env=around, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert report["runner"] == runner
    assert (folder / "run" / "model-runner").read_text() == {"0": "v1\n", "1": "v2\n"}[runner]
    return report


@pytest.fixture(scope="module")
def model(sharp_model: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sharp model with the tokenizer of the tiny one, whose vocabulary it has; beside it an adapter."""
    from safetensors.torch import save_file

    from rhymed.core.config import Lora
    from rhymed_workers.trainer.policy.lora import LoraPolicy

    folder = tmp_path_factory.mktemp("model")
    for file in [*tiny_model.iterdir(), *sharp_model.iterdir()]:
        shutil.copy(file, folder)
    policy, generator = LoraPolicy(Lora(rank=4, alpha=8), folder), torch.Generator().manual_seed(2)
    moved = {name: 0.1 * torch.randn(one.shape, generator=generator) for name, one in policy.tensors().items()}
    save_file(moved, folder.with_suffix(".adapter.safetensors"), metadata={"format": "pt", **policy.metadata()})
    return folder


@pytest.fixture(scope="module")
def drafted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(model, tmp_path_factory.mktemp("drafted"), "history", "1", ranks=2)


def test_neither_drafts_nor_runner_and_ranks_change_what_an_engine_makes(
    drafted: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    plain = run(model, tmp_path, "none", "0")
    for part in PARTS:
        assert drafted[part]["tokens"] == plain[part]["tokens"], part
        assert drafted[part]["versions"] == plain[part]["versions"], part
        for found, expected in zip(drafted[part]["logprobs"], plain[part]["logprobs"], strict=True):
            assert found == pytest.approx(expected, abs=1e-4)


def test_drafts_are_made_and_reported_for_each_request(drafted: dict[str, Any]) -> None:
    assert drafted["again"]["tokens"] == drafted["first"]["tokens"]
    assert drafted["slept"]["tokens"] == drafted["first"]["tokens"]
    for part in ("updated", "adapted"):
        assert drafted[part]["tokens"] != drafted["first"]["tokens"]
    for part in ("again", "carried"):
        assert all(count is not None for count in drafted[part]["accepted"])
        assert sum(drafted[part]["accepted"]) > 0
    assert sum(drafted["carried"]["kept"]) > 0
