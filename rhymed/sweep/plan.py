"""The runs of a sweep: their configurations, and what there is of them already. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rhymed.config import Config
from rhymed.config.base import NAME_LENGTH
from rhymed.config.load import load_config, load_run
from rhymed.config.services import LATEST, RUN_NAME
from rhymed.errors import ConfigError
from rhymed.run.layout import layout_of
from rhymed.several import manifest
from rhymed.several.condition import ALIVE, Condition, condition_of
from rhymed.several.differences import differences
from rhymed.several.manifest import Manifest, Planned
from rhymed.sweep.product import axes_of, combinations, name_of, names
from rhymed.text import counted, short

MAY_DIFFER = ("run.log_level", "run.report", "net.")  # of a run that is continued
SHOWN = 3  # differing settings in an error


@dataclass
class Job:
    """One run of the sweep."""

    name: str
    settings: dict[str, str]
    config: Config
    state: Condition = "waiting"
    memory: float = 0.0  # bytes that it needs, as `rhymed check` counts them

    @property
    def folder(self) -> Path:
        return layout_of(self.config).folder

    @property
    def exists(self) -> bool:
        return layout_of(self.config).config.exists()


@dataclass
class Sweep:
    folder: Path
    jobs: list[Job]
    manifest: Manifest

    def todo(self) -> list[Job]:
        return [job for job in self.jobs if job.state != "finished"]

    def refused(self, job: Job, why: str) -> None:
        """Notes why a run could not be started; empty: it was."""
        runs = [
            Planned(name=one.name, settings=one.settings, refused=why) if one.name == job.name else one
            for one in self.manifest.runs
        ]
        if runs != self.manifest.runs:
            self.manifest = Manifest(config=self.manifest.config, fixed=self.manifest.fixed, runs=runs)
            manifest.write(self.folder, self.manifest)


def plan(path: Path, options: Sequence[str], name: str = "") -> Sweep:
    """Reads every configuration; writes nothing. Raises `ConfigError` with the errors of all of them."""
    axes, fixed = axes_of(options)
    _check_name(name)
    called, jobs, errors = names(axes), list[Job](), dict[str, str]()
    folder: Path | None = None
    for settings in combinations(axes):
        own = name_of(settings, called)
        try:
            changes = [f"{key}={value}" for key, value in settings.items()]
            config = load_config(path, [*fixed, *changes])
            folder = folder or _folder(config, name)
            jobs.append(Job(own, settings, _placed(config, folder, own)))
        except ConfigError as error:
            errors[own] = str(error)
    if errors or folder is None:
        raise ConfigError(_by_run(errors, together=not jobs))
    earlier = manifest.read(folder)
    _look(jobs)
    runs = [Planned(name=job.name, settings=job.settings) for job in jobs]
    kept = [one for one in (earlier.runs if earlier else []) if one.name not in {job.name for job in jobs}]
    return Sweep(folder, jobs, Manifest(config=str(path), fixed=fixed, runs=[*kept, *runs]))


def _check_name(name: str) -> None:
    """The sweep's folder is next to those of runs. Raises `ConfigError`."""
    if name and not (re.fullmatch(RUN_NAME, name) and len(name) <= NAME_LENGTH):
        raise ConfigError(
            f"--name {short(name)}: at most {NAME_LENGTH} letters, digits, dots, dashes and underscores, with a"
            " letter or digit first"
        )
    if name == LATEST:
        raise ConfigError(f"--name {name}: this is the link to the newest run: choose another name")


def _by_run(errors: Mapping[str, str], *, together: bool) -> str:
    """`together`: what all runs have is there once."""
    lines = {own: error.splitlines() for own, error in errors.items()}
    first, *others = lines.values()
    common = [line for line in first if together and others and all(line in each for each in others)]
    return "\n".join(
        common + [f"{own}: {line}" for own, each in lines.items() for line in each if line not in common]
    )


def _folder(config: Config, name: str) -> Path:
    """Of the sweep, within `run.folder`."""
    named = config.run.model_copy(update={"name": name or f"{config.run.name}-sweep"})
    return layout_of(config.model_copy(update={"run": named})).folder


def _placed(config: Config, folder: Path, name: str) -> Config:
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name, "folder": str(folder)})})


def _look(jobs: Sequence[Job]) -> None:
    """Looks at what there is of them. Raises `ConfigError` where one is alive, or was started with other settings."""
    errors: list[str] = []
    for job in (job for job in jobs if job.exists):
        job.state, _ = condition_of(job.folder)
        if job.state in ALIVE:
            errors.append(f"{job.folder} is alive: wait for its end, or end it (rhymed top --run {job.folder})")
        elif changed := list(_changed(job)):
            more = ", ..." if len(changed) > SHOWN else ""
            errors.append(
                f"{job.folder} was started with {', '.join(changed[:SHOWN])}{more}: undo that to continue it, or"
                " --name another sweep"
            )
    if errors:
        others = f" ({counted(len(errors) - 1, 'other run')} likewise)" if len(errors) > 1 else ""
        raise ConfigError(errors[0] + others)


def _changed(job: Job) -> Iterator[str]:
    earlier: dict[str, Any] = load_run(job.folder).model_dump(mode="json")
    found = differences([earlier, job.config.model_dump(mode="json")])
    for key, (before, now) in found.items():
        if not key.startswith(MAY_DIFFER):
            yield f"{key} = {short(before, 40)} (now {short(now, 40)})"
