"""`python -m benchmarks architectures`: does the engine sample from the trainer's policy, whatever the architecture?

For each, a two-layer model with random weights, in processes of their own: the trainer's policy makes updates with a
learning rate of 1e-2 (`trainer.policy`), publishes each, and a real vLLM loads it and samples from it. `mismatch` is
the mean over the sampled tokens of the metric `mismatch_kl` (nats) after each update. The engine begins on a folder
that the trainer saved, as `rhymed checkpoint export` copies it, and transformers loads the last one again. Then an
adapter on all linear layers that can have one is trained, published and merged. The engine verifies drafts from what
it sampled before, which change no token; an engine that cannot is started again without drafts.

NAME+nf4 is adapters over that model in 4 bits (`model.quantization`), compared after each of as many updates.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

UPDATES = 3
TOKENS = 24
LR = 1e-2
SHARPER = 3.0  # times the random weights: outputs depend on the prompt
NF4 = "+nf4"
PROMPTS = {"0123456789abcdef": [40, 41, 42, 43, 44, 45, 46, 47, 44, 41], "fedcba9876543210": [90, 7, 90, 8, 90, 9]}
GROUP = 3

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's attention on a processor knows
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LINEAR = {"layer_types": ["linear_attention", "full_attention"], "linear_key_head_dim": 128}
LINEAR |= {"linear_value_head_dim": 128, "linear_num_key_heads": 2, "linear_num_value_heads": 2}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gemma2": {"sliding_window": 8, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "gpt_oss": {"sliding_window": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_next": {**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 32, "dtype": "bfloat16"},
    "qwen3_5_text": {**LINEAR, "dtype": "bfloat16"},
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
        "conv_dim": 64,
        "block_dim": 64,
    },
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16},
    "nemotron_h": {
        "layers_block_type": ["mamba", "attention"],
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "ssm_state_size": 16,
        "n_groups": 1,
    },
    "glm4": {},
    "llama4_text": {
        "no_rope_layers": [1, 0],  # the second sees the whole sequence, and no positions
        "attention_chunk_size": 32,  # a multiple of the engine's blocks
        "num_local_experts": 4,
        "intermediate_size_mlp": 128,
        "interleave_moe_layer_step": 2,
    },
    "cohere2": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8, "logit_scale": 2.0},
    "granite": {"logits_scaling": 0.5},
    "qwen3_moe": EXPERTS,
    "mixtral": {"num_local_experts": 4},
}
"""Arguments of transformers' configurations. `dtype`: the engine's; else float32."""


def run(quick: bool, names: Sequence[str] | None = None, out: Path | None = None) -> dict[str, Any]:
    """`names`: some of `ARCHITECTURES`, perhaps with `NF4` behind them. `out`: a folder to keep, with the engines'
    logs."""
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or (["llama", "gemma2"] if quick else ARCHITECTURES):
            folder = (out or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            row = {"model": name, **_child(name.removesuffix(NF4), folder, "nf4" if NF4 in name else "history")}
            if "history" in row:
                row |= {"with drafts": row.pop("history"), **_child(name, folder, "none")}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return {"rows": rows}


def _child(name: str, folder: Path, part: str) -> dict[str, Any]:
    command = [sys.executable, "-m", __name__ if __name__ != "__main__" else "benchmarks.architectures"]
    done = subprocess.run([*command, name, str(folder), part], capture_output=True, text=True, timeout=1200)
    (folder / f"{part}.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        return {part: done.stderr.strip().splitlines()[-1][:500]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def write(name: str, folder: Path) -> None:
    """The random model as a Hugging Face folder."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    changes = {key: value for key, value in ARCHITECTURES[name].items() if key != "dtype"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **{**SIZES, **changes})).float()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim > 1 and "conv" not in key:
                weight.mul_(SHARPER)
    model.save_pretrained(folder)
    _tokenizer(folder)


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"a": 0, "<eos>": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>").save_pretrained(folder)


def _config(name: str, model: Path, folder: Path, method: str, quantization: str = "") -> Any:
    from rhymed.core.config import Config

    rollout = {"max_prompt_length": 64, "max_response_length": TOKENS, "max_concurrency": 8, "kv_cache_gib": 0.1}
    return Config.model_validate(
        {
            "run": {"folder": str(folder), "name": method},
            "model": {
                "path": str(model),
                "dtype": ARCHITECTURES[name].get("dtype", "float32"),
                "quantization": quantization,
            },
            "trainer": {"lora": {"rank": 4, "alpha": 8}},
            "rollout": rollout,
            "drafts": {"method": method, "budget": "fixed", "max_length": 5},
        }
    )


