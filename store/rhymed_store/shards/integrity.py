"""Verification, copies and repair of all stores of a run, each alone: damage of one costs the others nothing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rhymed_store.integrity.findings import Finding, IntegrityReport
from rhymed_store.integrity.repair import copy, repair
from rhymed_store.integrity.verify import verify
from rhymed_store.shards.folders import folders_of


def verify_all(store: Path) -> IntegrityReport:
    """Raises the errors of `verify` for the first store that has one."""
    return _joint((folder, verify(folder)) for folder in folders_of(store))


def copy_all(store: Path, target: Path) -> IntegrityReport:
    """Into new folders in `target`. The first store is copied last: what steps drew is never older than their marks.

    Raises the errors of `copy`."""
    reports = []
    for folder in reversed(folders_of(store)):
        new = target / (folder.name if folder != store else "store")
        new.mkdir()
        reports.append((folder, copy(folder, new)))
    return _joint(reports)


def repair_all(store: Path) -> tuple[IntegrityReport, list[Path]]:
    """The findings, and where the damaged files are now; none: nothing was changed. Raises the errors of `repair`."""
    reports, kept = [], []
    for folder in folders_of(store):
        report, old = repair(folder)
        reports.append((folder, report))
        kept += [old] if old else []
    return _joint(reports), kept


def _joint(reports: Iterable[tuple[Path, IntegrityReport]]) -> IntegrityReport:
    """Findings of several stores name the store."""
    listed = list(reports)
    if len(listed) == 1:
        return listed[0][1]
    found = IntegrityReport()
    for folder, report in listed:
        found.counts += report.counts
        found.tokens += report.tokens
        found.live_from = max(found.live_from, report.live_from)
        found.findings += [Finding(table, f"{folder.name}: {name}", why) for table, name, why in report.findings]
    return found
