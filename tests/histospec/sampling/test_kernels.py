"""The Triton kernels: token for token the compiled sampler, in Triton's interpreter; and compiled for GPUs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from rhymed.histospec.sampling import cpu, fused, places
from tests.histospec.sampling.test_device import case

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed (pip install --no-deps triton)"
)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def interpreted(check: str) -> dict:
    """A process of its own: the interpreter must be chosen before a process imports Triton."""
    here = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-m", "tests.histospec.sampling.interpreted", check]
    done = subprocess.run(
        command, cwd=here, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@needs_triton
@pytest.mark.timeout(900)
def test_tokens_equal_the_cpu_samplers():
    found = interpreted("short")
    for equal in [*found["drafted"], found["ties"]["exact"], found["odd"]]:
        assert equal["drawn"] > 10
        assert equal["differ"] == 0
        assert equal["logprob"] < 5e-6
    assert found["ties"]["blind"]["differ"] > 30, "without the float64 branch these rows differ"


@needs_triton
@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_200_000_draws_equal_the_cpu_samplers():
    found = interpreted("200000")["many"]
    assert (found["drawn"], found["differ"]) == (200_000, 0)
    assert found["logprob"] < 5e-6


@needs_triton
@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_vllms_batch_is_sampled_as_on_the_cpu():
    pytest.importorskip("vllm")
    found = interpreted("sampler")["sampler"]
    assert found["drawn"] > 27
    assert found["differ"] == 0
    assert found["logprob"] < 5e-6


def target(backend: str, chip: object, warp: int) -> object:
    from triton.backends.compiler import GPUTarget

    return GPUTarget(backend, chip, warp)


@needs_triton
@pytest.mark.thorough
@pytest.mark.parametrize("chip", [("cuda", 80, 32), ("cuda", 90, 32), ("cuda", 100, 32), ("hip", "gfx942", 64)])
@pytest.mark.parametrize("kind", ["*bf16", "*fp32"])
def test_kernels_compile_for_chips_that_are_not_here(chip, kind):
    """The interpreter accepts more than the compiler does."""
    from triton.compiler import ASTSource, compile

    from rhymed.histospec.sampling import kernels

    types = {"logits": kind, "rows": "*i32", "first": "*i32", "drafts": "*i32", "found": "*fp32", "tokens": "*i32"}
    types["logprobs"] = "*fp32"
    constants = {"LOGPROBS": True, "ROWS": 1, "BLOCK": fused.BLOCK, "BLOCKS": 128}
    for kernel in (kernels.scan, kernels.verify):
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
        values = {(at,): constants[name] for at, name in enumerate(names) if name in constants}
        options = {"num_warps": fused.WARPS, "enable_fp_fusion": False}
        made = compile(ASTSource(kernel, signature, values), target=target(*chip), options=options)
        assert made.asm["cubin" if chip[0] == "cuda" else "hsaco"]


def test_without_an_accelerator_the_cpu_samples():
    assert not fused.runs_on("cpu")
    rows = case(3)
    expected, values = cpu.verify(rows, True)
    tokens, logprobs = places.verify(
        rows._replace(logits_NV=cpu.NO_LOGITS, drafts=cpu.NO_DRAFTS),
        torch.from_numpy(rows.logits_NV),
        torch.from_numpy(rows.drafts.astype(np.int32)),
        True,
        width=9,
    )
    assert tokens.shape == (30, 9)
    assert (tokens[:, : expected.shape[1]].numpy() == expected).all()
    assert (logprobs[:, : expected.shape[1]].numpy() == values).all()


@needs_triton
@needs_gpu
@pytest.mark.gpu
def test_a_step_waits_for_nothing_on_a_gpu():
    rows = case(1, vocabulary=5000)
    x, drafts = torch.from_numpy(rows.logits_NV).cuda(), torch.from_numpy(rows.drafts.astype(np.int32)).cuda()
    places.verify(rows, x, drafts, True)  # compiles
    torch.cuda.set_sync_debug_mode("error")
    try:
        places.verify(rows, x, drafts, True)
        places.verify(rows._replace(first_B=np.arange(31)), x[:30], None, True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_triton
@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_tokens_equal_the_cpu_samplers_on_a_gpu(kind):
    for seed in range(5):
        rows = case(seed, vocabulary=49_152)
        x = torch.from_numpy(rows.logits_NV).to(kind)
        rows = rows._replace(logits_NV=x.float().numpy())
        expected, values = cpu.verify(rows, True)
        drafts = torch.from_numpy(rows.drafts.astype(np.int32)).cuda()
        tokens, logprobs = places.verify(rows, x.cuda(), drafts, True, host=True)
        assert (tokens.numpy() == expected).all()
        assert logprobs.numpy() == pytest.approx(values, abs=1e-5)
