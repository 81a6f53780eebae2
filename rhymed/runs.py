"""Run folders: made once, held by one supervisor at a time, found again to resume."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator
from typing import Any

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.places import Places, places


def create(config: Config) -> tuple[Config, Places]:
    """A new folder for this run. A name that is taken gets a number: what an earlier run made is never touched."""
    config = free(config)
    return config, save(config)


def free(config: Config) -> Config:
    """The configuration under a name that no run has: its own, else with a number."""
    wanted, number = config.run.name, 1
    while places(config).config.exists():
        number += 1
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": f"{wanted}-{number}"})})
    return config


def save(config: Config) -> Places:
    """Write the configuration into the run's folder and let `latest` point there."""
    where = places(config)
    where.folder.mkdir(parents=True, exist_ok=True)
    absolute = config.run.model_copy(update={"folder": str(where.folder.parent)})
    where.config.write_text(config.model_copy(update={"run": absolute}).model_dump_json(indent=2) + "\n")
    latest = where.folder.parent / "latest"
    with contextlib.suppress(FileNotFoundError):
        latest.unlink()
    with contextlib.suppress(FileExistsError):
        latest.symlink_to(where.folder.name)
    return where


@contextlib.contextmanager
def hold(where: Places) -> Iterator[None]:
    """Keep a second supervisor out of the folder; a dead one's hold ends with it."""
    with (where.folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{where.folder} is in use by a running `rhymed run`") from None
        yield


def read_metrics(where: Places) -> list[dict[str, Any]]:
    """The steps of `metrics.jsonl`, each once (a step trained again after a resume: the last), in order."""
    return _last(row for row in _rows(where) if not _is_evaluation(row))


def read_evaluations(where: Places) -> list[dict[str, Any]]:
    """The evaluations of `metrics.jsonl`, in order; their `step` is the policy version."""
    return _last(row for row in _rows(where) if _is_evaluation(row))


def _is_evaluation(row: dict[str, Any]) -> bool:
    return any(key.startswith("val/") for key in row)


def _last(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    by_step = {int(row["step"]): row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _rows(where: Places) -> Iterator[dict[str, Any]]:
    if where.metrics.exists():
        for line in where.metrics.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line of a run that was killed may be cut
                yield json.loads(line)
