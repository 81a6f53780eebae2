"""The language model as the loss sees it: log-probs and entropies of response tokens, and their gradient.

Owns the model in fp32. Logits are computed only where a response token is predicted, `LOGITS_BYTES` of them at a
time: the loss is a sum over tokens, so the gradient of a slice is computed immediately, and no logits are kept for a
backward pass. Temperature divides the logits, as it did when the engine sampled; top-k, top-p and min-p are not
applied, as usual in the field. The model runs in evaluation mode, because the engine has no dropout either. Knows
nothing of rewards or optimizers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rhymed.errors import TrainerError
from rhymed_workers.trainer.policy.packing import MicroBatch
from rhymed_workers.trainer.publish import unique

LOGITS_BYTES = 1 << 28

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(log-probs_N that carry gradient, entropies_N, flat_N) -> scalar, a sum over these tokens."""

UNKNOWN_HEADS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
"""Configuration keys of models that change logits after the head's matrix product, which this module does not."""


class Policy:
    def __init__(self, model: Any, temperature: float = 1.0) -> None:
        self.model = model.eval()
        self.temperature = temperature
        config = model.config.get_text_config()
        head = model.get_output_embeddings()
        odd = [key for key in UNKNOWN_HEADS if getattr(config, key, None) not in (None, 1.0)]
        if odd or head is None or head.bias is not None:
            what = ", ".join(odd) or "an output head that is not a plain matrix"
            raise TrainerError(f"{type(model).__name__} cannot be trained: it has {what}")
        self._weight: Tensor = head.weight

    @classmethod
    def load(cls, folder: Path, temperature: float = 1.0) -> Policy:
        """A Hugging Face folder; converted to fp32."""
        return cls(load_model(folder), temperature)

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """The weights, by their names in a Hugging Face folder, which engines read.

        In the model some architectures have other names, because transformers renames and merges tensors when it
        loads. A tied head is removed first: reverting changes the order, and the first of its names counts.
        """
        from transformers.core_model_loading import revert_weight_conversion

        return revert_weight_conversion(self.model, dict(unique(self.model.state_dict().items())))

    @torch.no_grad()
    def logprobs(self, batch: MicroBatch) -> Tensor:
        """(N,) log-probs of the batch's response tokens, in the batch's order."""
        hidden_NH, target_N = hidden_states(self.model, batch), torch.from_numpy(batch.target_N)
        return torch.cat(
            [
                self._log_softmax(hidden_NH[part]).gather(1, target_N[part, None]).squeeze(1)
                for part in self._parts(len(target_N))
            ]
        )

    def backward(self, batch: MicroBatch, loss: Loss, *, whole_sequences: bool = False) -> float:
        """Add the gradient of `loss` to the parameters' `grad`; returns its value.

        With `whole_sequences` the loss is called once, with all response tokens of the micro-batch; the logits are
        computed twice then. Otherwise it is called with one slice of them after the other.
        The head's gradient is computed by hand, which saves one buffer of logits and autograd's passes over it.
        """
        hidden_NH = hidden_states(self.model, batch)
        gradient_NH = torch.empty_like(hidden_NH)
        if self._weight.grad is None:
            self._weight.grad = torch.zeros_like(self._weight)
        target_N, flat_N = torch.from_numpy(batch.target_N), torch.from_numpy(batch.flat_N)
        value, slopes_N = self._whole_slopes(hidden_NH, target_N, flat_N, loss) if whole_sequences else (0.0, None)
        with torch.no_grad():
            for part in self._parts(len(target_N)):
                inputs_NH, target = hidden_NH.detach()[part], target_N[part, None]
                logp_NV = self._log_softmax(inputs_NH)
                probs_NV = logp_NV.exp()
                entropy_N = -torch.linalg.vecdot(probs_NV, logp_NV)
                logp_N = logp_NV.gather(1, target).squeeze(1)
                del logp_NV
                if slopes_N is None:
                    total, slope_N = _slope(loss, logp_N, entropy_N, flat_N[part])
                    value += total
                else:
                    slope_N = slopes_N[part]
                slope = slope_N[:, None] / self.temperature
                gradient_NV = probs_NV.mul_(-slope).scatter_add_(1, target, slope)
                torch.mm(gradient_NV, self._weight, out=gradient_NH[part])
                self._weight.grad.addmm_(gradient_NV.T, inputs_NH)
        hidden_NH.backward(gradient_NH)
        return value

    @torch.no_grad()
    def _whole_slopes(self, hidden_NH: Tensor, target_N: Tensor, flat_N: Tensor, loss: Loss) -> tuple[float, Tensor]:
        """Value of the loss of all tokens together, and its derivative by each log-prob."""
        logp, entropy = [], []
        for part in self._parts(len(target_N)):
            logp_NV = self._log_softmax(hidden_NH.detach()[part])
            logp.append(logp_NV.gather(1, target_N[part, None]).squeeze(1))
            entropy.append(-torch.linalg.vecdot(logp_NV.exp(), logp_NV))
        return _slope(loss, torch.cat(logp), torch.cat(entropy), flat_N)

    def _log_softmax(self, hidden_NH: Tensor) -> Tensor:
        logits_NV = hidden_NH @ self._weight.T
        return (logits_NV if self.temperature == 1 else logits_NV.div_(self.temperature)).log_softmax(-1)

    def _parts(self, count: int) -> list[slice]:
        size = max(1, LOGITS_BYTES // (4 * self._weight.shape[0]))
        return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def load_model(folder: Path) -> Any:
    """The causal language model of a Hugging Face folder, in fp32."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as output

    if not sys.stderr.isatty():
        output.disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")


def hidden_states(model: Any, batch: MicroBatch) -> Tensor:
    """(N, H) last hidden states that predict the response tokens."""
    states = model.base_model(
        input_ids=torch.from_numpy(batch.tokens_BT),
        position_ids=torch.from_numpy(batch.positions_BT),
        attention_mask=_mask(torch.from_numpy(batch.segments_BT)) if batch.packed else None,
        use_cache=False,
    ).last_hidden_state
    return states.flatten(0, 1).index_select(0, torch.from_numpy(batch.predictor_N))


def _slope(loss: Loss, logp_N: Tensor, entropy_N: Tensor, flat_N: Tensor) -> tuple[float, Tensor]:
    """Value of the loss, and its derivative by each log-prob."""
    with torch.enable_grad():
        leaf_N = logp_N.detach().requires_grad_()
        total = loss(leaf_N, entropy_N, flat_N)
        (slope_N,) = torch.autograd.grad(total, leaf_N)
    return total.item(), slope_N


def _mask(segments_BT: Tensor) -> Tensor:
    """(B, 1, T, T), True where a query (rows) attends: earlier positions of the prompt and of its own response."""
    key, query = segments_BT[:, None, :], segments_BT[:, :, None]
    return (((key == 0) | (key == query)).tril()).unsqueeze(1)
