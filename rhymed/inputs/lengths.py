"""Measures every prompt in tokens before a run: none may be longer than `rollout.max_prompt_length`.

Blocking: loads datasets and a tokenizer (10,000 prompts in seconds).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rhymed.core.config import Config, Dataset
from rhymed.core.errors import DataError
from rhymed.inputs.datasets import Lengths, Placed, place, placed_rows
from rhymed.inputs.render import load_renderer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measured:
    name: str  # "data", or the name of a held-out dataset
    data: Dataset
    rows: list[Placed]
    lengths: list[int]  # tokens, of each row


def check_prompts(config: Config, lengths: Lengths | None = None) -> list[Measured]:
    """Of all `used_datasets`, in that order. Raises `DataError` for a dataset with prompts that are too long.

    `lengths`: of prompts to which tools add words.
    """
    renderer = load_renderer(config)
    measured: list[Measured] = []
    for name, data in used_datasets(config):
        rows = placed_rows(config, data, lengths)
        if not renderer.has_template and config.rollout.engine != "trace":
            _warn_of_lost_roles(config, data, rows)
        measured.append(Measured(name, data, rows, (lengths or renderer.lengths)(rows)))
        _check_lengths(measured[-1], config.rollout.max_prompt_length)
    return measured


def used_datasets(config: Config) -> list[tuple[str, Dataset]]:
    """The datasets of a run by name: `data`, unless it trains nothing, and `eval.datasets`."""
    training: list[tuple[str, Dataset]] = [("data", config.data)] if config.trainer.steps != 0 else []
    return [*training, *((dataset.name, dataset) for dataset in config.eval.datasets)]


def _warn_of_lost_roles(config: Config, data: Dataset, rows: list[Placed]) -> None:
    """Base models expect plain text; losing the roles of a chat is rarely intended."""
    if data.system or isinstance(rows[0][1]["prompt"], list):
        log.warning(
            "%s: %r has no chat template, so messages are joined by blank lines and their roles are lost: name a file"
            " with one in model.chat_template, or use prompts of plain text",
            rows[0][0],
            config.model.path,
        )


def _check_lengths(dataset: Measured, limit: int) -> None:
    for (where, _), length in zip(dataset.rows, dataset.lengths, strict=True):
        if not length:
            raise DataError(f"{where}: the prompt is empty: it has no token")
    over = [number for number, length in enumerate(dataset.lengths) if length > limit]
    if not over:
        return
    key = "data" if dataset.name == "data" else "eval.datasets"
    raise DataError(
        f"{dataset.rows[over[0]][0]}: the prompt has {dataset.lengths[over[0]]} tokens, more than"
        f" rollout.max_prompt_length = {limit}. In {place(dataset.data)}, {len(over)} of {len(dataset.rows)} prompts"
        f" are too long, the longest has {max(dataset.lengths)} tokens: raise rollout.max_prompt_length, or leave"
        f' them out with {key}.overlong = "drop"'
    )
