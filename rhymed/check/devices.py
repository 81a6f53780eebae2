"""Bytes on one GPU of the trainer and of an engine. Pure; estimates, rather too large than too small."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rhymed.check import arithmetic, memory
from rhymed.check.lora import Adapters, hint
from rhymed.check.machine import engine_problems
from rhymed.check.memory import Needs, full_length, listed
from rhymed.check.report import GIB, Report, Section
from rhymed.check.size import FP32, ITEM_BYTES, Size
from rhymed.core.config import Config, Lora, Model
from rhymed.core.errors import ConfigError
from rhymed.core.text import counted, size_of
from rhymed.histospec.graphs import verifying_tokens
from rhymed.placement import plan
from rhymed.placement.gpus import Inventory, choose, generates_on_gpus, parse, problems, seats, trains_on_gpus
from rhymed.placement.ray import cluster
from rhymed_workers.engines import options

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
    """`need`: of the whole run, see `memory.needs`; `transport`: of the weights, see
    `rhymed.placement.gpus`."""
    offered = need.published / memory.VERSIONS if transport == "ipc" else 0.0
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
    if drafted and config.drafts.budget == "rate":
        rows = min(rows, verifying_tokens(rollout.max_concurrency, shape.vocabulary * item) + rollout.max_concurrency)
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


# A model's dimensions, from its `config.json` alone.

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names of the number of experts in configs."""
DIMENSIONS = ("hidden", "layers", "heads", "key_value_heads", "head", "intermediate", "experts", "vocabulary")


