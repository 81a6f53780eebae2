"""`python -m benchmarks weights`, and the part `weights` of `python -m benchmarks gpu`: the time from the trainer's
parameters to the first token under them, by phase.

Publisher, socket, file in shared memory and engine are real. It also checks that outputs change with the weights,
that loading the first weights again gives a fresh engine's outputs, and that weights by the handle of the trainer's
memory (`net.transport = "ipc"`) give the tokens of those by the file, also after the engine has slept.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu import models
from benchmarks.gpu.part import Recorder
from rhymed.core.config import Config, Model
from rhymed.core.messages import SampleId
from rhymed.placement import gpus

PHASES = ("write", "announce", "pause", "load", "finish", "reset", "resume", "first_token", "total")
RUNNING = 16  # samples in flight in the second half of the repetitions
PROMPT = list(range(100, 132))
SAME = 1e-4  # nats: log-probs of equal weights differ by no more


def run(quick: bool, model: Path | None = None) -> dict[str, Any]:
    """`model`: a folder, or a name that `model.path` may have."""
    device = "cuda" if gpus.here() else "cpu"
    record = Recorder("weights", None, device, small=quick)
    from rhymed.inputs.models import resolve_model

    path = str(model) if model else Model().path
    dtype = _dtype(device)
    folder = resolve_model(_config(path, device, dtype))
    good = asyncio.run(_measure(record, folder, device, dtype, 3 if quick else 10))
    return {"device": device, "good": good}


def record(record: Recorder) -> None:
    """Random weights of 1.5 billion parameters; on a processor of a tiny model."""
    assert record.out is not None
    dtype = "bfloat16" if record.gpu else "float32"
    shape = "tiny" if not record.gpu else "135m" if record.small else "1.5b"
    folder = models.random_weights(record.out / "models", shape, dtype, record.device)
    asyncio.run(_measure(record, folder.resolve(), record.device, dtype, 2 if record.small else 5))


def _config(path: str, device: str, dtype: str) -> Config:
    rollout: dict[str, Any] = {"max_prompt_length": 64, "max_response_length": 512, "gpu_memory": 0.4}
    return Config.model_validate(
        {
            "model": {"path": path, "dtype": dtype},
            "rollout": rollout,
            "net": {"transport": "ipc"},
            "schedule": {"colocate": True},
            "trainer": {"device": device},
            "drafts": {"method": "none"},
        }
    )


async def _measure(record: Recorder, folder: Path, device: str, dtype: str, repetitions: int) -> bool:
    """Whether everything could be measured and all outputs were as expected."""
    from rhymed_workers.engines.vllm import VllmEngine
    from rhymed_workers.trainer.publish import publisher_for
    from rhymed_workers.weights.fetch import Fetcher
    from rhymed_workers.weights.server import WeightsServer

    config = _config(str(folder), device, dtype)
    start = time.perf_counter()
    engine = VllmEngine(config, folder)
    await engine.open()
    started_s = round(time.perf_counter() - start, 1)
    parameters = await asyncio.to_thread(_parameters, folder, device)
    count = sum(one.numel() for one in parameters.values())
    record.emit("engine", ok=True, start_s=started_s, model=folder.name, dtype=dtype, parameters=count)
    with tempfile.TemporaryDirectory() as scratch:
        publisher = publisher_for(config, Path(scratch) / "weights", dtype)
        server = WeightsServer(f"ipc://{scratch}/socket", publisher)
        bench = _Bench(config, engine, publisher, Fetcher("bench"), server.address, parameters)
        try:
            return await bench.measure(record, repetitions)
        finally:
            bench.fetcher.close()
            await engine.close()
            server.close()
            publisher.close()


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

    async def measure(self, record: Recorder, repetitions: int) -> bool:
        """Seconds by phase [median, least, most] with an idle engine, by the file and by the handle, and by the file
        with one that is decoding."""
        fresh = await self._sample(32)
        good = True
        for transport in ("file", "ipc"):
            rows = [await self._once(0.01, transport) for _ in range(repetitions)]
            found = await self._engine._open.call("weights_from")
            record.emit(f"idle engine, {transport}", ok=True, weights_from=str(found[0])[:120], **_summary(rows))
        good &= await self._compared(record)
        moved = await self._sample(32)
        running = [asyncio.ensure_future(self._sample(512, index)) for index in range(1, RUNNING + 1)]
        async with asyncio.timeout(120):
            while True:
                if sum(count > 0 for count in self._engine.progress().values()) == RUNNING:
                    break
                await asyncio.sleep(0.05)
        busy = [await self._once(0.01, "file") for _ in range(repetitions)]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        record.emit(f"{RUNNING} samples in flight, file", ok=True, **_summary(busy))
        await self._once(0.0, "file")
        back = await self._sample(32)
        change, same = _difference(fresh, moved) > SAME, _difference(fresh, back) <= SAME
        record.emit("outputs", ok=change and same, change_with_weights=change, first_weights_again_equal=same)
        return good and change and same

    async def _compared(self, record: Recorder) -> bool:
        """The samples under new weights by both transports, after the engine has slept."""
        before = await self._sample(32)
        slept = await self._engine.sleep()
        path = await self._publish(0.2)
        samples = []
        for transport in ("ipc", "file"):
            self._engine._transport = transport
            await self._engine.load(self._version, path)
            samples.append(await self._sample(32))
        equal, changed = _difference(*samples) <= SAME, _difference(before, samples[0]) > SAME
        seconds = {name: round(value, 3) for name, value in slept.items()}
        what = "after sleep: samples by handle and by file"
        record.emit(what, ok=equal and changed, equal=equal, changed=changed, seconds=seconds)
        return equal and changed

    async def _publish(self, change: float, splits: dict[str, float] | None = None) -> Path:
        """Parameters that differ by `change` (relative), as a new version."""
        import torch

        torch.manual_seed(self._version)
        tensors = {
            name: one * (1 + change * torch.randn(one.shape, device=one.device)) if change else one
            for name, one in self._parameters.items()
        }
        self._version += 1
        splits = {} if splits is None else splits
        start = time.perf_counter()
        await asyncio.to_thread(self._publisher.publish, self._version, tensors.items())
        splits["write"] = time.perf_counter() - start
        path: Path = await self.fetcher.fetch(self._version, self._address)
        splits["announce"] = time.perf_counter() - start - splits["write"]
        return path

    async def _once(self, change: float, transport: str) -> dict[str, float]:
        """Publishes, loads and samples one token: seconds of each phase."""
        splits: dict[str, float] = {}
        path = await self._publish(change, splits)
        self._engine._transport = transport
        splits |= await self._engine.load(self._version, path)
        begun = time.perf_counter()
        await self._sample(1)
        splits["first_token"] = time.perf_counter() - begun
        return splits | {"total": sum(splits[phase] for phase in PHASES[:-1])}

    async def _sample(self, tokens: int, index: int = 0) -> Any:
        from rhymed_workers.engines.base import Task, sampling_for

        id = SampleId(step=0, prompt="0" * 16, index=index)
        sampling = replace(
            sampling_for(self._config.rollout, self._config.eval, self._config.run.seed, id), max_tokens=tokens
        )
        return await self._engine.generate(Task(id, PROMPT, sampling))


def _difference(one: Any, other: Any) -> float:
    """The largest of the log-probs; infinite where tokens differ. Tokens alone may stay the same under other
    weights."""
    if one.tokens.tolist() != other.tokens.tolist():
        return math.inf
    return float(abs(one.logprobs - other.logprobs).max())


def _dtype(device: str) -> str:
    """bfloat16 if the machine computes in it."""
    import torch

    fast = device != "cpu" or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if fast else "float32"


def _parameters(folder: Path, device: str) -> dict[str, Any]:
    """Weights in float32 on the device, as the trainer has them."""
    from safetensors.torch import load_file

    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor.to(device).float() for file in files for name, tensor in load_file(file).items()}


def _summary(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    columns = {phase: [row[phase] for row in rows] for phase in PHASES}
    return {
        phase: [round(one, 4) for one in (statistics.median(column), min(column), max(column))]
        for phase, column in columns.items()
    }
