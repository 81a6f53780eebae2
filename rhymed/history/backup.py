"""`rhymed history backup`: a copy of a run's store, made while it is written, in a folder that opens as a run's.

Invariant: the folder is there whole, verified and on the disk, or not at all.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rhymed.errors import ConfigError, StoreError
from rhymed.history.folder import find
from rhymed.history.words import size, some
from rhymed_store.repair import copy, flush
from rhymed_store.verify import Report

ALSO = ("config.json", "metrics.jsonl")  # of the run's folder: which model's tokens these are, and how it went


def backup_run(run: Path, target: Path) -> Report:
    """Raises `ConfigError` where `target` is there already, `StoreDamaged` where a copy would be damaged, too."""
    folder, store = find(run)
    if target.exists() or target.is_symlink():
        raise ConfigError(f"{target} is there already, and a backup replaces nothing: name another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    making = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        (making / "store").mkdir(parents=True)
        report = copy(store, making / "store")
        for name in ALSO:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, making / name)
        flush(making)
        os.rename(making, target)
        flush(target.parent, files=False)
    except OSError as error:
        raise StoreError(f"{target} cannot be written: {error}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return report


def render(report: Report, run: Path, target: Path) -> str:
    held = f"{some(report.counts['samples'], 'sample')}, {some(report.tokens, 'token')}"
    written = size((target / "store" / "data.mdb").stat().st_size)
    return f"{target}: {held} of {run}, {written}, verified; `rhymed history` and --resume take it as a run's folder"
