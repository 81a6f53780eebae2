"""Freeze TRL's losses and gradients on a tiny batch, for `tests/workers/trainer/algorithms/test_trl.py`.

    pip install --no-deps --target /tmp/trl trl==1.16.0
    PYTHONPATH=/tmp/trl python scripts/freeze_trl.py tests/data/losses_trl.json

Runs `_compute_loss` of TRL's own trainers (GRPO, GMPO, RLOO) in fp32, for several settings. The importance ratio
between engine and trainer is an input of that function; it is made here as `_generate_and_score_completions` does.
Advantages are frozen from the same formula on rewards with TRL's own `nanstd`.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer, __version__
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
from trl.trainer.utils import nanstd

GROUPS, GROUP, PROMPT, RESPONSE, VOCABULARY = 2, 4, 6, 9, 48
CAP = 2.0
TRAINERS = {
    "GRPO": (GRPOTrainer, GRPOConfig),
    "GMPO": (GMPOTrainer, GMPOConfig),
    "RLOO": (RLOOTrainer, RLOOConfig),
}
PPO = {"epsilon": 0.2, "epsilon_high": 0.28}  # of TRL; what follows are our names for the same
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
CASES: list[dict[str, Any]] = [
    case
    | {"trainer": case.get("trainer", "GRPO"), "temperature": case.get("temperature", 1.0)}
    | {"args": case.get("clip", PPO) | {"beta": 0.0} | case["args"]}
    for case in (
        {
            "args": {"loss_type": "dapo"},
            "algorithm": "dapo",
            "settings": {"overlong_filter": False, "overlong_cache": 0.0},
            "correct": "token_truncate",
        },
        {
            "args": {"loss_type": "dapo", "beta": 0.1},
            "algorithm": "bnpo",
            "settings": CLIP | {"kl_coef": 0.1},
            "temperature": 0.7,
            "correct": "token_truncate",
        },
        {"args": {"loss_type": "bnpo"}, "algorithm": "bnpo", "settings": CLIP},
        {"args": {"loss_type": "grpo"}, "algorithm": "grpo", "settings": CLIP, "correct": "token_truncate"},
        {
            "args": {"loss_type": "grpo", "beta": 0.04},
            "algorithm": "grpo",
            "settings": CLIP | {"kl_coef": 0.04},
            "temperature": 1.3,
        },
        {
            "args": {"loss_type": "grpo", "vllm_importance_sampling_mode": "sequence_mask"},
            "algorithm": "grpo",
            "settings": CLIP | {"correction": "sequence-mask", "sequence_mask_cap": 1.1},
            "correct": "sequence_mask",
            "cap": 1.1,
        },
        {
            "args": {"loss_type": "grpo", "off_policy_mask_threshold": 0.1},
            "algorithm": "grpo",
            "settings": CLIP | {"off_policy_mask": 0.1},
        },
        {"args": {"loss_type": "dr_grpo"}, "algorithm": "dr_grpo", "settings": CLIP | {"advantage_scale": "group"}},
        {
            "args": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
            "algorithm": "gspo",
            "settings": {},
            "clip": {"epsilon": 3e-4, "epsilon_high": 4e-4},
        },
        {
            "args": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
            "algorithm": "gspo",
            "settings": CLIP | {"correction": "sequence-mask"},
            "correct": "sequence_mask",
            "cap": 3.0,
        },
        {
            "args": {"loss_type": "cispo"},
            "algorithm": "cispo",
            "settings": {"cispo_max": 1.2},
            "clip": {"epsilon_high": 1.2},
            "correct": "token_truncate",
        },
        {"args": {"loss_type": "sapo"}, "algorithm": "sapo", "settings": {}, "correct": "token_truncate"},
        {
            "args": {"loss_type": "grpo", "entropy_coef": 0.07},
            "algorithm": "grpo",
            "settings": CLIP | {"entropy_coef": 0.07},
            "temperature": 0.7,
        },
        {
            "args": {"loss_type": "dr_grpo", "entropy_coef": -0.03},
            "algorithm": "dr_grpo",
            "settings": CLIP | {"advantage_scale": "group", "entropy_coef": -0.03},
        },
        {
            "args": {},
            "trainer": "GMPO",
            "algorithm": "gmpo",
            "settings": {},
            "clip": {"epsilon": 0.4, "epsilon_high": 0.4},
        },
        {
            "args": {},
            "trainer": "RLOO",
            "algorithm": "rloo",
            "settings": {"kl_coef": 0.0},
            "clip": {"epsilon": 0.2, "epsilon_high": 0.2},
        },
    )
]
"""TRL's trainer and arguments, and the algorithm and settings of ours that stand for the same loss."""

