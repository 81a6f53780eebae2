"""The value model: a language model whose head gives one number for each state instead of logits.

The value of a response token is that of the state before it, at the position that predicts the token. It is computed
on the policy's micro-batches, with the policy's own function of hidden states. The head begins at 0, so the values of
the first step are exactly 0, and its advantages are the (discounted) rewards to go. Knows no rewards, no optimizer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rhymed_workers.trainer.policy import sharded
from rhymed_workers.trainer.policy.backbone import Compute, base_of, device_of, hidden_states, load_model, prepare
from rhymed_workers.trainer.policy.packing import MicroBatch

ValueLoss = Callable[[Tensor], Tensor]
"""Values of a micro-batch's response tokens, which carry gradient -> scalar."""


class ValueModel(nn.Module):
    def __init__(self, model: Any, dtype: torch.dtype = torch.float32) -> None:
        """`model`: a causal language model, whose head is not kept. `dtype`: in which its body computes."""
        super().__init__()
        self.body, self._dtype = base_of(prepare(model)), dtype
        self.head = nn.Linear(model.get_output_embeddings().weight.shape[1], 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.to(device_of(model))

    @classmethod
    def load(cls, folder: Path, compute: Compute | None = None, mesh: Any = None) -> ValueModel:
        """With the body of the causal language model in a Hugging Face folder, and a head that begins at 0.

        `mesh`: of the devices that share the weights.
        """
        compute = compute or Compute()
        if mesh is not None:
            return sharded.load(folder, compute, mesh, partial(cls, dtype=getattr(torch, compute.dtype)))
        return cls(load_model(folder, compute), getattr(torch, compute.dtype))

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> Tensor:
        """(N,) values of the states before the batch's response tokens, in the batch's order, on the device."""
        return self(batch)

    def forward(self, batch: MicroBatch) -> Tensor:
        """As `values`, with their gradient."""
        hidden_NH = hidden_states(self.body, batch, self._dtype).float()
        values_N: Tensor = self.head(hidden_NH).squeeze(-1)
        return values_N

    def backward(self, batch: MicroBatch, loss: ValueLoss) -> Tensor:
        """Add the gradient of `loss` to the parameters' `grad`; returns its value, a scalar on the device."""
        total = loss(self(batch))
        total.backward()
        return total.detach()
