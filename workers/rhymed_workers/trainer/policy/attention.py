"""The attention function of packed sequences, for any model of transformers that lets others choose it.

Owns the choice of the kernel; the models that can use it are those of the grade `packed`. transformers makes no mask
for a function that it does not know; `hidden_states` passes the layout through the model's keyword arguments instead.

`attend` is that function; what it calls on a GPU and on a processor follows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rhymed.core import private
from rhymed.core.errors import TrainerError
from rhymed_workers.trainer.policy.grades import SCORES, Grade, changes_scores, grade_of
from rhymed_workers.trainer.policy.mask import Block, Layout

NAME = "rhymed"


def install(model: Any) -> None:
    """The attention of the model's grade. Raises `TrainerError`."""
    from transformers import AttentionInterface

    if grade_of(model) is Grade.PACKED:
        AttentionInterface.register(NAME, attend)
        model.set_attn_implementation(NAME)
    elif changes_scores(model):
        model.set_attn_implementation("eager")


def is_packed(model: Any) -> bool:
    """After `install`."""
    return bool(model.config.get_text_config()._attn_implementation == NAME)


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
    odd = [f"uses {name}" for name in sorted(SCORES) if others.get(name) is not None]
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
        chosen = flash if short and has_varlen() else flex
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


# Attention on a GPU, in two forms of the same mask: variable-length flash kernels and FlexAttention.
#
# Flash kernels know 16-bit numbers only, and get each response's keys as one sequence: its prompt's and its own.
# FlexAttention compiles a kernel from the mask function. Not tried on a GPU; tests compare both forms of the mask
# with the dense one on a processor. Knows no models.
#
# Axes of tensors: (1, heads, T, head size); keys and values may have fewer heads.


@functools.cache
def has_varlen() -> bool:
    """Whether this torch has variable-length attention with the arguments that `flash` needs."""
    return {"scale", "window_size"} <= _arguments()


@functools.cache
def _arguments() -> frozenset[str]:
    """Names of `varlen_attn`'s arguments; empty before torch 2.10, which has no such function."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


def flash(query: Tensor, key: Tensor, value: Tensor, layout: Layout, window: int | None, scale: float) -> Tensor:
    """With more keys than queries, the last query meets the last key: a response continues its prompt."""
    from torch.nn.attention.varlen import varlen_attn

    plan = layout.sequenced()
    query_TD, key_TD, value_TD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    if plan.keys_K is not None:
        key_TD, value_TD = key_TD.index_select(0, plan.keys_K), value_TD.index_select(0, plan.keys_K)
    groups = query.shape[1] // key.shape[1]
    known = {"enable_gqa": groups > 1} if "enable_gqa" in _arguments() else {}
    if groups > 1 and not known:  # torch 2.11 knows no grouped heads there
        key_TD, value_TD = (tensor.repeat_interleave(groups, dim=1) for tensor in (key_TD, value_TD))
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
        **known,
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

    private.compiled()
    return torch.compile(flex_attention, dynamic=True)


# Attention on a processor: block by block with torch's flash kernel, linear in memory, with its gradient.
#
# A block's queries meet only the keys that they see (`mask.Layout.blocks`). torch's own function for whole rows needs
# a mask of T x T as soon as rows share a prompt or have a window. The kernel's causal form wants as many queries as
# keys. A response behind its prompt asks the prompt's queries again and drops what they find: less than a mask costs.
# Knows no models.
#
# Axes of tensors: (1, heads, T, head size).

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
