"""Freeze TRL's generalised Jensen-Shannon divergence and its gradient: what `test_divergence.py` expects.

    pip install --no-deps --target /tmp/trl trl==1.16.0
    PYTHONPATH=/tmp/trl python scripts/freeze_trl_distillation.py tests/data/distillation_trl.json

Runs TRL's own `GKDTrainer.generalized_jsd_loss` in float64 on seeded logits, for several mixtures and temperatures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from trl import __version__
from trl.experimental.gkd import GKDTrainer

TOKENS, VOCABULARY = 5, 7
CASES = [(beta, temperature) for temperature in (1.0, 0.7) for beta in (0.0, 0.1, 0.5, 0.8, 1.0)]


def frozen(beta: float, temperature: float, student: torch.Tensor, teacher: torch.Tensor) -> dict[str, Any]:
    leaf = student.clone().requires_grad_()
    settings = {"beta": beta, "temperature": temperature, "reduction": "sum"}
    loss = GKDTrainer.generalized_jsd_loss(leaf[None], teacher[None], **settings)
    loss.backward()
    return {"beta": beta, "temperature": temperature, "loss": loss.item(), "gradient": leaf.grad.tolist()}


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    student, teacher = 2 * torch.randn((2, TOKENS, VOCABULARY), generator=generator, dtype=torch.float64)
    content = {
        "trl": __version__,
        "student": student.tolist(),
        "teacher": teacher.tolist(),
        "cases": [frozen(beta, temperature, student, teacher) for beta, temperature in CASES],
    }
    Path(sys.argv[1]).write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
