"""The dry run: reads what a run would read, and reports. `quick_check` is the part that every run does at its start.

Every error is collected; a check whose input could not be read is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from rhymed.check import algorithm, arithmetic, environment, machine, memory, reward, rows, supervision
from rhymed.check.devices import cluster, cost
from rhymed.check.devices import describe as devices
from rhymed.check.devices.needs import heads_problem
from rhymed.check.devices.shape import shape_of
from rhymed.check.inputs import Inputs, read
from rhymed.check.report import Report, Section
from rhymed.check.sizes.size import FP32, Size
from rhymed.config import Config, Rollout
from rhymed.errors import ConfigError
from rhymed.gpus import inventory, placement
from rhymed.inputs.render import Render, Renderer, load_renderer
from rhymed.run.layout import layout_of
from rhymed_broker import telemetry
from rhymed_workers.trainer.optim import packages

if TYPE_CHECKING:
    from rhymed_workers.environment.preview import Preview
    from rhymed_workers.reward.preview import Loading


def quick_check(config: Config, *, resume: bool = False) -> Report:
    """In seconds, without loading a model: model, data, prompts, scorers, addresses, memory and disk."""
    from rhymed_workers.reward.preview import Loading

    report, layout = Report(errors=missing_packages(config)), layout_of(config)
    with report.listening(), Loading(config) if config.reward.workers else nullcontext() as scorers:
        report.add(machine.describe(config, resume=resume))
        with _environment(config, report) as preview:
            inputs = read(config, report, preview.lengths if preview else None)
        taught = check_supervision(config, report, inputs)
        if inputs.size and inputs.training and config.placement.engine == "local":
            rollout, trainer = config.rollout, config.trainer
            needs = partial(_needs, inputs=inputs, longest=rollout.max_prompt_length, taught=taught)
            need = needs(config)
            if gpus := _check_gpus(config, inputs, needs):
                report.add(gpus)
                need = memory.on_host(need, rollout)
            measured = machine.measure(layout.folder)
            report.memory = memory.in_memory(rollout, need, measured)
            report.errors += memory.errors(rollout, trainer, need, measured)
        report.errors += _check_division(config, inputs, report)
        if scorers and report.attempt(scorers.loaded):
            _check_reward(config, report, inputs, None, scorers)
    return report


def full_check(config: Config, *, generate: bool = True) -> Report:
    """Everything that can be known before a run."""
    report = Report(errors=missing_packages(config))
    with report.listening(), _environment(config, report) as preview:
        inputs = read(config, report, preview.lengths if preview else None)
        if inputs.training:
            _check_sizes(config, report, inputs, check_supervision(config, report, inputs))
            report.errors += _check_division(config, inputs, report)
            renderer: Preview | Renderer | None = None
            if training := inputs.training if inputs.training.lengths else None:
                renderer = preview or report.attempt(lambda: load_renderer(config))
            if training and renderer:
                report.add(rows.describe(config.data, config.rollout, training, renderer))
            if training and preview:
                report.add(report.attempt(lambda: environment.describe(config, preview, training)))
            written = _generate(config.rollout, report, inputs, renderer) if generate and renderer else None
            report.add(_cost(config, inputs, written))
            _check_reward(config, report, inputs, written)
        _check_overlap(inputs, report)
        report.add(machine.describe(config))
        report.add(cluster.describe(config) if config.placement.engine == "ray" else None)
    return report


@contextmanager
def _environment(config: Config, report: Report) -> Iterator[Preview | None]:
    """With its code loaded. None: there is none, or it cannot be loaded, which is reported."""
    preview = environment.load(config, report)
    try:
        yield preview
    finally:
        if preview is not None:
            preview.__exit__()


def missing_packages(config: Config) -> list[str]:
    return telemetry.missing_packages(config.metrics) + packages.missing_packages(config.trainer)


def check_supervision(config: Config, report: Report, inputs: Inputs) -> Size | None:
    """Right answers or a teacher, where the run has them. The size of a teacher that the trainer loads."""
    training = inputs.training
    if not training or not training.lengths:
        return None
    if config.rollout.engine == "dataset":
        report.add(report.attempt(lambda: supervision.answers(config, training.rows)))
    if not config.trainer.teacher.used:
        return None
    found = report.attempt(lambda: supervision.teacher(config, training.rows, training.lengths))
    if found is None:
        return None
    report.add(found[0])
    return found[1]


def _check_sizes(config: Config, report: Report, inputs: Inputs, taught: Size | None) -> None:
    assert inputs.training is not None, "called with a dataset only"
    longest = max(inputs.training.lengths, default=config.rollout.max_prompt_length)
    load = arithmetic.workload(config.rollout, config.trainer, len(inputs.training.rows), longest)
    report.add(arithmetic.describe(config, load, [len(dataset.rows) for dataset in inputs.held_out]))
    if config.trainer.engine == "torch":
        report.add(algorithm.describe(config.trainer.recipe, config.trainer.critic))
    if inputs.size and config.placement.engine == "local":
        here, models = machine.measure(layout_of(config).folder), (inputs.adapters, inputs.critic, taught)
        needs = partial(_needs, inputs=inputs, longest=longest, taught=taught)
        report.add(gpus := _check_gpus(config, inputs, needs))
        report.add(memory.describe(config, inputs.size, load, here, *models, gpus=gpus is not None))


def _needs(config: Config, inputs: Inputs, longest: int, taught: Size | None) -> memory.Needs:
    """`config` may differ from the run's in its sizes. `longest`: tokens of a prompt."""
    assert inputs.training is not None, "called with a dataset and a model only"
    assert inputs.size is not None, "called with a dataset and a model only"
    trainer, adapters = config.trainer, inputs.adapters
    if trainer.lora and adapters is None and inputs.folder is not None:
        adapters = shape_of(inputs.folder).adapters(trainer.lora)
    load = arithmetic.workload(config.rollout, trainer, len(inputs.training.rows), longest)
    models = (adapters, inputs.critic, taught)
    return memory.needs(config.model, config.rollout, trainer, inputs.size, load, *models)


