"""Memory of a trainer's largest pass on one rank, by part. Pure.

What autograd keeps was counted on Llama and Qwen in transformers: per token and layer six numbers of the hidden size
in float32, and in the type of the computation four of the queries' width (queries, expanded keys and values, output)
and four of the intermediate size. Measured peaks of one and two ranks agree (`tests/check/devices`).
"""

from __future__ import annotations

from rhymed.check.sizes.size import FP32, ITEM_BYTES, Size
from rhymed.config import Model, Trainer

LOGITS_BYTES = 1 << 28
"""Size of the buffer in which logits are made (rhymed_workers.trainer.policy.head)."""


def parts(model: Model, trainer: Trainer, size: Size, tokens: int) -> dict[str, float]:
    """Bytes by name. `tokens`: of the pass."""
    item, ends = ITEM_BYTES[model.train_dtype], size.vocabulary * size.hidden
    found = {
        "activations": tokens * _kept(model, trainer, size),
        "a slice of logits": min(LOGITS_BYTES, tokens * size.vocabulary * FP32),
        "the head's gradient": 0 if trainer.lora else FP32 * ends,
        "copies in bfloat16": 0.0,
        "gathered layers": 0.0,
        "gradients before they are summed": 0.0,
    }
    layers = 1 if trainer.gradient_checkpointing else size.layers
    if item < FP32:  # made for each pass, where weights are neither sharded nor frozen
        found["copies in bfloat16"] = item * (
            ends + (0 if trainer.lora or trainer.world > 1 else layers * size.layer)
        )
    if trainer.world > 1:
        found["gathered layers"] = FP32 * size.ends + 2 * item * size.layer
        found["gradients before they are summed"] = 0 if trainer.lora else FP32 * (ends + 2 * size.layer)
    return {name: value for name, value in found.items() if value}


def _kept(model: Model, trainer: Trainer, size: Size) -> float:
    """Of one token, for the gradient."""
    layer = activation_bytes(size, ITEM_BYTES[model.train_dtype])
    if trainer.gradient_checkpointing:
        return size.hidden * FP32 * size.layers + layer
    return layer * size.layers


def activation_bytes(size: Size, item: int) -> float:
    """Per token and layer. `item`: bytes of a number in the computation."""
    cast = size.hidden if item < FP32 else 0
    wide = size.query or size.hidden
    return FP32 * 6 * size.hidden + item * (cast + 4 * wide + 4 * size.intermediate + 2 * size.key_value)
