"""The dataset as the model will see it: the first prompts rendered, all lengths, the overlap of datasets, and what
the chat template does to them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rhymed.check.report import Section
from rhymed.core.config import Config, Data, Dataset, Rollout
from rhymed.core.errors import DataError
from rhymed.core.text import truncated
from rhymed.inputs.chats import ChatTemplate
from rhymed.inputs.datasets import Placed, place
from rhymed.inputs.lengths import Measured
from rhymed.inputs.render import messages
from rhymed.inputs.rows import Row
from rhymed.inputs.stops import stops_of

SHOWN = 2
SHOWN_CHARS = (700, 200)  # of a prompt: from its beginning, and from its end
COLUMN_CHARS = 120
PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "input", "query")


class Reader(Protocol):
    """How the policy reads rows."""

    @property
    def has_template(self) -> bool: ...

    def shown(self, where: str, row: Row) -> str: ...


def describe_prompts(data: Dataset, rollout: Rollout, measured: Measured, renderer: Reader) -> Section:
    section = Section("prompts")
    lengths, limit = sorted(measured.lengths), rollout.max_prompt_length
    median = lengths[len(lengths) // 2]
    section.add("dataset", f"{len(measured.rows):,} different rows from {place(measured.data)}")
    if isinstance(data, Data) and data.datasets:
        total = sum(share.weight for share in data.datasets)
        parts = [f"{share.weight / total:.1%} from {place(share)}" for share in data.datasets]
        section.add("shares", f"of the prompts {', '.join(parts)}")
    section.add(
        "tokens",
        f"shortest {lengths[0]}, median {median}, longest {lengths[-1]} (rollout.max_prompt_length = {limit})",
    )
    if not renderer.has_template:
        section.add("template", "no chat template: messages are joined by blank lines")
    for number, ((where, row), length) in enumerate(zip(measured.rows[:SHOWN], measured.lengths, strict=False), 1):
        section.add(f"row {number}", f"{where}, {length} tokens:\n{short_prompt(renderer.shown(where, row))}")
        for name, value in columns(data, row):
            section.add(f"  {name}", value)
    return section


def columns(data: Dataset, row: Row) -> list[tuple[str, str]]:
    """The row's columns other than its prompt, which the scorer gets."""
    hidden = {*PROMPT_COLUMNS, data.prompt_column}
    return [(name, _cell(value)) for name, value in row.items() if name not in hidden]


def shared(training: Sequence[Row], held_out: Sequence[Row]) -> int:
    """How many held-out prompts are also in the training data, whatever their other columns."""
    prompts = {_prompt(row) for row in training}
    return sum(_prompt(row) in prompts for row in held_out)


def _prompt(row: Row) -> str:
    return json.dumps(row.get("prompt"), sort_keys=True, ensure_ascii=False)


def _cell(value: Any) -> str:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = " ".join(shown.split())
    return truncated(shown, COLUMN_CHARS)


def short_prompt(prompt: str) -> str:
    first, last = SHOWN_CHARS
    if len(prompt) <= first + last:
        return prompt
    return f"{prompt[:first]}\n[... {len(prompt) - first - last:,} more characters ...]\n{prompt[-last:]}"


# How the chat template will be used: the end of a turn, its arguments, and special tokens in the rows.

NAMED = 4  # special tokens in a warning


def describe_chats(config: Config, folder: Path, template: ChatTemplate, measured: Measured) -> Section:
    section, tokenizer = Section("chats"), template.tokenizer
    stops = stops_of(config, folder, tokenizer)
    section.add(
        "a turn ends with", _named(tokenizer, stops.ids) or "nothing but its length: the model names no token"
    )
    if config.rollout.stop:
        section.add("or with", ", ".join(map(repr, config.rollout.stop)))
    if tokenizer.chat_template:
        if stops.added is not None:
            ends = _named(tokenizer, [stops.added])
            section.add("of these", f"{ends} is the chat template's end of a turn, which {folder} does not name")
        elif problem := _end_problem(template, stops.unsafe, stops.ids):
            section.warnings.append(problem)
        if unused := template.unused(config.model.chat_template_kwargs):
            section.warnings.append(
                f"model.chat_template_kwargs: the chat template does not use {', '.join(unused)}, which has no effect"
            )
    if warning := _special_in_rows(template, measured):
        section.warnings.append(warning)
    return section


def _end_problem(template: ChatTemplate, unsafe: int | None, ids: list[int]) -> str:
    """Why turns continue after the text with which the template ends them; empty: they do not."""
    if unsafe is not None:
        ends = _named(template.tokenizer, [unsafe])
        return (
            f"the chat template ends the last turn with {ends}, which ends no response: if the model writes it, name"
            f" its id in rollout.stop_token_ids ({unsafe})"
        )
    text = template.end_text
    if not text or template.last_end is not None or any(template.decode([id]).strip() in text for id in ids):
        return ""
    return (
        f"the chat template ends a turn with {text[:40]!r}, which is no token that ends a response: if the model"
        " writes it, name it in rollout.stop"
    )


def _special_in_rows(template: ChatTemplate, measured: Measured) -> str:
    """A warning; empty: no row has any."""
    found = [(where, words) for where, row in measured.rows if (words := _words(template, measured, (where, row)))]
    if not found:
        return ""
    named = sorted({word for _, words in found for word in words})
    shown = ", ".join(named[:NAMED]) + (", ..." if len(named) > NAMED else "")
    read = (
        "they are read as text, not as special tokens: only the chat template writes those"
        if template.tokenizer.chat_template
        else "without a chat template a prompt is read as it is, so they are special tokens"
    )
    count = f"{len(found)} of {len(measured.rows)} rows"
    return f"{count} contain the text of special tokens ({shown}), first {found[0][0]}: {read}"


def _words(template: ChatTemplate, measured: Measured, placed: Placed) -> list[str]:
    where, row = placed
    try:
        chat: list[dict[str, Any]] = list(messages(measured.data, where, row))
    except DataError:  # it is reported when prompts are measured
        return []
    return template.words(chat)


def _named(tokenizer: Any, ids: list[int]) -> str:
    return ", ".join(f"{tokenizer.convert_ids_to_tokens(id)} ({id})" for id in ids)
