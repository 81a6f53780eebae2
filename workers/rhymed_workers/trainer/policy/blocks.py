"""Attention on a processor: block by block with torch's flash kernel, linear in memory, with its gradient.

A block's queries meet only the keys that they see (`mask.Layout.blocks`). torch's own function for whole rows needs a
mask of T x T as soon as rows share a prompt or have a window. Knows no models.

Axes of tensors: (1, heads, T, head size).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rhymed_workers.trainer.policy.mask import Block, Layout

forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class BlockAttention(torch.autograd.Function):
    """(query, key, value, layout, window, scale) -> (1, heads, T, head size). All have the same number of heads."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None, scale: float
    ) -> Tensor:
        output = torch.empty_like(query)
        sums = []
        for block in layout.blocks(window):
            queries = slice(*block.queries)
            keys, values = _gather(key, block), _gather(value, block)
            mask = None if block.causal else layout.additive(block, window, query.dtype)
            output[:, :, queries], logsumexp = forward_kernel(
                query[:, :, queries], keys, values, 0.0, block.causal, attn_mask=mask, scale=scale
            )
            sums.append(logsumexp)
        ctx.save_for_backward(query, key, value, output, *sums)
        ctx.layout, ctx.window, ctx.scale = layout, window, scale
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        query, key, value, output, *sums = ctx.saved_tensors
        wide = torch.promote_types(key.dtype, torch.float32)  # a key's gradient is a sum over blocks
        by_query = torch.empty_like(query)
        by_key, by_value = torch.zeros_like(key, dtype=wide), torch.zeros_like(value, dtype=wide)
        for block, logsumexp in zip(ctx.layout.blocks(ctx.window), sums, strict=True):
            queries = slice(*block.queries)
            mask = None if block.causal else ctx.layout.additive(block, ctx.window, query.dtype)
            by_query[:, :, queries], keys, values = backward_kernel(
                gradient[:, :, queries],
                query[:, :, queries],
                _gather(key, block),
                _gather(value, block),
                output[:, :, queries],
                logsumexp,
                0.0,
                block.causal,
                attn_mask=mask,
                scale=ctx.scale,
            )
            _scatter(by_key, keys, block)
            _scatter(by_value, values, block)
        return by_query, by_key.to(key.dtype), by_value.to(value.dtype), None, None, None


def _gather(tensor: Tensor, block: Block) -> Tensor:
    parts = [tensor[:, :, first:last] for first, last in block.keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _scatter(total: Tensor, part: Tensor, block: Block) -> None:
    at = 0
    for first, last in block.keys:
        total[:, :, first:last] += part[:, :, at : at + last - first]
        at += last - first