@dataclass(frozen=True)
class Shape:
    hidden: int
    layers: int
    heads: int
    key_value_heads: int
    head: int  # width
    intermediate: int  # of a layer, or of one expert
    experts: int  # of a layer; 1: it is dense
    vocabulary: int
    tied: bool  # head and embedding are the same
    architecture: str = "a model"

    @property
    def linear(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of a layer's linear modules, without a router's."""
        query, key = self.heads * self.head, self.key_value_heads * self.head
        attention = [(self.hidden, query), (self.hidden, key), (self.hidden, key), (query, self.hidden)]
        expert = [(self.hidden, self.intermediate)] * 2 + [(self.intermediate, self.hidden)]
        return attention + expert * self.experts

    @property
    def layer_parameters(self) -> int:
        router = self.hidden * self.experts if self.experts > 1 else 0
        return sum(map(math.prod, self.linear)) + router + 2 * self.hidden

    @property
    def parameters(self) -> int:
        ends = self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden
        return self.layers * self.layer_parameters + ends

    def size(self, parameters: int = 0) -> Size:
        """`parameters`: counted in the weights; 0: by these dimensions."""
        return Size(
            architecture=self.architecture,
            parameters=parameters or self.parameters,
            layers=self.layers,
            hidden=self.hidden,
            intermediate=self.intermediate,
            key_value=self.key_value_heads * self.head,
            vocabulary=self.vocabulary,
            query=self.heads * self.head,
            tied=self.tied,
        )

    def adapters(self, lora: Lora) -> Adapters:
        """As many as `trainer.lora` has at most: on all linear layers."""
        trained = self.layers * lora.rank * sum(map(sum, self.linear))
        return Adapters(self.layers * len(self.linear), [], trained, self.layers * sum(map(math.prod, self.linear)))


def shape_of(folder: Path) -> Shape:
    """Raises `ConfigError` that names what is missing."""
    file = folder / "config.json"
    try:
        tree: dict[str, Any] = dict(json.loads(file.read_text()))
        text: dict[str, Any] = tree.get("text_config") or tree
        hidden, heads = int(text["hidden_size"]), int(text["num_attention_heads"])
        experts = next((int(text[name]) for name in EXPERTS if text.get(name)), 1)
        inner = text.get("moe_intermediate_size") if experts > 1 else None
        shape = Shape(
            hidden=hidden,
            layers=int(text["num_hidden_layers"]),
            heads=heads,
            key_value_heads=int(text.get("num_key_value_heads") or heads),
            head=int(text.get("head_dim") or hidden // max(1, heads)),
            intermediate=int(inner or text["intermediate_size"]),
            experts=experts,
            vocabulary=int(text["vocab_size"]),
            tied=bool(text.get("tie_word_embeddings", tree.get("tie_word_embeddings", False))),
            architecture=str((tree.get("architectures") or ["a model"])[0]),
        )
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"model.path: {file} cannot be read: {error}") from None
    except KeyError as error:
        raise ConfigError(f"model.path: {file} has no {error}: the memory on GPUs cannot be estimated") from None
    if wrong := [name for name in DIMENSIONS if getattr(shape, name) < 1]:
        raise ConfigError(f"model.path: {file}: {wrong[0]} = {getattr(shape, wrong[0])}: this is no model's size")
    return shape


# The report on GPUs: what each process has there, what does not fit, and which settings make it smaller. Pure.
#
# The settings are named, and not tried: the next check says whether the change is enough.

LARGEST_SHARE = 0.95  # of a GPU for an engine


def describe(
    config: Config, inventory: Inventory, shape: Shape, needs: Callable[[Config], Needs], parameters: int = 0
) -> Section:
    """`needs`: of a whole run with these settings, see `memory.needs`. `parameters`: 0: only the shape is known."""
    section, smallest = Section("GPUs (estimates)"), inventory.kinds[0].bytes
    parameters, most = parameters or shape.parameters, max(map(len, inventory.nodes))
    section.add("GPUs", str(inventory))
    section.add("model", f"{shape.architecture}, {parameters / 1e9:,.2f} B parameters")
    section.errors += problems(config, inventory)
    need = needs(config)
    trainer = trainer_needs(need, choose(config).transport) if trains_on_gpus(config) else None
    engine = engine_needs(config, shape, parameters) if generates_on_gpus(config) else None
    if trainer:
        each = f"{size_of(trainer.most)} on each of {counted(need.ranks, 'GPU')}"
        section.add("trainer", f"{each}: {listed(need)}, libraries {size_of(CONTEXT_BYTES)}")
        section.errors += _trainer_misfits(config, trainer, smallest)
    if engine:
        section.add("engines", _engines(config, engine, smallest))
        if problem := heads_problem(config, shape, most):
            section.errors.append(problem)
        section.errors += _engine_misfits(config, engine, smallest, tensor_sizes(shape, most))
    if trainer and engine and config.schedule.colocate:
        section.add("colocated", _turns(config, trainer, engine, smallest))
        section.errors += _turn_misfits(config, trainer, engine, smallest)
    for node in range(len(inventory.nodes)):
        if here := _seats(config, inventory, node):
            section.add("placed" if node == 0 else "", f"node {node}: {here}" if len(inventory.nodes) > 1 else here)
    return section


def _engines(config: Config, engine: EngineNeeds, gpu: int) -> str:
    rollout = config.rollout
    budget = rollout.gpu_memory * gpu
    fit = int(max(0.0, engine.cache(budget)) // max(1.0, engine.sequence))
    return (
        f"{counted(rollout.workers, 'engine')} of {counted(rollout.engine_gpus, 'GPU')}, on each"
        f" {size_of(budget)} (rollout.gpu_memory = {rollout.gpu_memory:g}): weights {size_of(engine.weights)}, a pass"
        f" {size_of(engine.working)}, KV cache {size_of(max(0.0, engine.cache(budget)))}: {counted(fit, 'sample')} at"
        " full length"
    )


def _turns(config: Config, trainer: TrainerNeeds, engine: EngineNeeds, gpu: int) -> str:
    awake, training = trainer.waiting + config.rollout.gpu_memory * gpu, trainer.most + engine.asleep
    return (
        f"engines awake {size_of(awake)}, of it the trainer's {size_of(trainer.waiting)}; training"
        f" {size_of(training)}, of it sleeping engines {size_of(engine.asleep)}; of {size_of(gpu)}"
    )


def _seats(config: Config, inventory: Inventory, node: int) -> str:
    here = [seat for seat in seats(config, inventory) if seat.node == node]
    return "; ".join(f"{seat.name} on GPU {_span(seat.gpus)}" for seat in here)


def _span(gpus: tuple[int, ...]) -> str:
    return str(gpus[0]) if len(gpus) == 1 else f"{gpus[0]} to {gpus[-1]}"


# What does not fit. `gpu`: bytes of the smallest one.


def _trainer_misfits(config: Config, trainer: TrainerNeeds, gpu: int) -> Iterator[str]:
    if trainer.most > gpu:
        yield (
            f"the trainer needs {size_of(trainer.most)} on each GPU, which has {size_of(gpu)}:"
            f" {_smaller_trainer(config, passes=trainer.kept < gpu)}"
        )


def _engine_misfits(config: Config, engine: EngineNeeds, gpu: int, sizes: list[int]) -> Iterator[str]:
    """`sizes`: of `rollout.tensor_parallel` that divide the model."""
    share = config.rollout.gpu_memory
    cache = engine.cache(share * gpu)
    if cache <= 0:
        yield (
            f"the model does not fit on an engine's GPU: weights {size_of(engine.weights)} and a pass"
            f" {size_of(engine.working)} are more than rollout.gpu_memory = {share:g} of {size_of(gpu)}:"
            f" {_smaller_engine(config, engine, gpu, sizes)}"
        )
    elif cache < engine.sequence:
        yield (
            f"the KV cache of {size_of(cache)} holds no sample at full length ({size_of(engine.sequence)}):"
            f" lower rollout.max_response_length, {_smaller_engine(config, engine, gpu, sizes)}"
        )


def _turn_misfits(config: Config, trainer: TrainerNeeds, engine: EngineNeeds, gpu: int) -> Iterator[str]:
    """Of engines and trainer on the same GPUs."""
    share = config.rollout.gpu_memory
    if trainer.waiting + share * gpu > gpu:
        left = int(100 * (1 - trainer.waiting / gpu)) / 100
        fits = left > 0 and engine.cache(left * gpu) >= engine.sequence
        yield (
            f"schedule.colocate: the trainer keeps {size_of(trainer.waiting)} while engines are awake, so"
            f" rollout.gpu_memory = {share:g} is too much:"
            f" {f'set it to at most {left:g}' if fits else _smaller_trainer(config, passes=False)}"
        )
    if trainer.most <= gpu < trainer.most + engine.asleep:
        yield (
            f"schedule.colocate: the trainer's {size_of(trainer.most)} and sleeping engines' {size_of(engine.asleep)}"
            f" are more than {size_of(gpu)}: {_smaller_trainer(config, passes=trainer.kept + engine.asleep < gpu)}"
        )


def _smaller_trainer(config: Config, *, passes: bool) -> str:
    """`passes`: smaller ones may be enough, as what is kept between steps fits."""
    trainer = config.trainer
    several = trainer.micro_tokens > full_length(config.rollout)  # samples in a pass
    return _any_of(
        {
            "set trainer.gradient_checkpointing = true": passes and not trainer.gradient_checkpointing,
            "lower trainer.micro_tokens": passes and several,
            "lower rollout.max_response_length and trainer.micro_tokens": passes and not several,
            "set model.train_dtype = 'bfloat16'": config.model.train_dtype == "float32",
            "train on more GPUs (trainer.gpus, trainer.nodes)": True,
            "train adapters only ([trainer.lora])": not trainer.lora,
            "choose a smaller model": not passes,
        }
    )


def _smaller_engine(config: Config, engine: EngineNeeds, gpu: int, sizes: list[int]) -> str:
    rollout = config.rollout
    wider = [str(size) for size in sizes if size > rollout.tensor_parallel]
    fits = engine.weights < rollout.gpu_memory * gpu
    return _any_of(
        {
            "raise rollout.gpu_memory": rollout.gpu_memory < LARGEST_SHARE and engine.weights < LARGEST_SHARE * gpu,
            "lower rollout.batch_tokens or rollout.max_concurrency": fits,
            f"raise rollout.tensor_parallel (to {' or '.join(wider)})": bool(wider),
            "set rollout.quantization = 'fp8'": not rollout.quantization,
            "choose a smaller model": not fits,
        }
    )


def _any_of(ways: Mapping[str, bool]) -> str:
    """`ways`: whether it can be done."""
    return ", or ".join(way for way, possible in ways.items() if possible)


# `rhymed check --assume "8x H100 80GB"`: will the run fit on machines that are not here?
#
# Reads the configuration and the model's `config.json`; neither weights nor data.


def assumed_check(config: Config, text: str) -> Report:
    report = Report()
    inventory = report.attempt(lambda: parse(text))
    with report.listening():
        shape = report.attempt(lambda: shape_of(_folder(config.model)))
    found = list(engine_problems(config))
    report.warnings += [f"{problem} (this is the vLLM of this machine)" for problem in found]
    given = options.passed(config)
    report.errors += options.problems(given, options.engine_arguments() if given else None)
    if inventory and shape:
        report.model = config.model.path
        report.add(describe(config, inventory, shape, partial(_needs, shape=shape)))
        report.add(_hosts(config, inventory, shape))
        report.warnings += hint(config.trainer.lr) if config.trainer.lora else []
        report.warnings.append(
            "only sizes were checked, for the GPUs that --assume names: run `rhymed check` without it where the run"
            " will be"
        )
    return report


def _needs(config: Config, shape: Shape) -> memory.Needs:
    """Prompts as long as they may be. A critic and a teacher count as the policy's size."""
    rollout, trainer, size = config.rollout, config.trainer, shape.size()
    load = _load(config)
    adapters = shape.adapters(trainer.lora) if trainer.lora else None
    critic = size if trainer.recipe.critic else None
    taught = trainer.teacher
    teacher = size if taught.model or (taught.used and not taught.named and taught.weights == "initial") else None
    return memory.needs(config.model, rollout, trainer, size, load, adapters, critic, teacher, gpus=True)


def _load(config: Config) -> arithmetic.Workload:
    """Prompts as long as they may be, and as many as one step has: the data is not read."""
    rollout = config.rollout
    return arithmetic.workload(rollout, config.trainer, rollout.prompts_per_step, rollout.max_prompt_length)


def _hosts(config: Config, inventory: Inventory, shape: Shape) -> Section:
    need, parameters = _needs(config, shape), shape.parameters
    section = Section("each machine")
    section.add("/dev/shm", f"{size_of(need.published)}, three versions of the weights")
    section.add("weights", f"{': '.join(choose(config))}")
    section.add("disk", f"{size_of(config.trainer.stored_checkpoints * need.checkpoint)} for checkpoints")
    each = ITEM_BYTES[config.model.dtype] * parameters
    section.add("memory", f"at least {size_of(FP32 * parameters + each)} while the model is read")
    return section


def _folder(model: Model) -> Path:
    """Of the model's `config.json`; downloads that file if `model.path` is a hub id."""
    folder = Path(model.path).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ConfigError(
                f"model.path = {model.path!r} has no config.json, so it is no model's folder: name one that has it,"
                " or a hub id (owner/name)"
            )
        return folder
    from rhymed.inputs.hub import fetch_model, is_identifier

    if "/" not in model.path or not is_identifier(model.path):
        raise ConfigError(f"model.path = {model.path!r} is neither a folder nor a hub id (owner/name)")
    try:
        return fetch_model(model.path, model.revision, files=("config.json",))
    except ConfigError as error:
        raise ConfigError(f"{error}; its config.json is enough for --assume") from None


# What a run asks of the machines of a Ray cluster, and whether they have it.


def describe_cluster(config: Config) -> Section:
    """Asks Ray, which takes seconds."""
    section = Section("machines, by Ray")
    try:
        ready = cluster.reach(config)
        section.errors += cluster.problems(config, ready.nodes)
        cluster.addressed(config, ready.host)
    except ConfigError as error:
        section.errors += str(error).splitlines()
        return section
    section.add("Ray", f"head {ready.head}, this machine is {ready.host}")
    for node in ready.nodes:
        gpus = f", {node.gpus:g} GPUs" if node.gpus else ""
        section.add(f"  {node.host}", f"{node.cpus:g} CPUs{gpus}, {node.memory_gib:.0f} GiB")
    for seat in plan.seats(config, gpus=any(node.gpus for node in ready.nodes)):
        where = "on the machine of `rhymed run`" if seat.kind == "pinned" else f"{cluster.needs(seat)} each"
        section.add(seat.name, f"{seat.count}, {where}")
    return section
