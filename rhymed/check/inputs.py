"""Reads what a run would read: the model's folder and size, and the datasets. Collects every error."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rhymed.check import lora
from rhymed.check.lora import Adapters
from rhymed.check.memory import Models
from rhymed.check.report import Report, Section
from rhymed.check.rows import short_prompt
from rhymed.check.size import Size, size_of_model
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.text import truncated
from rhymed.inputs import quantised
from rhymed.inputs.datasets import Lengths, Placed, placed_rows
from rhymed.inputs.lengths import Measured, check_prompts, used_datasets
from rhymed.inputs.models import find_critic, resolve_model
from rhymed.inputs.supervision import Answers, load_teacher_renderer
from rhymed.placement import gpus
from rhymed_workers.trainer.policy import grades
from rhymed_workers.trainer.policy.grades import Grade
from rhymed_workers.trainer.teacher.start import find_teacher

if TYPE_CHECKING:
    from rhymed_workers.environment.preview import Preview


@dataclass
class Inputs:
    """None and empty where it could not be read."""

    folder: Path | None = None  # the model's
    size: Size | None = None
    grade: Grade | None = None  # in which the model is trained, if that was asked for
    adapters: Adapters | None = None  # of `trainer.lora`
    critic: Size | None = None  # of the critic's model
    teacher: Size | None = None  # of a teacher that the trainer loads
    training: Measured | None = None
    held_out: list[Measured] = field(default_factory=list)

    def models(self, config: Config) -> Models | None:
        """None: the policy could not be read."""
        if self.size is None:
            return None
        trained = config.trainer.lora
        adapters = self.adapters or (self.size.adapters(trained) if trained else None)
        return Models(self.size, adapters, self.critic, self.teacher)


def read(config: Config, report: Report, lengths: Lengths | None = None, *, graded: bool = False) -> Inputs:
    """An error in the model does not hide one in the data. `lengths`: of prompts to which tools add words. `graded`:
    build the model without weights, to see how it is trained, which takes seconds."""
    inputs = Inputs()
    if needless := config.rollout.engine == config.trainer.engine == "trace":
        report.model = "none: neither engine nor trainer needs one"
    else:
        inputs.folder = report.attempt(lambda: resolve_model(config))
    if folder := inputs.folder:
        report.model = str(folder)
        inputs.size = report.attempt(lambda: size_of_model(folder))
        if config.trainer.engine == "torch" and inputs.size:
            if found := report.attempt(lambda: _grade(folder, graded=graded)):
                inputs.grade, inputs.size = found[0], replace(inputs.size, scores=found[1])
            if inputs.grade is Grade.ALONE and _drafts_on_a_cpu(config):
                report.warnings.append(grades.NO_DRAFTS)
        if config.model.quantization and not quantised.missing_packages(config.model):
            report.attempt(lambda: quantised.base_of(config))
        if (trained := config.trainer.lora) is not None:
            inputs.adapters = report.attempt(lambda: lora.adapters(trained, folder))
            report.warnings += lora.hint(config.trainer.lr)
        if config.trainer.recipe.critic:
            inputs.critic = report.attempt(lambda: size_of_model(find_critic(config)))
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


def _drafts_on_a_cpu(config: Config) -> bool:
    return config.rollout.engine == "vllm" and config.drafts.method != "none" and gpus.here() is None


def _grade(folder: Path, *, graded: bool) -> tuple[Grade, bool] | None:
    """And whether attention keeps its scores. None: not asked for. Raises `ConfigError`, `TrainerError` if the
    trainer would not take the model."""
    if odd := grades.problem(json.loads((folder / "config.json").read_text())):
        raise ConfigError(f"model.path: {folder} cannot be trained: it has {odd}")
    if not graded:
        return None
    from rhymed_workers.lora.layers import outline
    from rhymed_workers.trainer.policy.policy import Policy

    policy = Policy(outline(folder))
    return policy.grade, policy.model.config.get_text_config()._attn_implementation == "eager"


# Tools and environments as the policy will know them: schemas, the parser, and the first row as it is read.


def describe(config: Config, preview: Preview, training: Measured) -> Section:
    """Raises `EnvironmentFailed`, `ConfigError` and `DataError`."""
    settings, section = config.environment, Section("environment")
    for tool in preview.about.tools:  # the policy's prompt has the whole schema
        name, about = tool["function"]["name"], tool["function"].get("description", "")
        section.add(name, f"{about}{' (may be called again)' if name in preview.about.idempotent else ''}")
    section.add("at once", f"{preview.slots} samples of each of {settings.workers} workers")
    if problem := preview.dialogue.problem():
        section.warnings.append(problem)
    if settings.command:
        section.add("prompts", "the program writes them; it has its row in RHYMED_ROW")
        return section
    where, row = training.rows[0]
    begun = preview.begin(where, row)
    section.add("row 1", f"{where}, {begun.length} tokens as the policy reads it:\n{short_prompt(begun.text)}")
    if begun.length > (most := config.rollout.max_prompt_length):
        section.errors.append(
            f"{where} has {begun.length} tokens, its environment and tools included; rollout.max_prompt_length is"
            f" {most}"
        )
    return section


# What a run learns from in addition to rewards, checked before it starts: right answers, or a teacher.
#
# Every row has an answer that is not too long; a teacher is there, fits, and has room for every sample.

SHOWN_CHARS = 600


def answers(config: Config, rows: Sequence[Placed]) -> Section:
    """Raises `DataError` for the first row without a usable answer, and `ConfigError`. Blocking."""
    read, section = Answers.load(config), Section("answers")
    tokens = [read(where, row) for where, row in rows]
    lengths = list(map(len, tokens))
    section.add("row 1", read.text(tokens[0]))
    mean = sum(lengths) / len(lengths)
    section.add("tokens", f"{mean:.1f} on average, at most {max(lengths)}, with the end of the turn")
    return section


def teacher(config: Config, rows: Sequence[Placed], prompt_lengths: Sequence[int]) -> tuple[Section, Size | None]:
    """What is asked of whom, and the size of the model that the trainer loads for it, if it loads one.

    Raises `ConfigError`, `DataError` and `TrainerError` for a teacher or a row that does not fit. Blocking: renders
    every row if the teacher's prompts differ.
    """
    settings, found, section = config.trainer.teacher, find_teacher(config), Section("teacher")
    longest = max(prompt_lengths, default=0)
    if settings.shows:
        render = load_teacher_renderer(config)
        longest = max((len(render(where, row)) for where, row in rows), default=0)
        section.add("first prompt", truncated(render.shown(*rows[0]), SHOWN_CHARS))
    needed = longest + config.rollout.max_response_length + (1 if settings.url else 0)  # a server writes a token, too
    room = "" if found.context is None else f", it reads {found.context}"
    section.add("longest", f"prompt {longest} tokens; with a response up to {needed}{room}")
    if found.context is not None and needed > found.context:
        section.errors.append(
            f"trainer.teacher: its longest prompt has {longest} tokens, with rollout.max_response_length ="
            f" {config.rollout.max_response_length} up to {needed}, but it reads {found.context}: lower"
            " max_response_length, shorten what it is shown, or choose another teacher"
        )
    loads = found.folder is not None and (settings.named or settings.weights == "initial")
    return section, size_of_model(found.folder) if loads and found.folder else None
