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
from tests.histospec.sampling.test_operations import case

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
@pytest.mark.timeout(300)
def test_rows_that_are_described_on_the_device_are_drawn_as_on_the_cpu():
    assert interpreted("slots")["slots"] == {"drawn": 300, "differ": 0, "torch": 0}


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
    types |= {"logprobs": "*fp32", "slots": "*i32", "positions": "*i64", "keys": "*i64", "temperatures": "*fp32"}
    types["about"] = "*i32"
    for kernel in (kernels.scan, kernels.verify, kernels.describe):
        rows = fused.ROWS if kernel is kernels.describe else 1
        constants = {"LOGPROBS": True, "ROWS": rows, "BLOCK": fused.BLOCK, "BLOCKS": 128}
        names = kernel.arg_names
        signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
        values = {(at,): constants[name] for at, name in enumerate(names) if name in constants}
        options = {"num_warps": fused.WARPS, "enable_fp_fusion": False}
        made = compile(ASTSource(kernel, signature, values), target=target(*chip), options=options)
        assert made.asm["cubin" if chip[0] == "cuda" else "hsaco"]


class Recorded:
    """In place of a kernel: the specializations that Triton would compile it for."""

    def __init__(self, kernel):
        from triton.compiler import make_backend
        from triton.runtime.jit import create_function_from_signature

        self.variants = set()
        self._bind = create_function_from_signature(
            kernel.signature, kernel.params, make_backend(target("cuda", 90, 32))
        )

    def __getitem__(self, grid):
        def launch(*arguments, **named):
            bound, specialization, _ = self._bind(*arguments, **named)
            constants = [bound[name] for name in ("LOGPROBS", "ROWS", "BLOCK") if name in bound]
            self.variants.add(str((specialization, constants)))

        return launch


@needs_triton
@pytest.mark.parametrize("vocabulary", [5000, 49_152])
def test_no_step_compiles_what_profiling_has_not_compiled(vocabulary, monkeypatch):
    """A variant takes half a second or more, in which requests wait."""
    from rhymed.histospec.sampling import kernels

    recorded = {name: Recorded(getattr(kernels, name)) for name in ("scan", "verify")}
    for name, one in recorded.items():
        monkeypatch.setattr(kernels, name, one)
    logits, drafts = torch.zeros(128, vocabulary), torch.zeros(128, dtype=torch.int32)

    def step(requests, drafted, start=0, slot=0):
        """`start`, `slot`: of its part of a larger batch, which is filtered part by part."""
        first = np.arange(requests + 1) * (1 + drafted)
        zero = np.zeros(requests, np.int64)
        rows = cpu.Rows(
            cpu.NO_LOGITS, first, cpu.NO_DRAFTS, zero.view(np.uint64), zero, np.ones(requests, np.float32)
        )
        part = logits[start : start + first[-1]]
        fused.verify(rows, part, drafts[slot : slot + requests * drafted] if drafted else None, True)

    step(8, 7)  # as vLLM's profiling run does
    profiled = {name: set(one.variants) for name, one in recorded.items()}
    for requests in range(1, 10):
        for drafted in range(8):
            step(requests, drafted)
            step(requests, drafted, start=16, slot=requests)
    assert {name: one.variants for name, one in recorded.items()} == profiled
    assert all(len(variants) == 1 for variants in profiled.values())


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
