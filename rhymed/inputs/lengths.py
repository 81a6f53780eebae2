"""Every prompt of a run measured in tokens before it starts: none may be longer than `rollout.max_prompt_length`.

Blocking: reads datasets and a tokenizer (10,000 prompts in seconds).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from rhymed.config import Config, Data
from rhymed.errors import DataError
from rhymed.inputs.datasets import Placed, place, placed_rows
from rhymed.inputs.render import load_renderer

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Measured:
    """One dataset with the length of each prompt."""

    name: str  # "data", or the name of a held-out dataset
    data: Data
    rows: list[Placed]
    lengths: list[int]  # tokens, of each row


def check_prompts(config: Config) -> list[Measured]:
    """Of all that is `asked`, in that order. Raises `DataError` about prompts that are too long, all at once."""
    renderer = load_renderer(config)
    measured: list[Measured] = []
    for name, data in asked(config):
        rows = placed_rows(config, data)
        if not renderer.has_template and config.rollout.engine != "trace":
            _warn_of_joining(config, data, rows)
        found = Measured(name, data, rows, renderer.lengths(rows))
        _fit(found, config.rollout.max_prompt_length)
        measured.append(found)
    return measured


def asked(config: Config) -> list[tuple[str, Data]]:
    """The datasets that the run will ask, by name: `data` unless it trains nothing, and `eval.datasets`."""
    training: list[tuple[str, Data]] = [("data", config.data)] if config.trainer.steps != 0 else []
    return [*training, *((one.name, one) for one in config.eval.datasets)]


def _warn_of_joining(config: Config, data: Data, rows: list[Placed]) -> None:
    """Plain text is what a base model expects; a chat whose roles are lost is rarely meant."""
    if data.system or isinstance(rows[0][1]["prompt"], list):
        log.warning(
            "%s: %r has no chat template, so messages are joined by blank lines and their roles are lost: name a file"
            " with one in model.chat_template, or give prompts as text",
            rows[0][0],
            config.model.path,
        )


def _fit(found: Measured, limit: int) -> None:
    for (where, _), length in zip(found.rows, found.lengths, strict=True):
        if not length:
            raise DataError(f"{where}: the prompt is empty: it has no token")
    over = [number for number, length in enumerate(found.lengths) if length > limit]
    if not over:
        return
    key = "data" if found.name == "data" else "eval.datasets"
    raise DataError(
        f"{found.rows[over[0]][0]}: the prompt has {found.lengths[over[0]]} tokens, more than"
        f" rollout.max_prompt_length = {limit}. {place(found.data)} has {len(over)} such of {len(found.rows)}"
        f" prompts, the longest {max(found.lengths)} tokens: raise rollout.max_prompt_length, or leave them out with"
        f' {key}.overlong = "drop"'
    )
