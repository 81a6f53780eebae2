"""Attention on a GPU, in two forms of the same mask: variable-length flash kernels and FlexAttention.

Flash kernels know 16-bit numbers only, and get each response's keys as one sequence: its prompt's and its own.
FlexAttention compiles a kernel from the mask function. Not tried on a GPU; tests compare both forms of the mask with
the dense one on a processor. Knows no models.

Axes of tensors: (1, heads, T, head size); keys and values may have fewer heads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rhymed_workers.trainer.policy.mask import Layout


def has_varlen() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # torch before 2.10
        return False
    return callable(varlen_attn)


def flash(query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None, scale: float) -> Tensor:
    """With more keys than queries, the last query meets the last key: a response continues its prompt."""
    from torch.nn.attention.varlen import varlen_attn

    plan = layout.sequenced()
    heads = query.shape[1]
    query_TD, key_TD, value_TD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if plan.keys_K is not None:
        key_TD, value_TD = key_TD.index_select(0, plan.keys_K), value_TD.index_select(0, plan.keys_K)
    output: Any = varlen_attn(
        query_TD.contiguous(),
        key_TD.contiguous(),
        value_TD.contiguous(),
        plan.query_starts,
        plan.key_starts,
        plan.longest_query,
        plan.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=heads != key.shape[1],
    )
    return output.transpose(0, 1)[None]


def flex(query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None, scale: float) -> Tensor:
    output: Any = _compiled()(
        query,
        key,
        value,
        block_mask=layout.block_mask(window),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return output


@functools.cache
def _compiled() -> Callable[..., Any]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
