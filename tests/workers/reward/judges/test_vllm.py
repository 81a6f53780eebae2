"""vLLM's own server as a judge, whose words are chosen by a grammar, and as a reward model."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rhymed.core.config import Config
from rhymed_workers.reward.child import item
from rhymed_workers.reward.pool import Pool
from tests.packages import needs
from tests.ports import free_ports

START_S = 700.0
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"

pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1800)]


@contextlib.contextmanager
def vllm(model: Path, log: Path, *more: str) -> Iterator[str]:
    """With this model. Its URL."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(model)
    (port,) = free_ports(1)
    options = f"--model {model} --served-model-name tiny --host 127.0.0.1 --port {port} --dtype float32"
    small = "--max-model-len 512 --enforce-eager --kv-cache-memory-bytes 67108864 --block-size 32 --max-num-seqs 8"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options.split(), *small.split(), *more]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--max-num-batched-tokens", "2048"], stdout=output, stderr=output, env=environment
        )
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(120)


async def ready(url: str) -> None:
    deadline = time.monotonic() + START_S
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{url}/models") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.5)
    raise TimeoutError(f"{url} did not start")


async def rewards(url: str, **judge: Any) -> list[float | None]:
    given = {"url": url, "model": "tiny", **judge}
    config = Config.model_validate({"reward": {"scorer": "judge", "judge": given}})
    async with Pool(config) as pool:
        outcomes = [await pool.score(item(text, {"prompt": "2+2?"})) for text in ("4", "five")]
    assert [outcome.error for outcome in outcomes] == [None, None]
    return [outcome.reward for outcome in outcomes]


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return shutil.copytree(tiny_model, tmp_path / "model")


async def test_a_judge(model: Path, tmp_path: Path) -> None:
    with vllm(model, tmp_path / "vllm.log") as url:
        await ready(url)
        options = {"temperature": 0.0, "max_tokens": 20, "structured_outputs": {"choice": ["Score: 7"]}}
        assert await rewards(url, options=options, rubric="{response}") == [0.7, 0.7]


async def test_a_reward_model(model: Path, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(model, num_labels=1)
    LlamaForSequenceClassification(config).save_pretrained(model)
    with vllm(model, tmp_path / "vllm.log", "--runner", "pooling") as url:
        await ready(url)
        raw = await rewards(url, api="classify", options={"use_activation": False})
        assert raw[0] != raw[1]
        shown = await rewards(url, api="classify", range=[0, 1])
        assert shown == pytest.approx([1 / (1 + 2.718281828459045 ** -float(one or 0)) for one in raw], abs=1e-3)
        assert await rewards(url, api="pooling", options={"use_activation": False, "task": "classify"}) == raw
        pairs = await rewards(url, api="score")
        assert len(set(pairs)) == 2
