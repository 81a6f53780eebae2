"""`rhymed history verify` and `backup`: the run's folder around the store's `verify` and `probe`, and the text."""

from __future__ import annotations

import shutil
from pathlib import Path

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, StoreError
from rhymed.core.text import counted, size_of
from rhymed.records.history.folder import find
from rhymed_store.database.child import damaged, ways_on
from rhymed_store.database.probe import probe
from rhymed_store.verify import Report, verify

SHOWN = 20  # findings on a terminal
NOUNS = {"samples": "sample", "prompts": "prompt", "journal": "journal line"}


def verify_run(run: Path) -> tuple[Report, int]:
    """The report, and the bytes of all files. Works next to a living store. Raises `ConfigError`, `StoreError`."""
    _, store = find(run)
    return verify(store), _bytes(store)


def _bytes(store: Path) -> int:
    return (store / "data.mdb").stat().st_size


def render_verify(report: Report, run: Path, file_bytes: int) -> str:
    counts = ", ".join(counted(report.counts.get(table, 0), noun) for table, noun in NOUNS.items())
    read = f"{run}: {counts}, {counted(report.tokens, 'token')} in {size_of(file_bytes)}"
    if report.sound:
        return f"{read}: all as they were written"
    shown = [f"  {table}: {name}: {why}" for table, name, why in report.findings[:SHOWN]]
    more = len(report.findings) - SHOWN
    rest = [f"  and {more:,} more: --json shows all"] if more > 0 else []
    found = f"{counted(len(report.findings), 'finding')}:"
    if not report.counts:
        return "\n".join([f"{run}: {size_of(file_bytes)} cannot be read", found, *shown, ways_on(find(run)[0])])
    return "\n".join([f"{read} are sound", found, *shown, *rest, ways_on(find(run)[0])])


RUN_FILES = ("config.json", "metrics.jsonl")  # copied with the store: the model of the tokens, the course of training


def backup_run(run: Path, target: Path) -> Report:
    """Raises `ConfigError` where `target` exists, `StoreDamaged` where the copy would be damaged too."""
    folder, store = find(run)
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} exists already, and a backup replaces nothing: name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with atomic.new_folder(target) as part:
            (part / "store").mkdir()
            probe(store, target=part / "store")
            report = verify(part / "store")
            if not report.sound:
                raise damaged(store, ": ".join(report.findings[0]))
            atomic.sync_folder(part / "store")
            for name in RUN_FILES:
                if (folder / name).is_file():
                    shutil.copy(folder / name, part / name)  # with its mode: a configuration may hold secrets
            atomic.sync_folder(part)
        atomic.sync(target.parent)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error}") from None
    return report


def render_backup(report: Report, run: Path, target: Path) -> str:
    held = f"{counted(report.counts.get('samples', 0), 'sample')}, {counted(report.tokens, 'token')}"
    written = size_of(_bytes(target / "store"))
    return (
        f"{target}: {held} of {run}, {written}, verified; `rhymed history` and --resume accept it as a run's folder"
    )
