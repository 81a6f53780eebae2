"""The dataset as the model will see it: the first prompts rendered, all lengths, and the overlap of datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from rhymed.check.report import Section
from rhymed.config import Data, Dataset, Rollout
from rhymed.inputs.datasets import place
from rhymed.inputs.lengths import Measured
from rhymed.inputs.rows import Row
from rhymed.text import truncated

SHOWN = 2
SHOWN_CHARS = (700, 200)  # of a prompt: from its beginning, and from its end
COLUMN_CHARS = 120
PROMPT_COLUMNS = ("prompt", "question", "problem", "instruction", "input", "query")


class Reader(Protocol):
    """How the policy reads rows."""

    @property
    def has_template(self) -> bool: ...

    def text(self, where: str, row: Row) -> str: ...


def describe(data: Dataset, rollout: Rollout, measured: Measured, renderer: Reader) -> Section:
    section = Section("prompts")
    lengths, limit = sorted(measured.lengths), rollout.max_prompt_length
    median = lengths[len(lengths) // 2]
    section.add("dataset", f"{len(measured.rows):,} different rows from {place(measured.data)}")
    if isinstance(data, Data) and data.datasets:
        total = sum(share.weight for share in data.datasets)
        parts = [f"{share.weight / total:.1%} from {place(share)}" for share in data.datasets]
        section.add("shares", f"of the prompts {', '.join(parts)}")
    if isinstance(data, Data) and data.sampler == "success":
        rare = f"a chance of at least {data.least_chance:g} in their turn (data.least_chance)"
        section.add("sampler", f"prompts that always or never succeeded have {rare}")
    section.add(
        "tokens",
        f"shortest {lengths[0]}, median {median}, longest {lengths[-1]} (rollout.max_prompt_length = {limit})",
    )
    if not renderer.has_template:
        section.add("template", "no chat template: messages are joined by blank lines")
    for number, ((where, row), length) in enumerate(zip(measured.rows[:SHOWN], measured.lengths, strict=False), 1):
        section.add(f"row {number}", f"{where}, {length} tokens:\n{short_prompt(renderer.text(where, row))}")
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
