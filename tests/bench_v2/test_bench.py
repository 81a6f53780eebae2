"""vLLM's model runner V2 as published, on a CPU by Triton's interpreter: it generates what the model says. So it does
with our parts, and both in another release, whose sources `RELEASE` names."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.vllm_overlay import overlay
from tests.bench_v2.bench import environment
from tests.histospec.test_v2 import equal, run
from tests.packages import needs

pytestmark = [needs("vllm"), needs("triton"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]
pytestmark += [pytest.mark.filterwarnings("ignore")]  # transformers' own

PROGRAM = """
import json, sys, vllm
from vllm import LLM, SamplingParams

if __name__ == "__main__":
    llm = LLM(sys.argv[1], dtype="float32", max_model_len=64, max_num_seqs=4, skip_tokenizer_init=True, block_size=32,
        kv_cache_memory_bytes=2**22, enforce_eager=True, distributed_executor_backend="uni", disable_log_stats=True,
        generation_config="vllm", **json.loads(sys.argv[3]))
    worker = llm.llm_engine.model_executor.driver_worker.worker
    kinds = [kind.__module__ for kind in type(worker.model_runner).__mro__]
    prompts = json.loads(sys.argv[2])
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, detokenize=False)
    made = llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
    late = llm.llm_engine.vllm_config.scheduler_config.async_scheduling
    print("\\n" + json.dumps([vllm.__version__, kinds, late, [list(one.outputs[0].token_ids) for one in made]]))
"""
PROMPTS = [[5, 9, 33, 5, 9, 33], [7, 7, 7, 20, 21], [100, 200, 30]]


STOCK: dict[str, Any] = {
    "speculative_config": {
        "method": "ngram",
        "num_speculative_tokens": 2,
        "prompt_lookup_max": 1,
        "prompt_lookup_min": 1,
    }
}
OURS: dict[str, Any] = {
    "speculative_config": {
        "method": "ngram",
        "model": "rhymed.histospec.proposer.HistoSpec",
        "num_speculative_tokens": 5,
    },
    "worker_extension_cls": "rhymed.histospec.extension.Extension",
}
RELEASE = "RHYMED_VLLM_RELEASE"
"""Environment variable: the wheel of another release of vLLM, or a folder with its sources."""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(`PYTHONPATH` with which that release is run, its version)."""
    if not (source := os.environ.get(RELEASE, "")):
        pytest.skip(f"{RELEASE} names no other release of vLLM")
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    target = tmp_path_factory.mktemp("release") / "overlay"
    version = overlay(Path(source), target, Path(found.origin).parent)
    return os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH", "")))), version


def test_the_second_runner_generates_with_drafts_and_asynchronous_scheduling(tiny_model: Path) -> None:
    says_what_the_model_says(tiny_model, STOCK)


@pytest.mark.parametrize("options", [STOCK, OURS], ids=["stock", "ours"])
def test_so_does_another_release(
    options: dict[str, Any], other: tuple[str, str], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", other[0])
    version = says_what_the_model_says(tiny_model, options)
    assert version.partition("+")[0] == other[1].partition("+")[0]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_drafts_change_no_token_in_another_release(
    asynchronous: bool, other: tuple[str, str], sharp_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", other[0])
    reported = run(sharp_model, "v2", "1", asynchronous=asynchronous)
    assert (reported["asynchronous"], reported["broken"]) == (asynchronous, False)
    assert reported["drafted"]["accepted"] > 0
    for how in ("drafted", "reset"):
        equal(reported["plain"], reported[how], 1e-5)


def says_what_the_model_says(model: Path, options: dict[str, Any]) -> str:
    """Greedily. Returns vLLM's version."""
    import torch
    from transformers import LlamaForCausalLM

    command = [sys.executable, "-c", PROGRAM, str(model), json.dumps(PROMPTS), json.dumps(options)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=580, env=environment(asynchronous=True), check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    version, kinds, late, made = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("[")))
    assert "vllm.v1.worker.gpu.model_runner" in kinds
    assert late is True
    network = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    for prompt, tokens in zip(PROMPTS, made, strict=True):
        with torch.no_grad():
            logits = network(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        assert tokens == logits.argmax(1).tolist()
    return str(version)
