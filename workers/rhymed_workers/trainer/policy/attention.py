"""The attention function of packed sequences, for any model of transformers that lets others choose it.

Owns the choice of the kernel and the refusal of attention that it does not know. transformers makes no mask for a
function that it does not know; `hidden_states` passes the layout through the model's keyword arguments instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rhymed.errors import TrainerError
from rhymed_workers.trainer.policy import kernels
from rhymed_workers.trainer.policy.blocks import BlockAttention
from rhymed_workers.trainer.policy.mask import Layout

NAME = "rhymed"
KINDS = {"full_attention", "sliding_attention"}
UNKNOWN = ("softcap", "s_aux", "position_bias")
"""Arguments of attention functions that change scores, which the kernels here do not."""


def install(model: Any) -> None:
    """Makes the model use `attend`. Raises `TrainerError` for one whose attention it does not know."""
    from transformers import AttentionInterface

    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ()) - KINDS
    if kinds or getattr(model, "_is_stateful", False) or not getattr(model, "_supports_attention_backend", False):
        what = " and ".join(sorted(kinds)) or "attention that transformers cannot exchange"
        raise TrainerError(f"{type(model).__name__} cannot be trained: it has {what}")
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: Layout | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """(1, heads, T, head size) each -> (1, T, heads, head size). Raises `TrainerError` for an unknown kind."""
    odd = [f"uses {name}" for name in UNKNOWN if others.get(name) is not None]
    odd += ["gets no layout of packed sequences"] * (layout is None)
    odd += ["has a mask of its own"] * (attention_mask is not None)
    odd += ["is not causal"] * (others.get("is_causal", getattr(module, "is_causal", True)) is False)
    odd += ["has another window than its configuration says"] * ((sliding_window or None) != _window(module))
    if odd or layout is None:
        raise TrainerError(f"{type(module).__name__} cannot be trained: it {' and '.join(odd)}")
    layout.calls += 1
    query, key = query.to(value.dtype), key.to(value.dtype)  # rotation makes them wider than the computation
    window = sliding_window if sliding_window and sliding_window < layout.longest else None
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    size = value.shape[-1]
    if size != query.shape[-1]:  # e.g. DeepSeek: the kernels want one size
        value = torch.nn.functional.pad(value, (0, query.shape[-1] - size))
    output = _kernel(query, key, value, layout, window, scale)
    return output[..., :size].transpose(1, 2), None


def _kernel(query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None, scale: float) -> Tensor:
    if query.device.type == "cuda":
        short = query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] <= 256
        chosen = kernels.flash if short and kernels.has_varlen() else kernels.flex
        return chosen(query, key, value, layout, window, scale)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    output: Tensor = BlockAttention.apply(query, key, value, layout, window, scale)
    return output


def _window(module: Any) -> int | None:
    """The layer's sliding window by the model's configuration, which its argument has to agree with."""
    config = module.config
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        sliding = kinds[module.layer_idx] == "sliding_attention"
    else:
        sliding = getattr(config, "use_sliding_window", True)
    window: int | None = getattr(config, "sliding_window", None) if sliding else None
    return window or None
