"""vLLM's own server as a teacher: its log-probs are those of the same model in the trainer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from rhymed.core.config import Config
from rhymed.core.errors import RhymedError
from rhymed_workers.trainer.policy.packing import Sequences
from rhymed_workers.trainer.policy.policy import Policy
from rhymed_workers.trainer.ranks import ALONE
from rhymed_workers.trainer.teacher.distillation import logprobs
from rhymed_workers.trainer.teacher.remote import RemoteTeacher
from rhymed_workers.trainer.teacher.start import find_teacher
from tests.ports import free_ports

START_S = 400.0


@pytest.fixture
def url(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    options = f"--model {tiny_model} --served-model-name tiny --host 127.0.0.1 --port {port} --dtype float32"
    small = "--max-model-len 256 --enforce-eager --kv-cache-memory-bytes 67108864 --block-size 32 --max-num-seqs 8"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options.split(), *small.split()]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
    with (tmp_path / "vllm.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "--max-num-batched-tokens", "2048"], stdout=log, stderr=log, env=environment
        )
        try:
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
            server.wait(60)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_its_log_probs_are_ours(url: str, tiny_model: Path) -> None:
    rollout = {"max_prompt_length": 64, "max_response_length": 64}
    trainer = {"algorithm": "opd", "teacher": {"url": url, "patience_s": 5.0}}
    model = {"path": str(tiny_model)}
    config = Config.model_validate({"model": model, "rollout": rollout, "trainer": trainer})
    deadline = time.monotonic() + START_S
    while True:
        try:
            found = find_teacher(config)
            break
        except RhymedError:
            if time.monotonic() > deadline:
                raise
    assert found.server is not None
    assert (found.server.name, found.context) == ("tiny", 256)
    draw = np.random.default_rng(0)
    sequences = [Sequences(draw.integers(2, 250, 5 + n), draw.integers(2, 250, 3 + n)) for n in range(6)]
    scored = RemoteTeacher(config.trainer.teacher, "tiny").score([one[:2] for one in sequences], 5)
    there = torch.from_numpy(np.concatenate([part.logprobs_N for part in scored]))
    here = logprobs(Policy.load(tiny_model), sequences, 4096, ALONE, lambda done, total: None)
    assert torch.allclose(there, here, atol=1e-4)
    assert all(part.ids_NK.min() >= 0 for part in scored)
    assert all((np.diff(part.topk_NK, axis=1) <= 0).all() for part in scored)
