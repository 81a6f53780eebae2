"""How a model's sequences go through it together: three grades, chosen by what its configuration and its code say.

Invariant: in no grade does a sequence see another one. Knows no torch, and neither kernels nor the layout of a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from rhymed.core.errors import TrainerError


class Grade(Enum):
    """The value is what people read."""

    PACKED = "packed: a prompt is computed once for all its responses, and rows lie end to end"
    ROWS = "rows: one sequence a row, padded at its end, with the model's own attention"
    ALONE = "alone: one sequence a pass, because the model carries a state from token to token"


PACKED = {"full_attention", "sliding_attention"}
"""Layers whose attention can be exchanged for that of packed sequences."""
CAUSAL = {
    *PACKED,
    "chunked_attention",
    "indexed_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "minimax_m3_sparse",
}
"""Layers that see other tokens only through attention to those before them."""
CARRYING = {"linear_attention", "mamba", "conv", "hybrid", "hybrid_sliding", "moe"}
"""Layers that carry a state along the sequence, and names that only models with such layers have."""
RENAMED = {"attention", "deepseek_sparse_attention", "qwen_sparse_attention"}
"""Older names of `CAUSAL`; all names are transformers'."""
SCORES = {"softcap", "s_aux", "position_bias"}
"""Arguments of attention functions that change scores. transformers' own `sdpa` ignores some of them."""


NO_DRAFTS = (
    "drafts are off: the model carries a state from token to token, and vLLM on a CPU cannot take it back where a"
    " draft was wrong; what is sampled stays the same"
)
"""Of models that `carries_state` is true of, on a CPU."""


def problem(config: Mapping[str, Any]) -> str:
    """What of `config.json` no grade takes; empty if there is nothing."""
    text = config.get("text_config") or config
    unknown = set(text.get("layer_types") or ()) - CAUSAL - CARRYING - RENAMED
    odd = [f"layers of an unknown kind, {kind}" for kind in sorted(unknown)]
    odd += ["attention in both directions"] * bool(text.get("use_bidirectional_attention"))
    return " and ".join(odd)


def carries_state(config: Any, model_class: Any) -> bool:
    """Whether the model carries a state from token to token, besides keys and values. `config`: transformers' of a
    text model."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return bool(kinds & CARRYING or getattr(model_class, "_is_stateful", False))


def grade_of(model: Any) -> Grade:
    """Of a model of transformers, which may be without weights. Raises `TrainerError`."""
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if odd := problem({name: getattr(config, name, None) for name in ("layer_types", "use_bidirectional_attention")}):
        raise TrainerError(f"{type(model).__name__} cannot be trained: it has {odd}")
    if carries_state(config, type(model)):
        return Grade.ALONE
    exchanged = getattr(model, "_supports_attention_backend", False) and not changes_scores(model)
    return Grade.PACKED if exchanged and kinds <= PACKED else Grade.ROWS


def changes_scores(model: Any) -> bool:
    """Whether the code of a layer passes one of `SCORES` to its attention function."""
    forwards = {inspect.unwrap(type(module).forward) for module in model.modules()}
    return any(name in SCORES for forward in forwards if inspect.isfunction(forward) for name in _keywords(forward))


def _keywords(function: Any) -> Iterator[Any]:
    """The strings among its constants: names of keyword arguments are a tuple of them, or one."""
    for const in function.__code__.co_consts:
        yield from const if isinstance(const, tuple) else (const,)
