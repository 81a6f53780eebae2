"""`rhymed history verify`, `repair` and `backup`: the run's folder around `rhymed_store.integrity`, and the text."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, StoreError
from rhymed.core.text import counted, quoted, size_of
from rhymed.records.history.folder import find
from rhymed_store.database.transactions import is_open
from rhymed_store.integrity.checks import IntegrityReport
from rhymed_store.integrity.repair import copy, repair, verify

SHOWN = 20  # findings on a terminal
NOUNS = {"samples": "sample", "prompts": "prompt", "contexts": "tokenised prompt", "journal": "journal line"}


def verify_run(run: Path) -> tuple[IntegrityReport, int]:
    """The report, and the bytes of all files. Works next to a living store. Raises `ConfigError`, `StoreError`."""
    _, store = find(run)
    return verify(store), _bytes(store)


def _bytes(store: Path) -> int:
    return (store / "data.mdb").stat().st_size


def render_verify(report: IntegrityReport, run: Path, file_bytes: int) -> str:
    counts = ", ".join(counted(report.counts[table], noun) for table, noun in NOUNS.items())
    read = f"{run}: {counts}, {counted(report.tokens, 'token')} in {size_of(file_bytes)}"
    if report.sound:
        return f"{read}: all as they were written"
    shown = [f"  {table}: {name}: {why}" for table, name, why in report.findings[:SHOWN]]
    more = len(report.findings) - SHOWN
    end = f"`rhymed history repair {quoted(run)}` leaves these out and saves the rest, while no run is alive"
    rest = [f"  and {more:,} more: --json shows all"] if more > 0 else []
    return "\n".join([f"{read} are sound", f"{counted(len(report.findings), 'finding')}:", *shown, *rest, end])


def as_json(report: IntegrityReport) -> dict[str, Any]:
    return {
        "sound": report.sound,
        "counts": dict(report.counts),
        "tokens": report.tokens,
        "damaged": [finding._asdict() for finding in report.findings],
    }


RUN_FILES = ("config.json", "metrics.jsonl")  # copied with the store: the model of the tokens, the course of training


def backup_run(run: Path, target: Path) -> IntegrityReport:
    """Raises `ConfigError` where `target` exists, `StoreDamaged` where the copy would be damaged too."""
    folder, store = find(run)
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists already, and a backup replaces nothing: name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic.new_folder(target) as part:
            (part / "store").mkdir()
            report = copy(store, part / "store")
            for name in RUN_FILES:
                if (folder / name).is_file():
                    shutil.copy(folder / name, part / name)  # with its mode: a configuration may hold secrets
            atomic.sync_folder(part)
        atomic.sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error}") from None
    return report


def render_backup(report: IntegrityReport, run: Path, target: Path) -> str:
    held = f"{counted(report.counts['samples'], 'sample')}, {counted(report.tokens, 'token')}"
    written = size_of(_bytes(target / "store"))
    return (
        f"{target}: {held} of {run}, {written}, verified; `rhymed history` and --resume accept it as a run's folder"
    )


def repair_run(run: Path) -> tuple[IntegrityReport, Path | None]:
    """The report, and where the old file is; None: nothing is damaged. Raises `ConfigError`, `StoreError`."""
    folder, store = find(run)
    if is_open(store):
        raise ConfigError(f"a store process has {store} open: end the run of {folder} first")
    return repair(store)


def render_repair(report: IntegrityReport, kept: Path | None, run: Path) -> str:
    if not kept:
        return f"{run}: nothing is damaged, and nothing was changed"
    lost = [f"  {table}: {name}: {why}" for table, name, why in report.findings[:SHOWN]]
    if len(report.findings) > SHOWN:
        lost.append(
            f"  and {len(report.findings) - SHOWN} more: `rhymed history verify` of a copy of the old file lists all"
        )
    saved = ", ".join(
        counted(report.counts[table], noun) for table, noun in (("samples", "sample"), ("prompts", "prompt"))
    )
    end = f"saved {saved}, {counted(report.tokens, 'token')}; the damaged file is {kept}: delete it when all is well"
    return "\n".join([f"{run}: damaged, and left out or rebuilt:", *lost, end])
