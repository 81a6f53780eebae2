"""The run on GPUs: what each process has there, what does not fit, and which settings make it smaller. Estimates,
rather too large than too small. The settings are named, and not tried: the next check says whether the change is
enough.

`assumed_check` does this for machines that are not here (`--assume`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rhymed.check import arithmetic
from rhymed.check.lora import hint
from rhymed.check.machine import engine_problems
from rhymed.check.memory import (
    CONTEXT_BYTES,
    GRAPH_BYTES,
    VERSIONS,
    Engine,
    Models,
    Needs,
    engine_needs,
    full_length,
    needs,
)
from rhymed.check.report import Report, Section
from rhymed.check.size import FP32, ITEM_BYTES, Size, size_of_model
from rhymed.core.config import Config, Model
from rhymed.core.errors import ConfigError
from rhymed.core.text import counted, size_of
from rhymed.placement.gpus import Inventory, generates_on_gpus, parse, problems, trains_on_gpus, transport
from rhymed_workers.engines import options

LARGEST_SHARE = 0.95  # of a GPU for an engine
ASLEEP_BYTES = CONTEXT_BYTES + GRAPH_BYTES  # of an engine that sleeps


def tensor_sizes(size: Size, most: int) -> list[int]:
    """Sizes of `rollout.tensor_parallel` that divide the model, up to `most`."""
    return [tensor for tensor in range(1, min(size.heads, most) + 1) if _divides(tensor, size)]


def division_problem(config: Config, size: Size, most: int) -> str:
    """Why a model cannot be divided by the sizes in `rollout`; empty if it can. `most`: GPUs of a machine."""
    rollout, tensor = config.rollout, config.rollout.tensor_parallel
    if not _divides(tensor, size):
        possible = ", ".join(map(str, tensor_sizes(size, most)))
        return (
            f"rollout.tensor_parallel = {tensor} does not divide the model's {size.heads} attention heads and"
            f" {size.key_value_heads} key-value heads: choose one of {possible}"
        )
    if rollout.pipeline_parallel > max(1, size.layers):
        layers = f"the model has {size.layers} layers: lower it"
        return f"rollout.pipeline_parallel = {rollout.pipeline_parallel}, but {layers}"
    if rollout.expert_parallel and size.experts == 1:
        return "rollout.expert_parallel = true, but the model is no mixture of experts: leave it out"
    return ""


def _divides(tensor: int, size: Size) -> bool:
    """vLLM gives every rank as many heads, and copies key-value heads where there are fewer of them than ranks."""
    heads, pairs = size.heads, size.key_value_heads
    return not (heads % tensor or (pairs and pairs % tensor and tensor % pairs))


def describe(config: Config, inventory: Inventory, models: Models, need: Needs) -> Section:
    """`need`: of the whole run."""
    section, gpu, size = Section("GPUs (estimates)"), inventory.kinds[0].bytes, models.policy
    most = max(map(len, inventory.nodes))
    section.add("GPUs", str(inventory))
    section.add("model", f"{size.architecture}, {size.parameters / 1e9:,.2f} B parameters")
    section.errors += problems(config, inventory)
    trains, engine = trains_on_gpus(config), None
    kept = need.kept + CONTEXT_BYTES
    if trains:
        each = f"{size_of(kept + need.working)} on each of {counted(need.ranks, 'GPU')}"
        section.add("trainer", f"{each}: {need}, libraries {size_of(CONTEXT_BYTES)}")
        if kept + need.working > gpu:
            section.errors.append(
                f"the trainer needs {size_of(kept + need.working)} on each GPU, which has {size_of(gpu)}:"
                f" {_smaller_trainer(config, passes=kept < gpu)}"
            )
    if generates_on_gpus(config):
        engine = engine_needs(config, size, gpus=True)
        section.add("engines", _engines(config, engine, gpu))
        section.errors += filter(None, [division_problem(config, size, most)])
        section.errors += _engine_misfits(config, engine, gpu, tensor_sizes(size, most))
    if trains and engine and config.schedule.colocate:
        offered = need.published / VERSIONS if transport(config) == "ipc" else 0.0
        section.errors += _turn_misfits(config, engine, kept, offered, need.working, gpu)
    return section


def _engines(config: Config, engine: Engine, gpu: int) -> str:
    rollout = config.rollout
    budget = rollout.gpu_memory * gpu
    cache = max(0.0, budget - engine.weights - engine.working)
    return (
        f"{counted(rollout.workers, 'engine')} of {counted(rollout.engine_gpus, 'GPU')}, on each"
        f" {size_of(budget)} (rollout.gpu_memory = {rollout.gpu_memory:g}): weights {size_of(engine.weights)}, a pass"
        f" {size_of(engine.working)}, KV cache {size_of(cache)}:"
        f" {counted(int(cache // max(1.0, engine.sequence)), 'sample')} at full length"
    )


# What does not fit. `gpu`: bytes of the smallest one.


def _engine_misfits(config: Config, engine: Engine, gpu: int, sizes: list[int]) -> Iterator[str]:
    """`sizes`: of `rollout.tensor_parallel` that divide the model."""
    rollout = config.rollout
    share, least = rollout.gpu_memory, engine.weights + engine.working
    if least + engine.sequence <= share * gpu:
        return
    wider = [str(size) for size in sizes if size > rollout.tensor_parallel]
    fits = engine.weights < share * gpu
    cure = _any_of(
        {
            "lower rollout.max_response_length": least < share * gpu,
            "raise rollout.gpu_memory": share < LARGEST_SHARE and engine.weights < LARGEST_SHARE * gpu,
            "lower rollout.batch_tokens or rollout.max_concurrency": fits,
            f"raise rollout.tensor_parallel (to {' or '.join(wider)})": bool(wider),
            "set rollout.quantization = 'fp8'": not rollout.quantization,
            "choose a smaller model": not fits,
        }
    )
    yield (
        f"an engine needs weights {size_of(engine.weights)}, a pass {size_of(engine.working)} and a sample at full"
        f" length {size_of(engine.sequence)}, more than rollout.gpu_memory = {share:g} of {size_of(gpu)}: {cure}"
    )


def _turn_misfits(
    config: Config, engine: Engine, kept: float, offered: float, working: float, gpu: int
) -> Iterator[str]:
    """Of engines and trainer on the same GPUs. `kept`: by the trainer between steps; `offered`: weights that engines
    map before a step; `working`: during it."""
    share, waiting = config.rollout.gpu_memory, kept + offered
    if waiting + share * gpu > gpu:
        left = int(100 * (1 - waiting / gpu)) / 100
        fits = left > 0 and left * gpu >= engine.weights + engine.working + engine.sequence
        yield (
            f"schedule.colocate: the trainer keeps {size_of(waiting)} while engines are awake, so"
            f" rollout.gpu_memory = {share:g} is too much:"
            f" {f'set it to at most {left:g}' if fits else _smaller_trainer(config, passes=False)}"
        )
    if kept + working <= gpu < kept + working + ASLEEP_BYTES:
        cure = _smaller_trainer(config, passes=kept + ASLEEP_BYTES < gpu)
        yield (
            f"schedule.colocate: the trainer's {size_of(kept + working)} and {size_of(ASLEEP_BYTES)} of sleeping"
            f" engines are more than {size_of(gpu)}: {cure}"
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
        size = report.attempt(lambda: size_of_model(_folder(config.model), weights=False))
    found = list(engine_problems(config))
    report.warnings += [f"{problem} (this is the vLLM of this machine)" for problem in found]
    given = options.passed(config)
    report.errors += options.problems(given, options.engine_arguments() if given else None)
    if inventory and size:
        report.model = config.model.path
        report.add(_assumed(config, inventory, size))
        report.warnings += hint(config.trainer.lr) if config.trainer.lora else []
        report.warnings.append(
            "only sizes were checked, for the GPUs that --assume names: run `rhymed check` without it where the run"
            " will be"
        )
    return report


def _assumed(config: Config, inventory: Inventory, size: Size) -> Section:
    """Prompts as long as they may be, of one step. A critic and a teacher count as the policy's size."""
    rollout, trainer, taught = config.rollout, config.trainer, config.trainer.teacher
    loads = taught.model or (taught.used and not taught.named and taught.weights == "initial")
    models = Models(
        size,
        size.adapters(trainer.lora) if trainer.lora else None,
        size if trainer.recipe.critic else None,
        size if loads else None,
    )
    load = arithmetic.workload(rollout, trainer, rollout.prompts_per_step, rollout.max_prompt_length)
    need = needs(config, models, load, gpus=True)
    section = describe(config, inventory, models, need)
    read = (FP32 + ITEM_BYTES[config.model.dtype]) * size.parameters
    section.add(
        "each machine",
        f"{size_of(need.published)} of /dev/shm for weights,"
        f" {size_of(trainer.stored_checkpoints * need.checkpoint)} of disk for checkpoints, and at least"
        f" {size_of(read)} of memory while the model is read",
    )
    return section


def _folder(model: Model) -> Path:
    """Of the model's `config.json`; downloads that file if `model.path` is a hub id."""
    folder = Path(model.path).expanduser()
    if (folder / "config.json").is_file():
        return folder
    from rhymed.inputs.hub import fetch_model, is_identifier

    if folder.is_dir() or "/" not in model.path or not is_identifier(model.path):
        raise ConfigError(
            f"model.path = {model.path!r} is neither a hub id (owner/name) nor a folder with a config.json"
        )
    try:
        return fetch_model(model.path, model.revision, files=("config.json",))
    except ConfigError as error:
        raise ConfigError(f"{error}; its config.json is enough for --assume") from None
