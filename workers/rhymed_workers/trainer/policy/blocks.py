"""Attention on a processor: block by block with torch's flash kernel, linear in memory, with its gradient.

A block's queries meet only the keys that they see (`mask.Layout.blocks`). torch's own function for whole rows needs a
mask of T x T as soon as rows share a prompt or have a window. The kernel's causal form wants as many queries as keys.
A response behind its prompt asks the prompt's queries again and drops what they find: less than a mask costs.
Knows no models.

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
            keys, values = _gather(key, block), _gather(value, block)
            found, logsumexp = forward_kernel(
                _queries(query, block),
                keys,
                values,
                0.0,
                block.before is not None,
                attn_mask=layout.additive(block, window, query.dtype),
                scale=scale,
            )
            output[:, :, slice(*block.queries)] = found[:, :, block.before or 0 :]
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
            queries, keys, values = backward_kernel(
                _behind(gradient, block),
                _queries(query, block),
                _gather(key, block),
                _gather(value, block),
                _behind(output, block),
                logsumexp,
                0.0,
                block.before is not None,
                attn_mask=ctx.layout.additive(block, ctx.window, query.dtype),
                scale=ctx.scale,
            )
            by_query[:, :, slice(*block.queries)] = queries[:, :, block.before or 0 :]
            _scatter(by_key, keys, block)
            _scatter(by_value, values, block)
        return by_query, by_key.to(key.dtype), by_value.to(value.dtype), None, None, None


def _queries(query: Tensor, block: Block) -> Tensor:
    return _gather(query, block) if block.before else query[:, :, slice(*block.queries)]


def _behind(tensor: Tensor, block: Block) -> Tensor:
    """Of the queries, behind zeros for those before them: what they find has no gradient."""
    own = tensor[:, :, slice(*block.queries)]
    return torch.nn.functional.pad(own, (0, 0, block.before, 0)) if block.before else own


def _gather(tensor: Tensor, block: Block) -> Tensor:
    parts = [tensor[:, :, first:last] for first, last in block.keys]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _scatter(total: Tensor, part: Tensor, block: Block) -> None:
    at = 0
    for first, last in block.keys:
        total[:, :, first:last] += part[:, :, at : at + last - first]
        at += last - first