async def _sampled(engine: Any, config: Any) -> list[Any]:
    from rhymed.core.messages import SampleId
    from rhymed_workers.engines.base import Task, sampling_for

    tasks = []
    for prompt, tokens in PROMPTS.items():
        for index in range(GROUP):
            id = SampleId(step=0, prompt=prompt, index=index)
            tasks.append(Task(id, tokens, sampling_for(config.rollout, config.eval, config.run.seed, id)))
    return list(await asyncio.gather(*(engine.generate(task) for task in tasks)))


def _sequences(outputs: Sequence[Any]) -> list[Any]:
    import numpy as np

    from rhymed_workers.trainer.policy.packing import Sequences

    prompts = [tokens for tokens in PROMPTS.values() for _ in range(GROUP)]
    return [
        Sequences(np.array(prompt), one.tokens.astype(np.int64)) for prompt, one in zip(prompts, outputs, strict=True)
    ]


def _mismatch(policy: Any, outputs: Sequence[Any]) -> float:
    import numpy as np
    import torch

    from rhymed_workers.trainer.algorithms.losses import k3
    from rhymed_workers.trainer.policy.packing import micro_batches

    given = _sequences(outputs)
    engine_N = torch.from_numpy(np.concatenate([one.logprobs for one in outputs]))
    own_N = torch.full_like(engine_N, torch.nan)
    for batch in micro_batches(given, range(len(given)), 256, grade=policy.grade):
        own_N[torch.from_numpy(batch.flat_N)] = policy.logprobs(batch)
    return float(k3(engine_N, own_N).mean())


def _update(policy: Any, optimizer: Any, outputs: Sequence[Any]) -> None:
    """Some tokens become more likely, others less."""
    import torch

    from rhymed_workers.trainer.policy.packing import micro_batches

    given = _sequences(outputs)
    for batch in micro_batches(given, range(len(given)), 256, grade=policy.grade):
        policy.backward(batch, lambda logp_N, entropy_N, flat_N: (logp_N.exp() * torch.cos(flat_N)).sum())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


async def _compared(name: str, folder: Path, method: str) -> dict[str, Any]:
    import numpy as np
    import torch
    from transformers import AutoModelForCausalLM

    from rhymed.core.config import Lora
    from rhymed_workers.engines.base import Output
    from rhymed_workers.engines.vllm import VllmEngine
    from rhymed_workers.lora.folder import entries
    from rhymed_workers.trainer.policy.lora import LoraPolicy
    from rhymed_workers.trainer.policy.policy import Policy
    from rhymed_workers.trainer.publish import Publisher

    torch.set_num_threads(1)
    source, first, last = folder / "source", folder / "first", folder / "last"
    write(name, source)
    policy = Policy.load(source)
    optimizer = torch.optim.Adam(policy.trained(), LR)
    draw = np.random.default_rng(0)
    none = np.zeros(TOKENS, np.float32)
    outputs = [Output(draw.integers(2, 320, TOKENS).astype(np.uint32), none, "stop", []) for _ in range(2 * GROUP)]
    _update(policy, optimizer, outputs)
    policy.save(first)
    _tokenizer(first)
    config = _config(name, first, folder, method)
    publisher = Publisher(folder / "weights", config.model.dtype)
    adapters = Publisher(folder / "adapters", "float32")
    for one in ("weights", "adapters", method):
        (folder / one).mkdir(mode=0o700, exist_ok=True)
    engine = VllmEngine(config, first)
    row: dict[str, Any] = {"grade": policy.grade.name.lower(), "dtype": config.model.dtype}
    row["names"] = set(policy.tensors()) == set(entries(source)) - set(_tied(source))
    await engine.open()
    try:
        mismatch, stale = list[float](), list[float]()
        for version in range(UPDATES + 1):
            if version:
                _update(policy, optimizer, outputs)
                stale.append(_mismatch(policy, outputs))
            path = publisher.publish(version, policy.tensors().items()).path
            await engine.load(version, path)
            outputs = await _sampled(engine, config)
            mismatch.append(_mismatch(policy, outputs))
            if version == 0 and method != "none":
                row |= await _again(engine, config, outputs)
        row |= {"mismatch": mismatch, "with weights of before": stale}
        policy.save(last)
        again = AutoModelForCausalLM.from_pretrained(last, dtype=torch.float32).state_dict()
        row["export"] = all(torch.equal(again[key], value) for key, value in policy.model.state_dict().items())
        try:
            adapted = LoraPolicy(Lora(rank=4, alpha=8), first)
            row["lora"] = sorted({layer.rpartition(".")[2] for layer in adapted.about.layers})
            optimizer = torch.optim.Adam(adapted.trained(), LR)
            for _ in range(2):
                _update(adapted, optimizer, outputs)
            path = adapters.publish(9, adapted.tensors().items(), adapted.metadata()).path
            await engine.load(9, path)
            row["mismatch with lora"] = _mismatch(adapted, await _sampled(engine, config))
        except Exception as error:
            row["lora"] = str(error)[:300]
    finally:
        await engine.close()
        publisher.close()
        adapters.close()
    return row


