"""`rhymed history verify`: whether every byte of a run's store is what was written, and what is not.

`rhymed_store.verify` makes the report; here is only how it is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rhymed.history.folder import find
from rhymed.history.words import size, some
from rhymed_store.verify import Report, verify

SHOWN = 20  # findings on a terminal
NOUNS = {"samples": "sample", "prompts": "prompt", "contexts": "tokenised prompt", "journal": "journal line"}


def verify_run(run: Path) -> tuple[Report, int]:
    """Its report, and the bytes of its file. Beside a living store as well. Raises `ConfigError`, `StoreError`."""
    _, store = find(run)
    report = verify(store)
    return report, (store / "data.mdb").stat().st_size


def render(report: Report, run: Path, file_bytes: int) -> str:
    counts = ", ".join(some(report.counts[table], noun) for table, noun in NOUNS.items())
    read = f"{run}: {counts}, {some(report.tokens, 'token')} in {size(file_bytes)}"
    if report.sound:
        return f"{read}: all as they were written"
    shown = [f"  {table}: {name}: {why}" for table, name, why in report.findings[:SHOWN]]
    more = len(report.findings) - SHOWN
    end = f"`rhymed history repair {run}` leaves that out and saves the rest, while no run is alive"
    rest = [f"  and {more:,} more: --json shows all"] if more > 0 else []
    return "\n".join([f"{read} are sound", f"{some(len(report.findings), 'thing')} damaged:", *shown, *rest, end])


def as_json(report: Report) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "counts": dict(report.counts),
        "tokens": report.tokens,
        "damaged": [finding._asdict() for finding in report.findings],
    }
