"""Bytes on one GPU of the trainer and of an engine. Pure; estimates, rather too large than too small."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rhymed.check import memory
from rhymed.check.devices.shape import Shape
from rhymed.check.memory import Needs
from rhymed.check.report import GIB
from rhymed.check.sizes.size import FP32, ITEM_BYTES
from rhymed.config import Config

CONTEXT_BYTES = 1.0 * GIB  # of a process: CUDA's context, libraries, NCCL's buffers
GRAPH_BYTES = 1.0 * GIB  # of an engine's captured CUDA graphs
BATCH_TOKENS = 8192  # of a forward pass, where rollout.batch_tokens leaves it to vLLM
QUANTIZED_BYTES = {"fp8": 1.0, "int8": 1.0, "awq": 0.5, "gptq": 0.5, "mxfp4": 0.5}
"""Of a weight, by the beginning of `rollout.quantization`; other kinds count as if there were none."""


@dataclass(frozen=True)
class TrainerNeeds:
    """`kept`: between steps too; `working`: during a step, too; `offered`: weights that engines map, before it."""

    kept: float
    working: float
    offered: float = 0.0

    @property
    def waiting(self) -> float:
        """While engines load and sample."""
        return self.kept + self.offered

    @property
    def most(self) -> float:
        return self.kept + self.working


@dataclass(frozen=True)
class EngineNeeds:
    """`sequence`: keys and values of one sample at full length. `asleep`: what stays in sleep."""

    weights: float
    working: float
    sequence: float
    asleep: float = CONTEXT_BYTES + GRAPH_BYTES

    def cache(self, budget: float) -> float:
        """What a budget leaves for keys and values; negative: the engine does not start."""
        return budget - self.weights - self.working


def trainer_needs(need: Needs, transport: str = "file") -> TrainerNeeds:
    """`need`: of the whole run, see `memory.needs`; `transport`: of the weights, see `rhymed.gpus.transport`."""
    offered = need.published / memory.VERSIONS if transport in ("ipc", "broadcast") else 0.0
    return TrainerNeeds(sum(need.models.values()) / need.ranks + CONTEXT_BYTES, need.working, offered)


def engine_needs(config: Config, shape: Shape, parameters: int) -> EngineNeeds:
    rollout, item = config.rollout, ITEM_BYTES[config.model.dtype]
    ranks, tensor = rollout.engine_gpus, rollout.tensor_parallel
    weight = next((size for kind, size in QUANTIZED_BYTES.items() if rollout.quantization.startswith(kind)), item)
    ends = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    weights = (weight * (parameters - ends) + item * ends) / ranks
    tokens = rollout.batch_tokens or BATCH_TOKENS
    layer = tokens * item * (4 * shape.hidden + 3 * math.ceil(shape.intermediate / tensor))
    drafted = config.drafts.max_length if config.drafts.method != "none" else 0
    rows = min(tokens, rollout.max_concurrency * (1 + drafted))
    logits = rows * shape.vocabulary * (item + FP32)
    heads = max(1, math.ceil(shape.key_value_heads / tensor))
    layers = math.ceil(shape.layers / rollout.pipeline_parallel)
    sequence = 2.0 * layers * heads * shape.head * item * memory.full_length(rollout)
    return EngineNeeds(weights, CONTEXT_BYTES + GRAPH_BYTES + layer + logits, sequence)


def tensor_sizes(shape: Shape, most: int) -> list[int]:
    """Sizes of `rollout.tensor_parallel` that divide the model, up to `most`."""
    return [size for size in range(1, min(shape.heads, most) + 1) if _divides(size, shape)]


def heads_problem(config: Config, shape: Shape, most: int) -> str:
    """Why a model cannot be divided by the sizes in `rollout`; empty if it can. `most`: GPUs of a machine."""
    rollout, tensor = config.rollout, config.rollout.tensor_parallel
    if not _divides(tensor, shape):
        possible = ", ".join(map(str, tensor_sizes(shape, most)))
        return (
            f"rollout.tensor_parallel = {tensor} does not divide the model's {shape.heads} attention heads and"
            f" {shape.key_value_heads} key-value heads: choose one of {possible}"
        )
    if rollout.pipeline_parallel > shape.layers:
        layers = f"the model has {shape.layers} layers: lower it"
        return f"rollout.pipeline_parallel = {rollout.pipeline_parallel}, but {layers}"
    if rollout.expert_parallel and shape.experts == 1:
        return "rollout.expert_parallel = true, but the model is no mixture of experts: leave it out"
    return ""


def _divides(tensor: int, shape: Shape) -> bool:
    """vLLM gives every rank as many heads, and copies key-value heads where there are fewer of them than ranks."""
    return not (shape.heads % tensor or (shape.key_value_heads % tensor and tensor % shape.key_value_heads))
