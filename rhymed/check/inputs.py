"""Reads what a run would read: the model's folder and size, and the datasets. Collects every error."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rhymed.check.report import Report
from rhymed.check.sizes import lora
from rhymed.check.sizes.lora import Adapters
from rhymed.check.sizes.size import Size, model_size
from rhymed.config import Config
from rhymed.inputs.datasets import Lengths, placed_rows
from rhymed.inputs.lengths import Measured, check_prompts, used_datasets
from rhymed.inputs.models import resolve_model
from rhymed_workers.trainer.critic import start as critic


@dataclass
class Inputs:
    """None and empty where it could not be read."""

    folder: Path | None = None  # the model's
    size: Size | None = None
    adapters: Adapters | None = None  # of `trainer.lora`
    critic: Size | None = None  # of the critic's model
    training: Measured | None = None
    held_out: list[Measured] = field(default_factory=list)


def read(config: Config, report: Report, lengths: Lengths | None = None) -> Inputs:
    """An error in the model does not hide one in the data. `lengths`: of prompts to which tools add words."""
    inputs = Inputs()
    if needless := config.rollout.engine == config.trainer.engine == "trace":
        report.model = "none: neither engine nor trainer needs one"
    else:
        inputs.folder = report.attempt(lambda: resolve_model(config))
    if folder := inputs.folder:
        report.model = str(folder)
        inputs.size = report.attempt(lambda: model_size(folder))
        if (trained := config.trainer.lora) is not None:
            inputs.adapters = report.attempt(lambda: lora.adapters(trained, folder))
            report.warnings += lora.hint(config.trainer.lr)
        if config.trainer.recipe.critic:
            inputs.critic = report.attempt(lambda: model_size(critic.find(config)))
    measured = report.attempt(lambda: check_prompts(config, lengths)) if folder or needless else None
    if measured is None:  # each dataset may be readable still
        measured = []
        for name, data in used_datasets(config):
            rows = report.attempt(lambda data=data: placed_rows(config, data))  # type: ignore[misc]
            if rows is not None:
                measured.append(Measured(name, data, rows, []))
    for dataset in measured:
        if dataset.name == "data" and inputs.training is None:
            inputs.training = dataset
        else:
            inputs.held_out.append(dataset)
    return inputs