SAMPLED = 12  # of each gradient


def tiny() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def batch() -> dict[str, torch.Tensor]:
    """Left-padded prompts, right-padded responses, as TRL has them."""
    generator = torch.Generator().manual_seed(1)
    count = GROUPS * GROUP
    prompts = torch.randint(1, VOCABULARY, (GROUPS, PROMPT), generator=generator).repeat_interleave(GROUP, 0)
    prompt_mask = torch.ones_like(prompts)
    prompt_mask[:GROUP, :2] = 0  # the first group's prompt is two tokens shorter
    prompts[prompt_mask == 0] = 0
    lengths = torch.tensor([9, 3, 1, 7, 5, 9, 2, 4])
    mask = (torch.arange(RESPONSE)[None] < lengths[:, None]).long()
    responses = torch.randint(1, VOCABULARY, (count, RESPONSE), generator=generator) * mask
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": responses,
        "completion_mask": mask,
        "rewards": torch.tensor([1.0, 0.0, 0.5, 0.0, 0.2, 0.9, 0.9, 0.1]),
        "noise_old": torch.randn((count, RESPONSE), generator=generator) * 0.3,
        "noise_engine": torch.randn((count, RESPONSE), generator=generator) * 0.5,
        "noise_reference": torch.randn((count, RESPONSE), generator=generator) * 0.4,
    }


def trainer(case: dict[str, Any], model: LlamaForCausalLM, folder: str) -> Any:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0")), pad_token="w0", eos_token="w1"
    )
    kind, settings = TRAINERS[case["trainer"]]
    args = settings(
        output_dir=folder,
        per_device_train_batch_size=GROUPS * GROUP,
        num_generations=GROUP,
        max_completion_length=RESPONSE,
        temperature=case["temperature"],
        bf16=False,
        use_cpu=True,
        report_to=[],
        gradient_checkpointing=False,
        **case["args"],
    )
    rows = Dataset.from_list([{"prompt": "w2"}] * 8)
    reward = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
    return kind(model, reward, args=args, train_dataset=rows, processing_class=tokenizer)


def engine_ratio(difference: torch.Tensor, mode: str, cap: float) -> torch.Tensor:
    """As `_generate_and_score_completions` makes it. `difference`: 0 where there is no token."""
    if mode == "token_truncate":
        return difference.exp().clamp(max=cap)
    ratio = difference.sum(1, keepdim=True).exp()
    return ratio.masked_fill(ratio > cap, 0.0)


