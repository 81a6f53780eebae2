"""`rhymed bench weights`: the time from the trainer's parameters to the first token under them, by phase.

Publisher, socket, file in shared memory and engine are real. It also checks that outputs change with the weights, and
that loading the first weights again gives a fresh engine's outputs.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from rhymed.config import Config, Model
from rhymed.messages import SampleId

PHASES = ("write", "announce", "pause", "load", "finish", "reset", "resume", "first_token")
RUNNING = 16  # samples in flight in the second half of the repetitions
PROMPT = list(range(100, 132))


def run(quick: bool, model: Path | None = None) -> dict[str, Any]:
    """Seconds by phase, median and spread, with an idle engine and with one that is decoding."""
    logging.basicConfig(level=logging.WARNING)
    return asyncio.run(_measure(3 if quick else 10, str(model) if model else Model().path))


async def _measure(repetitions: int, model: str) -> dict[str, Any]:
    from rhymed.inputs.models import resolve_model
    from rhymed_workers.engines.vllm import VllmEngine
    from rhymed_workers.trainer.publish import Publisher
    from rhymed_workers.weights.fetch import Fetcher
    from rhymed_workers.weights.server import WeightsServer

    dtype = _dtype()
    config = Config.model_validate(
        {"model": {"path": model, "dtype": dtype}, "rollout": {"max_prompt_length": 64, "max_response_length": 512}}
    )
    folder = resolve_model(config)
    parameters = await asyncio.to_thread(_parameters, folder)
    start = time.perf_counter()
    engine = VllmEngine(config, folder)
    await engine.open()
    result: dict[str, Any] = {"dtype": dtype, "parameters": sum(t.numel() for t in parameters.values())}
    result["engine_start_s"] = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as scratch:
        publisher = Publisher(Path(scratch) / "weights", dtype)
        server = WeightsServer(f"ipc://{scratch}/socket", publisher)
        bench = _Bench(config, engine, publisher, Fetcher("bench"), server.address, parameters)
        try:
            result |= await bench.measure(repetitions)
        finally:
            bench.fetcher.close()
            await engine.close()
            server.close()
            publisher.close()
    _print(result)
    return result


class _Bench:
    def __init__(
        self, config: Config, engine: Any, publisher: Any, fetcher: Any, address: str, parameters: dict[str, Any]
    ) -> None:
        self.fetcher = fetcher
        self._config = config
        self._engine = engine
        self._publisher = publisher
        self._address = address
        self._parameters = parameters
        self._version = 0

    async def measure(self, repetitions: int) -> dict[str, Any]:
        fresh = await self._sample(32)
        idle = [await self._once(0.01) for _ in range(repetitions)]
        moved = await self._sample(32)
        running = [asyncio.ensure_future(self._sample(512, index)) for index in range(1, RUNNING + 1)]
        async with asyncio.timeout(120):
            while True:
                if sum(count > 0 for count in self._engine.progress().values()) == RUNNING:
                    break
                await asyncio.sleep(0.05)
        busy = [await self._once(0.01) for _ in range(repetitions)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await self._once(0.0)
        back = await self._sample(32)
        return {
            "idle": _summary(idle),
            "busy": _summary(busy),
            "outputs_change": bool(fresh.tokens.tolist() != moved.tokens.tolist()),
            "outputs_equal_fresh_load": bool(fresh.tokens.tolist() == back.tokens.tolist()),
            "largest_logprob_difference": float(abs(fresh.logprobs - back.logprobs).max())
            if len(fresh.logprobs) == len(back.logprobs)
            else None,
        }

    async def _once(self, change: float) -> dict[str, float]:
        """Publishes parameters that differ by `change` (relative), loads them, and samples one token."""
        import torch

        torch.manual_seed(self._version)
        tensors = {n: t * (1 + change * torch.randn(t.shape)) if change else t for n, t in self._parameters.items()}
        self._version += 1
        splits: dict[str, float] = {}
        start = time.perf_counter()
        await asyncio.to_thread(self._publisher.publish, self._version, tensors.items())
        splits["write"] = time.perf_counter() - start
        begun = time.perf_counter()
        path = await self.fetcher.fetch(self._version, self._address)
        splits["announce"] = time.perf_counter() - begun
        splits |= await self._engine.load(self._version, path)
        begun = time.perf_counter()
        await self._sample(1)
        splits["first_token"] = time.perf_counter() - begun
        splits["total"] = time.perf_counter() - start
        return splits

    async def _sample(self, tokens: int, index: int = 0) -> Any:
        from dataclasses import replace

        from rhymed_workers.engines.base import Task, sampling_for

        id = SampleId(step=0, prompt="0" * 16, index=index)
        sampling = replace(
            sampling_for(self._config.rollout, self._config.eval, self._config.run.seed, id), max_tokens=tokens
        )
        return await self._engine.generate(Task(id, PROMPT, sampling))


def _dtype() -> str:
    """bfloat16 if the machine computes in it."""
    import torch

    fast = torch.cuda.is_available() or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if fast else "float32"


def _parameters(folder: Path) -> dict[str, Any]:
    """In float32, as the trainer has them."""
    import torch
    from safetensors.torch import load_file

    torch.set_num_threads(2)
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor.float() for file in files for name, tensor in load_file(file).items()}


def _summary(rows: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    return {
        phase: {
            "median": statistics.median(row[phase] for row in rows),
            "least": min(row[phase] for row in rows),
            "most": max(row[phase] for row in rows),
        }
        for phase in (*PHASES, "total")
    }


def _print(result: dict[str, Any]) -> None:
    print(
        f"{result['parameters'] / 1e6:.0f} M parameters in {result['dtype']};"
        f" engine started in {result['engine_start_s']:.1f} s"
    )
    print(f"{'seconds':<14}{'idle engine':>24}{f'{RUNNING} samples in flight':>28}")
    for phase in (*PHASES, "total"):
        cells = [result[kind][phase] for kind in ("idle", "busy")]
        texts = [f"{cell['median']:.3f} ({cell['least']:.3f}-{cell['most']:.3f})" for cell in cells]
        print(f"{phase:<14}{texts[0]:>24}{texts[1]:>28}")
    print(f"outputs change with the weights: {result['outputs_change']}")
    print(f"the first weights loaded again give a fresh engine's outputs: {result['outputs_equal_fresh_load']}")