async def _in_4_bits(name: str, folder: Path) -> dict[str, Any]:
    import torch

    from rhymed.core.config import Lora
    from rhymed.inputs.quantised import base_of
    from rhymed_workers.engines.vllm import VllmEngine
    from rhymed_workers.trainer.policy.backbone import load_model
    from rhymed_workers.trainer.policy.lora import LoraPolicy
    from rhymed_workers.trainer.publish import Publisher

    torch.set_num_threads(1)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    write(name, folder / "source")
    config = _config(name, folder / "source", folder, "none", "nf4")
    base = base_of(config)
    policy = LoraPolicy(Lora(rank=4, alpha=8), base, model=load_model(base, quantised=True))
    optimizer = torch.optim.Adam(policy.trained(), LR)
    for one in ("adapters", "none"):
        (folder / one).mkdir(mode=0o700, exist_ok=True)
    publisher, engine = Publisher(folder / "adapters", "float32"), VllmEngine(config, base)
    mismatch, stale, outputs = list[float](), list[float](), list[Any]()
    await engine.open()
    try:
        for version in range(UPDATES + 1):
            if version:
                _update(policy, optimizer, outputs)
                stale.append(_mismatch(policy, outputs))
            path = publisher.publish(version, policy.tensors().items(), policy.metadata()).path
            await engine.load(version, path)
            outputs = await _sampled(engine, config)
            mismatch.append(_mismatch(policy, outputs))
    finally:
        await engine.close()
        publisher.close()
    about = {"grade": policy.grade.name.lower(), "dtype": config.model.dtype, "layers": len(policy.about.layers)}
    return {**about, "mismatch": mismatch, "with weights of before": stale}


def _tied(folder: Path) -> list[str]:
    config = json.loads((folder / "config.json").read_text())
    return ["lm_head.weight"] if config.get("tie_word_embeddings") else []


async def _again(engine: Any, config: Any, before: Sequence[Any]) -> dict[str, Any]:
    """The same samples, with drafts from `before`, which they are."""
    from rhymed.core.messages import SampleId

    for at, (prompt, tokens) in enumerate(PROMPTS.items()):
        past: list[Any] = [
            SimpleNamespace(info=SimpleNamespace(id=SimpleNamespace(step=0), reward=1.0), tokens=one.tokens)
            for one in before[GROUP * at : GROUP * (at + 1)]
        ]
        await engine.remember(prompt, tokens, past)
    again = await _sampled(engine, config)
    ids = [SampleId(step=0, prompt=prompt, index=index) for prompt in PROMPTS for index in range(GROUP)]
    reports = await engine.drafting(ids)
    same = [one.tokens.tolist() == two.tokens.tolist() for one, two in zip(before, again, strict=True)]
    return {
        "accepted drafts": sum(one.drafting.accepted for one in reports if one.drafting),
        "samples with the same tokens": f"{sum(same)} of {len(same)}",
    }


if __name__ == "__main__":
    name, folder, part = sys.argv[1:]  # part: `drafts.method`, or nf4
    work = _in_4_bits(name, Path(folder)) if part == "nf4" else _compared(name, Path(folder), part)
    print("\n" + json.dumps(asyncio.run(work)), flush=True)