def _check_gpus(config: Config, inputs: Inputs, needs: Callable[[Config], memory.Needs]) -> Section | None:
    """None: this machine has no GPU, or the run needs none."""
    uses = placement.trains_on_gpus(config) or placement.generates_on_gpus(config)
    found = inventory.here() if uses and inputs.folder else None
    if found is None or inputs.folder is None or inputs.size is None:
        return None
    found = found.alike(config.trainer.nodes)
    return devices.describe(config, found, shape_of(inputs.folder), needs, inputs.size.parameters)


def _check_division(config: Config, inputs: Inputs, report: Report) -> list[str]:
    """Sizes of an engine that do not divide the model, where no GPUs were found that the report already checks."""
    if not placement.generates_on_gpus(config) or inputs.folder is None:
        return []
    try:
        shape = shape_of(inputs.folder)
    except ConfigError:  # a model without the usual names
        return []
    problem = heads_problem(config, shape, shape.heads)
    setting = problem.partition(" = ")[0]
    return [problem] if problem and not any(error.startswith(f"{setting} = ") for error in report.errors) else []


def _cost(config: Config, inputs: Inputs, written: reward.Answer | None) -> Section | None:
    """None: no model is trained, or it could not be read."""
    if not inputs.folder or not inputs.training or not inputs.size or config.trainer.engine != "torch":
        return None
    try:
        shape = shape_of(inputs.folder)
    except ConfigError:  # a model without the usual names: its size is not estimated either
        return None
    longest = max(inputs.training.lengths, default=config.rollout.max_prompt_length)
    load = arithmetic.workload(config.rollout, config.trainer, len(inputs.training.rows), longest)
    found = inventory.here() if placement.trains_on_gpus(config) or placement.generates_on_gpus(config) else None
    if found is not None:
        return cost.describe(config, found.kinds[0], shape, load)
    return cost.on_processors(config, shape, load, written.speed if written else None)


def _check_overlap(inputs: Inputs, report: Report) -> None:
    training = [row for _, row in inputs.training.rows] if inputs.training else []
    for dataset in inputs.held_out:
        if common := rows.shared(training, [row for _, row in dataset.rows]):
            report.warnings.append(
                f"eval.datasets {dataset.name}: {common} of {len(dataset.rows)} held-out prompts are also in the"
                " training data: results on them say nothing about new prompts"
            )


def _check_reward(
    config: Config, report: Report, inputs: Inputs, written: reward.Answer | None, scorers: Loading | None = None
) -> None:
    """On the model's answer, on the reference answer, if the row has one, and on nonsense."""
    if inputs.training and any(scorer.scorer != "none" for scorer in config.reward.all):
        row = inputs.training.rows[0][1]
        data, rewards = config.data, config.reward
        report.add(
            report.attempt(lambda: reward.describe(config, row, reward.answers(data, rewards, row, written), scorers))
        )


def _generate(rollout: Rollout, report: Report, inputs: Inputs, renderer: Render) -> reward.Answer:
    """The model's own answer to the first prompt, where that takes seconds; else why not."""
    folder, size, training = inputs.folder, inputs.size, inputs.training
    if not folder or not size or not training:
        return reward.unasked("it could not be read")
    if rollout.engine == "trace":
        return reward.unasked("the trace engine has no model")
    if rollout.engine == "dataset":
        return reward.unasked("the answers are the dataset's")
    if size.parameters > reward.MAX_PARAMETERS:
        return reward.unasked(f"{size.parameters / 1e6:,.0f} M parameters are too many to load for a check")
    if 2 * FP32 * size.parameters > machine.measure(folder).memory_free:
        return reward.unasked("there is too little memory")
    try:
        return reward.write(folder, renderer(*training.rows[0]), rollout.max_response_length)
    except Exception as error:  # of many libraries
        report.errors.append(f"model.path: {folder} cannot be loaded, or cannot generate: {error}")
        return reward.unasked("it failed")
