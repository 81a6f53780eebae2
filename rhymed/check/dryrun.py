"""The dry run: reads what a run would read, and reports. `early` is the part that every run does before it starts.

Every problem is collected; what needs something that could not be read is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

from rhymed.check import arithmetic, machine, memory, reward
from rhymed.check import rows as shown
from rhymed.check.report import Report
from rhymed.check.size import Size, model_size
from rhymed.config import Config
from rhymed.inputs.datasets import placed_rows
from rhymed.inputs.lengths import Measured, asked, check_prompts
from rhymed.inputs.render import Renderer, load_renderer
from rhymed.inputs.rows import Row
from rhymed.run.layout import layout_of
from rhymed_broker.telemetry import missing


@dataclass
class Inputs:
    """What could be read; None and empty where it could not."""

    folder: Path | None = None  # the model's
    size: Size | None = None
    training: Measured | None = None
    held_out: list[Measured] = field(default_factory=list)


def early(config: Config, *, resume: bool = False) -> Report:
    """In seconds, without loading a model: model, data, prompts, scorers, addresses, memory and disk."""
    from rhymed_workers.reward.preview import check_scorers

    report = Report(wrong=missing(config))
    with report.listening():
        loading = _in_thread(lambda: check_scorers(config)) if config.reward.workers else None
        _places(config, report, resume=resume)
        inputs = read(config, report)
        if inputs.size and inputs.training:
            load = arithmetic.workload(config, len(inputs.training.rows), config.rollout.max_prompt_length)
            need = memory.needs(config, inputs.size, load)
            report.wrong += memory.wrong(config, need, machine.look(layout_of(config).folder))
        if loading is not None and report.attempt(lambda: loading.result() or True) and inputs.training:
            _reward(config, report, inputs.training.rows[0][1], None)
    return report


def examine(config: Config, *, generate: bool = True) -> Report:
    """Everything that can be known before a run."""
    report = Report(wrong=missing(config))
    with report.listening():
        inputs = read(config, report)
        if inputs.training:
            _arithmetic(config, report, inputs)
            renderer = report.attempt(lambda: load_renderer(config)) if inputs.training.lengths else None
            if renderer:
                report.sections.append(shown.describe(config, inputs.training, renderer))
            written = _written(config, report, inputs, renderer) if generate and renderer else None
            _reward(config, report, inputs.training.rows[0][1], written)
        _overlap(inputs, report)
        _places(config, report)
    return report


def read(config: Config, report: Report) -> Inputs:
    """Model and data. What is wrong with one does not hide what is wrong with the other."""
    from rhymed.inputs.models import resolve_model

    inputs = Inputs()
    if needless := config.rollout.engine == config.trainer.engine == "trace":
        report.model = "none: neither engine nor trainer needs one"
    else:
        inputs.folder = report.attempt(lambda: resolve_model(config))
    if folder := inputs.folder:
        report.model = str(folder)
        inputs.size = report.attempt(lambda: model_size(folder))
    if folder or needless:
        measured = report.attempt(lambda: check_prompts(config))
        if measured is not None:
            inputs.training = next((found for found in measured if found.name == "data"), None)
            inputs.held_out = [found for found in measured if found is not inputs.training]
            return inputs
    for name, data in asked(config):
        rows = report.attempt(lambda data=data: placed_rows(config, data))  # type: ignore[misc]
        if rows is not None and name == "data":
            inputs.training = Measured(name, data, rows, [])
        elif rows is not None:
            inputs.held_out.append(Measured(name, data, rows, []))
    return inputs


def _arithmetic(config: Config, report: Report, inputs: Inputs) -> None:
    assert inputs.training is not None, "asked for with a dataset only"
    longest = max(inputs.training.lengths, default=config.rollout.max_prompt_length)
    load = arithmetic.workload(config, len(inputs.training.rows), longest)
    section, warnings = arithmetic.describe(config, load, [len(found.rows) for found in inputs.held_out])
    report.sections.append(section)
    report.warnings += warnings
    if inputs.size:
        seen = machine.look(layout_of(config).folder)
        section, wrong, warnings = memory.describe(config, inputs.size, load, seen)
        report.sections.append(section)
        report.wrong += wrong
        report.warnings += warnings


def _overlap(inputs: Inputs, report: Report) -> None:
    training = [row for _, row in inputs.training.rows] if inputs.training else []
    for found in inputs.held_out:
        if common := shown.shared(training, [row for _, row in found.rows]):
            report.warnings.append(
                f"eval.datasets {found.name}: {common} of {len(found.rows)} held-out prompts are also in the training"
                " data: results on them say nothing of new prompts"
            )


def _written(config: Config, report: Report, inputs: Inputs, renderer: Renderer) -> reward.Answer:
    """The model's own answer to the first prompt, where that takes seconds; else why not."""
    folder, size, training = inputs.folder, inputs.size, inputs.training
    if not folder or not size or not training:
        return reward.unasked("it could not be read")
    if config.rollout.engine == "trace":
        return reward.unasked("the trace engine has no model")
    if size.parameters > reward.MAX_PARAMETERS:
        return reward.unasked(f"{size.parameters / 1e6:,.0f} M parameters are too many to load for a look")
    if 2 * memory.FP32 * size.parameters > machine.look(folder).memory_free:
        return reward.unasked("there is too little memory")
    try:
        return reward.write(folder, renderer(*training.rows[0]), config.rollout.max_response_length)
    except Exception as error:  # of many libraries
        report.wrong.append(f"model.path: {folder} cannot be loaded, or cannot generate: {error}")
        return reward.unasked("it failed")


def _reward(config: Config, report: Report, row: Row, written: reward.Answer | None) -> None:
    """On what the model wrote, on the right answer, if the row has one, and on nonsense."""
    found = report.attempt(lambda: reward.describe(config, row, reward.answers(config, row, written)))
    if found:
        section, wrong, warnings = found
        report.sections.append(section)
        report.wrong += wrong
        report.warnings += warnings


def _places(config: Config, report: Report, *, resume: bool = False) -> None:
    section, wrong = machine.describe(config, resume=resume)
    report.sections.append(section)
    report.wrong += wrong


def _in_thread(work: Callable[[], None]) -> Future[None]:
    """On a daemon thread, so that an interrupt does not wait for it."""
    future: Future[None] = Future()

    def run() -> None:
        try:
            work()
            future.set_result(None)
        except BaseException as error:
            future.set_exception(error)

    Thread(target=run, name="scorers", daemon=True).start()
    return future
