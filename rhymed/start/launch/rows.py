"""Rows that a run leaves out because their prompts are too long, counted with the words that tools add to prompts.

The broker reads rows and runs no code of users. So they are loaded here, once, before it starts: a run that is
resumed has the same rows, whatever has changed in its tools. Rows of a file that was edited are compared here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rhymed.core.config import Config, Dataset
from rhymed.core.run import edited
from rhymed.core.run.provenance import DATA
from rhymed.inputs.datasets import Lengths
from rhymed.inputs.lengths import used_datasets
from rhymed.inputs.prepared import file_of, kept_rows, prepare


def keep(config: Config, folder: Path) -> None:
    """Blocking. Raises `DataError`, `ConfigError`, `EnvironmentFailed`."""
    datasets = [part for _, data in used_datasets(config) for part in data.parts]
    missing = [data for data in datasets if data.overlong == "drop" and not file_of(config, folder, data).exists()]
    if lengths := lengths_of(config, missing):
        for data in missing:
            prepare(config, folder, data, lengths)


def compare(config: Config, folder: Path) -> None:
    """Raises `RunMismatch` if a file of rows was edited and has other rows than the run began with, and the errors of
    `rows_of`. Blocking. Other sources, and files that are too large to be hashed, are left to the broker."""
    changed = {one.path for one in edited.files(folder, config, DATA)}
    for _, data in used_datasets(config):
        for part in data.parts:
            if part.path in changed:
                kept_rows(config, folder, part)


def lengths_of(config: Config, datasets: Sequence[Dataset]) -> Lengths | None:
    """None: no prompt is left out, or they are as the dataset has them."""
    known = bool(config.environment.tools or config.environment.mcp or config.environment.stateful)
    if not known or all(data.overlong != "drop" for data in datasets):
        return None
    from rhymed_workers.environment.preview import prompt_lengths

    return prompt_lengths(config)
