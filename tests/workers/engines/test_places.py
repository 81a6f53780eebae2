"""vLLM's engine where it computes: drafts, sleep, and weights from the trainer's memory change no token."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.messages import SampleId
from rhymed_workers.engines.base import Task, sampling_for
from rhymed_workers.trainer.publish import Publisher
from rhymed_workers.weights.shared import Offers
from tests.packages import needs, on

torch = pytest.importorskip("torch")

pytestmark = [
    needs("vllm"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio,
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own
]

PROMPTS = [list(range(40, 48)), list(range(60, 90)), [100, 3, 100]]
PLACES = [pytest.param("cpu", marks=pytest.mark.thorough), pytest.param("cuda", marks=pytest.mark.gpu)]


def config(model: Path, place: str, drafts: str) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(model), "dtype": "float32"},
            "trainer": {"device": place},
            "drafts": {"method": drafts},
            "schedule": {"colocate": True},
            "net": {"transport": "ipc"},
            "rollout": {
                "max_prompt_length": 64,
                "max_response_length": 96,
                "max_concurrency": 24,
                "kv_cache_gib": 0.25,
                "gpu_memory": 0.2,
                "temperature": 0.7,
                "top_k": 50,
            },
        }
    )


@pytest.fixture
def environment() -> Iterator[None]:
    """vLLM's processes inherit what the engine sets there; those of other tests must not."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


async def answers(engine: Any, settings: Config, step: int) -> list[list[int]]:
    """Eight siblings of each prompt, together."""
    tasks = []
    for number, prompt in enumerate(PROMPTS):
        for index in range(8):
            id = SampleId(step=step, prompt=f"{number:016x}", index=index)
            tasks.append(Task(id, prompt, sampling_for(settings.rollout, settings.eval, settings.run.seed, id), ()))
    return [output.tokens.tolist() for output in await asyncio.gather(*map(engine.generate, tasks))]


@pytest.mark.parametrize("place", PLACES)
async def test_tokens_stay_with_drafts_after_sleep_and_with_weights_from_memory(
    place: str, tiny_model: Path, tmp_path: Path, environment: None
) -> None:
    from safetensors.torch import load_file

    device = on(place)
    from vllm.platforms import current_platform

    if current_platform.is_cpu() != (place == "cpu"):
        pytest.skip("vLLM was built for another device")
    from rhymed_workers.engines.vllm import VllmEngine

    generator = torch.Generator().manual_seed(0)
    weights = {
        name: (weight + 0.1 * torch.randn(weight.shape, generator=generator)).to(device)
        for name, weight in load_file(tiny_model / "model.safetensors").items()
    }
    publisher = Publisher(tmp_path, "float32", offers=Offers())
    path = publisher.publish(1, weights.items()).path
    reported = {}
    for drafts in ("none", "history"):
        settings = config(tiny_model, place, drafts)
        engine = VllmEngine(settings, tiny_model)
        try:
            await engine.open()
            await engine.load(1, path)
            assert ("GPU" if place == "cuda" else "shared memory") in str(await engine._open.call("weights_from"))
            first = [await answers(engine, settings, step) for step in range(2)]
            awake = torch.cuda.mem_get_info()[0] if place == "cuda" else 0
            await engine.sleep()
            assert place == "cpu" or torch.cuda.mem_get_info()[0] > awake + 2**30
            await engine.load(1, path)
            assert [await answers(engine, settings, step) for step in range(2)] == first
            reported[drafts] = first
        finally:
            await engine.close()
    publisher.close()
    assert reported["none"] == reported["history"]
    assert sum(len(tokens) for step in reported["none"] for tokens in step) > 1000
