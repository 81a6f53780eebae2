"""The table of samples that goes with a step's metrics: some prompts with their best and their worst response.

Read from the run's store, next to the living run. Bounded: `metrics.samples` rows, and so many characters of a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.inputs.models import tokenizer_of_run
from rhymed.inputs.rows import prompt_text
from rhymed.text import parts_text, truncated
from rhymed_broker.telemetry import SampleRow
from rhymed_store.inspect.browse import Response
from rhymed_store.shards.browse import StoreReader

CHARACTERS = 4000  # of a prompt or a response
TRAINED = "reward/mean"
"""A row of metrics with it is of a training step."""


class SampleTables:
    """Of the run in `folder`. `config`: section -> key -> value."""

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder, self._config = folder, config
        self._most = int(config["metrics"].get("samples", 0))

    @property
    def wanted(self) -> bool:
        return self._most > 0

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        config = Config.model_validate(dict(self._config))
        return Tokenizer.from_file(str(tokenizer_of_run(self._folder, config)))

    def of_step(self, step: int) -> list[SampleRow]:
        """Raises `ConfigError` without a store or a tokenizer, `StoreError` for a damaged store."""
        store = self._folder / "store"
        if not store.is_dir():
            raise ConfigError(f"{self._folder} has no store in it")
        rows: list[SampleRow] = []
        with StoreReader(store) as reader:
            browse = reader.browse
            for prompt in browse.prompts_of_step(step, most=self._most):
                found = [one for one in browse.responses(prompt) if one.info.id.step == step]
                text = prompt_text(browse.row(prompt))
                rows += (self._row(text, one) for one in _ends(found))
        return rows[: self._most]

    def _row(self, prompt: str, one: Response) -> SampleRow:
        text = self._tokenizer.decode(one.tokens.tolist(), skip_special_tokens=False)
        reward = None if one.info.reward is None else float(one.info.reward)
        return SampleRow(
            prompt=truncated(prompt, CHARACTERS),
            response=truncated(text, CHARACTERS),
            reward=reward,
            parts=parts_text(one.parts),
            tokens=one.info.length,
            sample=str(one.info.id),
        )


def _ends(found: Sequence[Response]) -> Iterable[Response]:
    """The best one and the worst one; one of them if all rewards are equal."""
    scored = [one for one in found if one.info.reward is not None]
    if not scored:
        return found[:1]
    ordered = sorted(scored, key=lambda one: -float(one.info.reward or 0.0))
    return ordered[:1] if ordered[0].info.reward == ordered[-1].info.reward else (ordered[0], ordered[-1])
