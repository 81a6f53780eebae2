"""What a run learns from in addition to rewards, checked before it starts: right answers, or a teacher.

Every row has an answer that is not too long; a teacher is there, fits, and has room for every sample.
"""

from __future__ import annotations

from collections.abc import Sequence

from rhymed.check.report import Section
from rhymed.check.sizes.size import Size, model_size
from rhymed.config import Config, Teacher
from rhymed.inputs.datasets import Placed
from rhymed.inputs.supervision.answers import Answers
from rhymed.inputs.supervision.demonstrations import load_teacher_renderer
from rhymed.text import truncated
from rhymed_workers.trainer.teacher.start import Found, find

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
    settings, found, section = config.trainer.teacher, find(config), Section("teacher")
    section.add("teacher", _name(config, found))
    section.add("asked for", _question(config))
    longest = max(prompt_lengths, default=0)
    if settings.shows:
        render = load_teacher_renderer(config)
        longest = max((len(render(where, row)) for where, row in rows), default=0)
        section.add("first prompt", truncated(render.text(*rows[0]), SHOWN_CHARS))
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
    return section, model_size(found.folder) if loads and found.folder else None


def _name(config: Config, found: Found) -> str:
    teacher = config.trainer.teacher
    if found.server is not None:
        return f"{found.server.name} at {teacher.url}"
    if teacher.model:
        return f"{found.folder}, in the trainer's process"
    when = "the start of each step" if teacher.weights == "step" else "the start of the run"
    return f"the policy itself, as it is at {when}"


def _question(config: Config) -> str:
    teacher, rollout = config.trainer.teacher, config.rollout
    what = {
        "sampled": "log-probs of the policy's own tokens: a policy gradient",
        "vocabulary": "its whole distribution at each token: an exact divergence",
        "topk": f"its {teacher.topk} likeliest tokens at each token",
    }[teacher.tokens]
    samples = rollout.prompts_per_step * rollout.group_size
    requests = f", {min(samples, teacher.concurrency)} requests at a time" if teacher.url else ""
    return f"{what}; {_divergence(teacher)}, coef {teacher.coef:g}; {samples} samples per step{requests}"


def _divergence(teacher: Teacher) -> str:
    forward, reverse = "KL(teacher || policy)", "KL(policy || teacher)"
    mixed = f"both against their mixture, beta {teacher.beta:g}"
    return {"forward": forward, "reverse": reverse, "mixed": mixed}[teacher.divergence]
