"""A checkpoint of a LoRA run is exported as an adapter or as a whole model, and both load where people load them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rhymed.core.config import Config, Lora
from rhymed.core.run import checkpoint
from rhymed.start.cli import main
from rhymed_workers.trainer.policy.lora import LoraPolicy
from tests.packages import needs

pytestmark = needs("peft")

Make = Callable[..., Path]


@pytest.fixture
def run(tmp_path: Path, tiny_model: Path) -> Path:
    """The folder of a run over the tiny model, with one checkpoint of random adapters."""
    folder = tmp_path / "run"
    folder.mkdir()
    config = Config.model_validate(
        {
            "model": {"path": str(tiny_model)},
            "rollout": {"max_prompt_length": 64, "max_response_length": 64},
            "trainer": {"lora": {"rank": 4, "alpha": 8}},
        }
    )
    (folder / "config.json").write_text(config.model_dump_json())
    policy = LoraPolicy(Lora(rank=4, alpha=8), tiny_model)
    generator = torch.Generator().manual_seed(0)
    for parameter in policy.adapters().values():
        parameter.data.normal_(0, 0.1, generator=generator)

    def write(made: Path) -> None:
        policy.save(made)
        (made / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
        (made / "optimizer.state").write_bytes(b"moments")
        (made / "trainer.json").write_text("{}")

    checkpoint.save(folder / "checkpoints", 2, write, keep=2)
    return folder


def merged_by_peft(adapter: Path, base: Path) -> dict[str, torch.Tensor]:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return dict(PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict())


def test_an_exported_adapter_is_peft_s(run: Path, tmp_path: Path, tiny_model: Path, capsys) -> None:
    target = tmp_path / "adapter"
    assert main(["checkpoint", "export", str(run), str(target)]) == 0
    assert "2 steps trained, float32, a LoRA adapter (--merged: the whole model)" in capsys.readouterr().out
    assert {file.name for file in target.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
    }
    expected = merged_by_peft(run / "checkpoints" / "step-000002", tiny_model)
    for name, tensor in merged_by_peft(target, tiny_model).items():
        assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_merged_one_is_the_whole_model(run: Path, tmp_path: Path, tiny_model: Path, dtype: str) -> None:
    from transformers import AutoModelForCausalLM

    target = tmp_path / "model"
    assert main(["checkpoint", "export", str(run), str(target), "--merged", "--dtype", dtype]) == 0
    names = {file.name for file in target.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not any(name.startswith("adapter") or name == "optimizer.state" for name in names)
    loaded = AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert loaded.dtype == getattr(torch, dtype)
    expected = merged_by_peft(run / "checkpoints" / "step-000002", tiny_model)
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, expected[name].to(tensor.dtype)), name


def test_it_is_merged_into_no_other_model(run: Path, tmp_path: Path, tiny_model: Path, capsys) -> None:
    from transformers import AutoModelForCausalLM

    other = tmp_path / "other"
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    model.model.norm.weight.data += 1
    model.save_pretrained(other)
    (other / "tokenizer.json").write_bytes((tiny_model / "tokenizer.json").read_bytes())
    config = json.loads((run / "config.json").read_text())
    config["model"]["path"] = str(other)
    (run / "config.json").write_text(json.dumps(config))
    assert main(["checkpoint", "export", str(run), str(tmp_path / "out"), "--merged"]) == 1
    assert "is not the model that the run was trained over" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_whole_weights_cannot_be_merged(run: Path, tmp_path: Path, tiny_model: Path, capsys) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    checkpoint.save(run / "checkpoints", 4, lambda made: model.save_pretrained(made) and None, keep=2)
    assert main(["checkpoint", "export", str(run), str(tmp_path / "out"), "--merged"]) == 2
    assert "has all weights, no adapter: there is nothing to merge" in capsys.readouterr().err


VLLM = """
import sys
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest

def engine(model, **more):
    return LLM(model=model, dtype="float32", max_model_len=64, kv_cache_memory_bytes=1 << 24, enforce_eager=True,
               skip_tokenizer_init=True, **more)

def tokens(llm, request=None):
    sampling = SamplingParams(temperature=0, max_tokens=16, detokenize=False, ignore_eos=True)
    found = llm.generate(TokensPrompt(prompt_token_ids=[40, 41, 42, 43]), sampling, lora_request=request)
    return list(found[0].outputs[0].token_ids)

if __name__ == "__main__":
    base, adapter, merged = sys.argv[1:]
    llm = engine(base, enable_lora=True, max_lora_rank=8)
    print("plain", tokens(llm))
    print("adapter", tokens(llm, LoRARequest("ours", 1, adapter)))
    print("merged", tokens(engine(merged)))
"""


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_vllm_serves_the_adapter_as_it_serves_the_merged_model(run: Path, tmp_path: Path, tiny_model: Path) -> None:
    pytest.importorskip("vllm")
    folders = [tmp_path / "adapter", tmp_path / "merged"]
    assert main(["checkpoint", "export", str(run), str(folders[0])]) == 0
    assert main(["checkpoint", "export", str(run), str(folders[1]), "--merged", "--dtype", "float32"]) == 0
    script = tmp_path / "serve.py"
    script.write_text(VLLM)
    command = [sys.executable, str(script), str(tiny_model), *map(str, folders)]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # vLLM is imported once for both engines
        "TORCHDYNAMO_DISABLE": "1",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout + done.stderr
    reported = dict(re.findall(r"^(plain|adapter|merged) (\[.*\])$", done.stdout, re.MULTILINE))
    assert reported["adapter"] == reported["merged"] != reported["plain"]
