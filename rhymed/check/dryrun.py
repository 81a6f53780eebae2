"""The dry run: reads what a run would read, and reports. `quick_check` is the part that every run does at its start.

Every error is collected; a check whose input could not be read is left out.

`describe_algorithm` says what the algorithm's name stands for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from rhymed.check import arithmetic, devices, machine, memory, reward, rows
from rhymed.check.arithmetic import Workload
from rhymed.check.inputs import Inputs, answers, describe, read, teacher
from rhymed.check.report import Report, Section
from rhymed.core.algorithms import ALGORITHMS, SETTINGS, Recipe, uses
from rhymed.core.config import Config
from rhymed.core.config.trainer import Critic
from rhymed.core.run.layout import layout_of
from rhymed.inputs import quantised
from rhymed.inputs.datasets import placed_rows
from rhymed.inputs.lengths import used_datasets
from rhymed.inputs.render import Renderer, load_renderer
from rhymed.placement import gpus
from rhymed.placement.ray import cluster
from rhymed_broker import telemetry
from rhymed_workers.trainer.optim import packages

if TYPE_CHECKING:
    from rhymed_workers.environment.preview import Preview
    from rhymed_workers.reward.preview import Loading


def quick_check(config: Config, *, resume: bool = False) -> Report:
    """In seconds, without loading a model: model, data, prompts, scorers, addresses, memory and disk."""
    from rhymed_workers.reward.preview import Loading

    report = Report(errors=[*missing_packages(config), *nothing_to_do(config)])
    with report.listening(), Loading(config) if config.reward.workers else nullcontext() as scorers:
        report.add(machine.describe(config, resume=resume))
        with _environment(config, report) as preview:
            inputs = read(config, report, preview.lengths if preview else None)
        check_supervision(config, report, inputs)
        if inputs.training:
            rows, longest = len(inputs.training.rows), config.rollout.max_prompt_length
            _check_sizes(config, report, inputs, arithmetic.workload(config.rollout, config.trainer, rows, longest))
        report.errors += machine.start_problems(config, inputs.folder)
        if scorers and report.attempt(scorers.loaded):
            _check_reward(config, report, inputs, scorers)
    return report


def full_check(config: Config) -> Report:
    """Everything that can be known before a run."""
    report = Report(errors=[*missing_packages(config), *nothing_to_do(config)])
    with report.listening(), _environment(config, report) as preview:
        inputs = read(config, report, preview.lengths if preview else None, graded=True)
        if inputs.training:
            check_supervision(config, report, inputs)
            _describe_sizes(config, report, inputs)
            renderer: Preview | Renderer | None = None
            if training := inputs.training if inputs.training.lengths else None:
                renderer = preview or report.attempt(lambda: load_renderer(config))
            if training and renderer:
                report.add(rows.describe_prompts(config.data, config.rollout, training, renderer))
                template, folder = renderer.template, inputs.folder
                if template and folder:
                    report.add(report.attempt(lambda: rows.describe_chats(config, folder, template, training)))
            if training and preview:
                report.add(report.attempt(lambda: describe(config, preview, training)))
            _check_reward(config, report, inputs)
        _check_overlap(inputs, report)
        report.add(machine.describe(config))
        report.errors += machine.start_problems(config, inputs.folder)
        if config.placement.engine == "ray":
            report.attempt(lambda: cluster.prepared(config))
    return report


@contextmanager
def _environment(config: Config, report: Report) -> Iterator[Preview | None]:
    """With its code loaded. None: there is none, or it cannot be loaded, which is reported."""
    with ExitStack() as opened:
        if not config.environment.active:
            yield None
            return
        from rhymed_workers.environment.preview import Preview

        yield report.attempt(lambda: opened.enter_context(Preview(config)))


def nothing_to_do(config: Config) -> list[str]:
    if config.trainer.steps != 0 or config.eval.every:  # which needs datasets, as `Config` says
        return []
    return [
        "trainer.steps = 0: nothing would be trained, and there is nothing to evaluate: leave it out for all steps of"
        " trainer.epochs, or set eval.every and [[eval.datasets]]"
    ]


def missing_packages(config: Config) -> list[str]:
    found = telemetry.missing_packages(config.metrics) + packages.missing_packages(config.trainer)
    return found + quantised.missing_packages(config.model)


def check_supervision(config: Config, report: Report, inputs: Inputs) -> None:
    """Right answers or a teacher, where the run has them."""
    training = inputs.training
    if not training or not training.lengths:
        return
    if config.rollout.engine == "dataset":
        report.add(report.attempt(lambda: answers(config, training.rows)))
    if config.trainer.teacher.used and (
        found := report.attempt(lambda: teacher(config, training.rows, training.lengths))
    ):
        report.add(found[0])
        inputs.teacher = found[1]


def _describe_sizes(config: Config, report: Report, inputs: Inputs) -> None:
    assert inputs.training is not None, "called with a dataset only"
    longest = max(inputs.training.lengths, default=config.rollout.max_prompt_length)
    load = arithmetic.workload(config.rollout, config.trainer, len(inputs.training.rows), longest, inputs.grade)
    report.add(arithmetic.describe(config, load, [len(dataset.rows) for dataset in inputs.held_out]))
    if config.trainer.engine == "torch":
        report.add(describe_algorithm(config.trainer.recipe, config.trainer.critic))
    _check_sizes(config, report, inputs, load, full=True)


def _check_sizes(config: Config, report: Report, inputs: Inputs, load: Workload, *, full: bool = False) -> None:
    """Memory of this machine and of its GPUs. `full`: what fits is reported, too."""
    models = inputs.models(config)
    if models is None:
        return
    found = gpus.here() if gpus.trains_on_gpus(config) or gpus.generates_on_gpus(config) else None
    if config.placement.engine == "local":
        need, here = memory.needs(config, models, load, gpus=bool(found)), machine.measure(layout_of(config).folder)
        if found:
            report.add(devices.describe(config, found.alike(config.trainer.nodes), models, need))
        section = memory.describe(config, models, need, here, gpus=bool(found))
        if full:
            report.add(section)
        else:
            report.errors += section.errors
    if gpus.generates_on_gpus(config) and (found is None or config.placement.engine != "local"):
        report.errors += filter(None, [devices.division_problem(config, models.policy, models.policy.heads)])


def _check_overlap(inputs: Inputs, report: Report) -> None:
    training = [row for _, row in inputs.training.rows] if inputs.training else []
    for dataset in inputs.held_out:
        if common := rows.shared(training, [row for _, row in dataset.rows]):
            report.warnings.append(
                f"eval.datasets {dataset.name}: {common} of {len(dataset.rows)} held-out prompts are also in the"
                " training data: results on them say nothing about new prompts"
            )


def _check_reward(config: Config, report: Report, inputs: Inputs, scorers: Loading | None = None) -> None:
    """On the reference answer, if the row has one, and on nonsense."""
    if inputs.training and any(scorer.scorer != "none" for scorer in config.reward.all):
        row = inputs.training.rows[0][1]
        tried = reward.answers(config.reward, row)
        report.add(report.attempt(lambda: reward.describe(config, row, tried, scorers)))


# What the algorithm's name and the settings expand to. Pure.


def describe_algorithm(recipe: Recipe, critic: Critic | None = None) -> Section:
    """`critic`: its settings, shown if the recipe has one."""
    section = Section("algorithm")
    section.add(recipe.name, f"defaults: {recipe.source}")
    section.add("settings", ", ".join(_setting(recipe, name) for name in SETTINGS if uses(recipe, name)))
    if recipe.critic and critic:
        settings = [f"{name} = {_written(value) or 'model.path'}" for name, value in critic]
        section.add("critic", f"{', '.join(settings)}; it doubles the passes")
    return section


def _setting(recipe: Recipe, setting: str) -> str:
    """`clip_eps_high = 0.28 (default 0.2)`."""
    value, default = getattr(recipe, setting), getattr(ALGORITHMS[recipe.name], setting)
    return f"{setting} = {_written(value)}" + (f" (default {_written(default)})" if value != default else "")


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


# `rhymed launch`: what this machine can check of a run whose processes start on others.

UNCHECKED = "models, data of the hub, and memory, disk, GPUs and addresses of the other machines"


def elsewhere_check(config: Config) -> Report:
    """Packages, rows and reward functions, which the other machines have, too, e.g. on shared storage. Blocking;
    downloads nothing."""
    from rhymed_workers.reward.preview import Loading

    report = Report(errors=missing_packages(config))
    with report.listening():
        for _, data in used_datasets(config):
            if all(part.source != "hub" and part.overlong != "drop" for part in data.parts):  # which needs the model
                report.attempt(lambda data=data: placed_rows(config, data))  # type: ignore[misc]
        if config.reward.workers:
            with Loading(config) as scorers:
                report.attempt(scorers.loaded)
    report.warnings.append(f"not checked: {UNCHECKED}; `rhymed check` checks what is here of them")
    return report
