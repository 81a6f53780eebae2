"""`rhymed check --assume "8x H100 80GB"`: will the run fit on machines that are not here?

Reads the configuration and the model's `config.json`; neither weights nor data.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from rhymed.check import arithmetic, memory
from rhymed.check.devices import cost, describe
from rhymed.check.devices.shape import Shape, shape_of
from rhymed.check.machine import engine_problems
from rhymed.check.report import Report, Section
from rhymed.check.sizes.lora import hint
from rhymed.check.sizes.size import FP32, ITEM_BYTES
from rhymed.config import Config, Model
from rhymed.errors import ConfigError
from rhymed.gpus.inventory import Inventory, parse
from rhymed.gpus.transport import choose
from rhymed.text import size_of
from rhymed_workers.engines.gpus import options


def assumed_check(config: Config, text: str) -> Report:
    report = Report()
    inventory = report.attempt(lambda: parse(text))
    with report.listening():
        shape = report.attempt(lambda: shape_of(_folder(config.model)))
    report.warnings += [f"{problem} (this is the vLLM of this machine)" for problem in engine_problems(config)]
    given = config.rollout.engine_args
    report.errors += options.problems(given, options.engine_arguments() if given else None)
    if inventory and shape:
        report.model = config.model.path
        report.add(describe.describe(config, inventory, shape, partial(_needs, shape=shape)))
        report.add(cost.describe(config, inventory.kinds[0], shape, replace(_load(config), steps=0)))
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
    return memory.needs(config.model, rollout, trainer, size, load, adapters, critic, teacher)


def _load(config: Config) -> arithmetic.Workload:
    """Prompts as long as they may be, and as many as one step has: the data is not read."""
    rollout = config.rollout
    return arithmetic.workload(rollout, config.trainer, rollout.prompts_per_step, rollout.max_prompt_length)


def _hosts(config: Config, inventory: Inventory, shape: Shape) -> Section:
    need, parameters = _needs(config, shape), shape.parameters
    section = Section("each machine")
    section.add("/dev/shm", f"{size_of(need.published)}, three versions of the weights")
    section.add("weights", f"{': '.join(choose(config))}")
    section.add("disk", f"{size_of((config.trainer.keep_checkpoints + 1) * need.checkpoint)} for checkpoints")
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
