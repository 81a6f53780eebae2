"""`rhymed check` of every run of a sweep that has something left to do, before the first one starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rhymed.check.dryrun import quick_check
from rhymed.errors import ConfigError
from rhymed.sweep.plan import Job

ADDRESSES = ("broker", "store", "weights", "ranks")


def check(jobs: Sequence[Job], show: Callable[[str], None]) -> None:
    """Fills in their memory. Raises `ConfigError` with the errors of all of them; a line that several share, once."""
    errors: dict[str, list[str]] = {}
    warnings: dict[str, None] = {}
    for number, job in enumerate(jobs, 1):
        show(f"check    {number}/{len(jobs)} {job.name}")
        report = quick_check(job.config, resume=job.exists)
        job.memory = report.memory
        warnings |= dict.fromkeys(report.warnings)
        for error in report.errors:
            errors.setdefault(error, []).append(job.name)
    for warning in warnings:
        show(f"warning  {warning}")
    if errors:
        raise ConfigError("\n".join(f"{_whose(own, jobs)}: {error}" for error, own in errors.items()))


def check_together(jobs: Sequence[Job]) -> None:
    """Raises `ConfigError` where runs cannot be alive at the same time."""
    fixed = [name for name in ADDRESSES if any(getattr(job.config.net, name) for job in jobs)]
    if fixed:
        keys = ", ".join(f"net.{name}" for name in fixed)
        raise ConfigError(f"--parallel: {keys} gives all runs the same address: leave it out, or run them one by one")


def _whose(names: Sequence[str], jobs: Sequence[Job]) -> str:
    if len(names) == len(jobs) > 1:
        return "all runs"
    return ", ".join(names)