def run(case: dict[str, Any]) -> dict[str, Any]:
    given = batch()
    with tempfile.TemporaryDirectory() as folder:
        tiny().save_pretrained(folder)  # TRL loads the reference model from where the policy came from
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        made = trainer(case, model, folder)
        made.current_gradient_accumulation_steps = 1
        ids = torch.cat([given["prompt_ids"], given["completion_ids"]], 1)
        attention = torch.cat([given["prompt_mask"], given["completion_mask"]], 1)
        model.train()
        with torch.no_grad():
            logps, _, _ = made._get_per_token_logps_and_entropies(model, ids, attention, RESPONSE)
        mask = given["completion_mask"]
        old, engine = logps + given["noise_old"], logps + given["noise_old"] + given["noise_engine"]
        reference = logps + given["noise_reference"]
        grouped = given["rewards"].view(GROUPS, GROUP)
        centred = grouped - torch.nanmean(grouped, dim=1, keepdim=True)
        advantages = (centred / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)).flatten()
        inputs = {
            **given,
            "advantages": advantages,
            "old_per_token_logps": old,
            "ref_per_token_logps": reference,
            "old_logps": (old * mask).sum(1),
            "num_items_in_batch": mask.sum(),
        }
        if mode := case.get("correct"):  # what `use_vllm` does to the loss; the engine itself is not needed
            made.use_vllm, made.vllm_importance_sampling_correction = True, True
            inputs["importance_sampling_ratio"] = engine_ratio((old - engine) * mask, mode, case.get("cap", CAP))
        model.zero_grad()
        loss = made._compute_loss(model, inputs)
        loss.backward()
        metrics = made._metrics["train"]
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    flat = [
        values[row, : int(mask[row].sum())] for values in (old, engine, reference, logps) for row in range(len(mask))
    ]
    rows = len(mask)
    return {
        "case": case,
        "loss": loss.item(),
        "clipped": next(iter(metrics["clip_ratio/region_mean"]), None),
        "entropy": metrics["entropy"][0],
        "kl": metrics["kl"][0] if case["args"]["beta"] else None,
        "gradient_norm": norm.item(),
        "gradients": {
            name: gradient.flatten()[:: max(1, gradient.numel() // SAMPLED)].tolist()
            for name, gradient in gradients.items()
        },
        "advantages": advantages.tolist(),
        **{
            name: torch.cat(flat[index * rows : (index + 1) * rows]).tolist()
            for index, name in enumerate(("old", "engine", "reference", "logps"))
        },
    }


def decoupled() -> dict[str, Any]:
    """Advantages of GDPO from the formula of `multi_objective_aggregation="normalize_then_sum"`. None: no reward."""
    generator, missing = torch.Generator().manual_seed(2), torch.nan
    rewards = torch.randint(0, 4, (GROUPS * GROUP, 3), generator=generator) / 2
    rewards[:, 2] *= 40  # another scale
    rewards[GROUP:, 0] = 1.0  # all equal
    rewards[1, 1] = rewards[6, 1] = missing
    weights = torch.tensor([1.0, 0.5, 2.0])
    grouped = rewards.view(GROUPS, GROUP, -1)
    centred = grouped - torch.nanmean(grouped, dim=1, keepdim=True)
    scaled = (centred / (nanstd(grouped, dim=1, keepdim=True) + 1e-4)).view_as(rewards)
    sums = (scaled * weights).nansum(dim=1)
    advantages = (sums - sums.mean()) / (nanstd(sums) + 1e-4)
    known = [[None if value != value else value for value in row] for row in rewards.tolist()]
    return {"rewards": known, "weights": weights.tolist(), "advantages": advantages.tolist()}


def main(path: Path) -> None:
    given = batch()
    prompts = [row[mask.bool()].tolist() for row, mask in zip(given["prompt_ids"], given["prompt_mask"], strict=True)]
    responses = [
        row[mask.bool()].tolist() for row, mask in zip(given["completion_ids"], given["completion_mask"], strict=True)
    ]
    model = tiny()
    frozen = {
        "made_with": {"trl": __version__, "script": "scripts/freeze_trl.py"},
        "config": {key: value for key, value in model.config.to_diff_dict().items() if key != "transformers_version"},
        "weights": {name: parameter.flatten().tolist() for name, parameter in model.named_parameters()},
        "prompts": prompts,
        "responses": responses,
        "rewards": given["rewards"].tolist(),
        "cap": CAP,
        "cases": [run(case) for case in CASES],
        "decoupled": decoupled(),
    }
    text = json.dumps(frozen)
    path.write_text(text)
    print(f"{path}: {len(text)} bytes, {hashlib.sha256(text.encode()).hexdigest()[:12]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
