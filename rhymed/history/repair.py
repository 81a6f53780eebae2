"""`rhymed history repair`: a run's store without what is damaged in it. The damaged file is kept beside the new one.

What is left out of a step that is still open is generated again when the run goes on.
"""

from __future__ import annotations

from pathlib import Path

from rhymed.errors import ConfigError
from rhymed.history.folder import find
from rhymed.history.verify import SHOWN
from rhymed.history.words import some
from rhymed_store.history import is_open
from rhymed_store.repair import repair
from rhymed_store.verify import Report


def repair_run(run: Path) -> tuple[Report, Path | None]:
    """What was found, and where the old file is; None: all is sound. Raises `ConfigError`, `StoreError`."""
    folder, store = find(run)
    if is_open(store):
        raise ConfigError(f"a store process has {store}: end the run of {folder} first")
    return repair(store)


def render(report: Report, kept: Path | None, run: Path) -> str:
    if kept is None:
        return f"{run}: nothing is damaged, and nothing was changed"
    lost = [f"  {table}: {name}: {why}" for table, name, why in report.findings[:SHOWN]]
    if len(report.findings) > SHOWN:
        lost.append(f"  and {len(report.findings) - SHOWN} more: `rhymed history verify` of a copy of it tells all")
    saved = ", ".join(
        some(report.counts[table], noun) for table, noun in (("samples", "sample"), ("prompts", "prompt"))
    )
    end = f"saved {saved}, {some(report.tokens, 'token')}; the damaged file is {kept}: remove it when all is well"
    return "\n".join([f"{run}: damaged, and left out or written anew:", *lost, end])
