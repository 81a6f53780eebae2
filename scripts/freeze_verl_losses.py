"""Freeze verl's policy losses, aggregations and advantages, for `tests/workers/trainer/algorithms/test_verl.py`.

    pip install --no-deps --target /tmp/verl verl==0.9.1 ray omegaconf antlr4-python3-runtime==4.9.3 tensordict \
        hydra-core orjson
    PYTHONPATH=/tmp/verl python scripts/freeze_verl_losses.py tests/data/losses_verl.json

Runs verl's own functions in float64 on padded rows; gradients are those of the log-probs. `settings` are our names
for the same loss. verl's DPPO multiplies a stopped ratio with the log-prob: its gradient is compared, not its value.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos
from verl.workers.config import ActorConfig

LENGTHS, LONGEST = [9, 1, 4, 7, 2, 5], 9
GROUPS = [0, 0, 0, 1, 1, 1]
CAP = 1.3
CLIP = {"clip_eps_low": 0.2, "clip_eps_high": 0.28}
TIS = {"correction": "token-tis", "tis_cap": CAP}
NO = {"correction": "none"}
CASES: list[dict[str, Any]] = [
    {"loss": "vanilla", "algorithm": "grpo", "settings": CLIP | NO | {"dual_clip": 3.0, "aggregation": mode}}
    for mode in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
] + [
    {"loss": "vanilla", "algorithm": "bnpo", "settings": CLIP | TIS | {"dual_clip": 3.0}},
    {"loss": "vanilla", "algorithm": "bnpo", "settings": CLIP | NO | {"dual_clip": 1.05}},
    {"loss": "gspo", "algorithm": "gspo", "settings": CLIP | TIS},
    {"loss": "gspo", "algorithm": "gspo", "settings": NO},
    {"loss": "sapo", "algorithm": "sapo", "settings": TIS},
    {"loss": "geo_mean", "algorithm": "gmpo", "settings": CLIP | NO},
    {"loss": "cispo", "algorithm": "cispo", "settings": TIS | {"cispo_min": 0.8, "cispo_max": 1.28}},
    {"loss": "dppo_tv", "algorithm": "dppo", "settings": {"dppo_kl_tau": 0.0, "dppo_mask_low": 0.05}},
]
ADVANTAGES: list[dict[str, Any]] = [
    {"kind": "grpo_outcome", "algorithm": "grpo", "given": {"norm_adv_by_std_in_grpo": True, "epsilon": 1e-4}},
    {"kind": "grpo_outcome", "algorithm": "dr_grpo", "given": {"norm_adv_by_std_in_grpo": False}},
    {"kind": "rloo_outcome", "algorithm": "rloo", "given": {}},
    {"kind": "reinforce_plus_plus_baseline_outcome", "algorithm": "reinforce++-baseline", "given": {}},
    {"kind": "reinforce_plus_plus_outcome", "algorithm": "reinforce++", "given": {"gamma": 0.9}},
]


def rows(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn((len(LENGTHS), LONGEST), generator=generator, dtype=torch.float64)

    old = -noise().abs()
    rewards = noise()[:, 0]
    return {
        "old": old,
        "logp": old + 0.3 * noise(),
        "engine": old + 0.2 * noise(),
        "advantages": noise()[:, :1].expand(-1, LONGEST),
        "mask": (torch.arange(LONGEST)[None] < torch.tensor(LENGTHS)[:, None]).long(),
        "rewards": rewards,
    }


def flat(values: torch.Tensor, mask: torch.Tensor) -> list[float]:
    return values[mask.bool()].tolist()


def loss(case: dict[str, Any], seed: int) -> dict[str, Any]:
    given, settings = rows(seed), case["settings"]
    mask, dppo = given["mask"], case["loss"] == "dppo_tv"
    low = settings.get("clip_eps_low", 3e-4 if case["loss"] == "gspo" else 0.2)
    high = settings.get("clip_eps_high", 4e-4 if case["loss"] == "gspo" else 0.2)
    if case["loss"] == "cispo":
        low, high = 1 - settings["cispo_min"], settings["cispo_max"] - 1
    if dppo:
        low, high = settings["dppo_mask_low"], 0.2
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=settings.get("dual_clip", 20.0 if dppo else 3.0),
        loss_scale_factor=LONGEST,
    )
    config.global_batch_info["loss_scale_factor"] = LONGEST
    logp = given["logp"].clone().requires_grad_()
    weights = None
    if settings.get("correction") == "token-tis":
        weights = (given["old"] - given["engine"]).exp().clamp(max=CAP)
    modes = {"gspo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean"}
    value, _ = core_algos.get_policy_loss_fn(case["loss"])(
        old_log_prob=given["engine"] if dppo else given["old"],
        log_prob=logp,
        advantages=given["advantages"],
        response_mask=mask,
        loss_agg_mode=settings.get("aggregation", modes.get(case["loss"], "token-mean")),
        config=config,
        rollout_is_weights=weights,
    )
    value.backward()
    fields = {name: flat(given[name], mask) for name in ("old", "logp", "engine", "advantages")}
    return {"case": case, "value": None if dppo else value.item(), "gradient": flat(logp.grad, mask), **fields}


def advantages(case: dict[str, Any], seed: int) -> dict[str, Any]:
    given, extra = rows(seed), dict(case["given"])
    mask, last = given["mask"], torch.tensor(LENGTHS) - 1
    scores = torch.zeros((len(LENGTHS), LONGEST), dtype=torch.float64)
    scores[torch.arange(len(LENGTHS)), last] = given["rewards"]
    if "gamma" in extra:
        extra = {"config": OmegaConf.create({"gamma": extra["gamma"]})}
    else:
        extra["index"] = np.array(GROUPS)
    found, _ = getattr(core_algos, f"compute_{case['kind']}_advantage")(scores.clone(), mask, **extra)
    return {"case": case, "rewards": given["rewards"].tolist(), "advantages": flat(found, mask)}


def main(path: Path) -> None:
    frozen = {
        "made_with": {"verl": version("verl"), "script": "scripts/freeze_verl_losses.py"},
        "lengths": LENGTHS,
        "longest": LONGEST,
        "groups": GROUPS,
        "losses": [loss(case, number) for number, case in enumerate(CASES)],
        "advantages": [advantages(case, number) for number, case in enumerate(ADVANTAGES)],
    }
    path.write_text(json.dumps(frozen))
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
