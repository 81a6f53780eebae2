"""Freeze verl's GAE, whitening and value loss on seeded batches: what `tests/workers/trainer/algorithms/test_gae.py`
expects.

    pip install --no-deps --target /tmp/verl verl==0.9.1 ray omegaconf antlr4-python3-runtime==4.9.3 tensordict \
        hydra-core orjson
    PYTHONPATH=/tmp/verl python scripts/freeze_verl_gae.py tests/data/gae_verl.json

Runs verl's own functions in float64. The masks have holes, which stand for tokens of an environment. verl gives the
score to a response's last token; here the last token is always one that the policy wrote.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from verl.trainer.ppo import core_algos

SAMPLES, LONGEST = 5, 9
LENGTHS = [9, 1, 4, 7, 2]
CASES = [
    {"gamma": 1.0, "lam": 1.0, "clip": 0.5, "holes": False},
    {"gamma": 0.9, "lam": 0.8, "clip": 0.2, "holes": False},
    {"gamma": 0.97, "lam": 0.95, "clip": 0.5, "holes": True},
    {"gamma": 1.0, "lam": 0.0, "clip": 0.1, "holes": True},
]


def run(case: dict[str, Any], seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def noise() -> torch.Tensor:
        return torch.randn((SAMPLES, LONGEST), generator=generator, dtype=torch.float64)

    lengths = torch.tensor(LENGTHS)
    inside = torch.arange(LONGEST)[None] < lengths[:, None]
    last = torch.arange(LONGEST)[None] == lengths[:, None] - 1
    mask = inside & ((noise() > -0.3) | last) if case["holes"] else inside
    kl, values, scores = noise().abs() * 0.1, noise(), noise()[:, 0]
    rewards = (scores[:, None] * last - 0.1 * kl) * mask
    advantages, returns = core_algos.compute_gae_advantage_return(
        rewards, values * inside, mask.long(), case["gamma"], case["lam"]
    )
    new = (values + 0.4 * noise()).requires_grad_()
    loss, clipped = core_algos.compute_value_loss(new, returns, values, mask.long(), case["clip"])
    loss.backward()
    found = {
        "mask": mask,
        "kl": kl,
        "values": values,
        "advantages": advantages,
        "returns": returns,
        "new": new.detach(),
        "gradient": new.grad,
    }
    flat = {name: tensor[inside].tolist() for name, tensor in found.items()}
    return {**case, **flat, "scores": scores.tolist(), "loss": loss.item(), "clipped": float(clipped)}


def main(path: Path) -> None:
    frozen = {
        "made_with": {"verl": version("verl"), "script": "scripts/freeze_verl_gae.py"},
        "kl_coef": 0.1,
        "lengths": LENGTHS,
        "cases": [run(case, number) for number, case in enumerate(CASES)],
    }
    path.write_text(json.dumps(frozen) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
