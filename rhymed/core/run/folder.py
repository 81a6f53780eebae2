"""Run folders: created once, held by one supervisor at a time, read again to resume."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import msgspec

from rhymed.core import atomic, private
from rhymed.core.config import Config, Trainer
from rhymed.core.config.base import NAME_LENGTH
from rhymed.core.config.load import load_run
from rhymed.core.config.services import LATEST
from rhymed.core.errors import ConfigError, FilesLost, RunMismatch
from rhymed.core.run.layout import ID, METRICS, RunLayout, ids_of, layout_of
from rhymed.core.secret import redacted
from rhymed.core.text import quoted

log = logging.getLogger(__name__)

LOCK = "lock"  # in the run's folder; holds the process id of its owner


def create(config: Config) -> tuple[Config, RunLayout]:
    """A new folder for this run. A name that is taken gets a number; the folders of earlier runs are not touched."""
    config = with_free_name(config)
    return config, save(config)


def with_free_name(config: Config) -> Config:
    """The configuration with a run name that has no folder yet: its own name, or that with a number."""
    wanted, number = config.run.name, 1
    while layout_of(config).config.exists():
        number += 1
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": numbered(wanted, number)})})
    return config


def numbered(name: str, number: int) -> str:
    """The name with a number at its end, and not longer than a run's name may be."""
    end = f"-{number}"
    return name[: NAME_LENGTH - len(end)] + end


def save(config: Config) -> RunLayout:
    """Write the configuration into the run's folder and point `latest` to it. Raises `ConfigError`."""
    layout = layout_of(config)
    absolute = config.run.model_copy(update={"folder": str(layout.folder.parent)})
    for place in (
        layout.database,
        layout.checkpoints,
        layout.tensorboard,
        layout.folder / "logs",
    ):
        if place.exists() and not place.is_dir():
            raise ConfigError(f"{place} is a file, and the run needs a folder there: move it away")
    try:
        atomic.make_folder(layout.folder)
        if not ids_of(layout.folder):
            add_id(layout.folder, new_id())
        (layout.folder / ID).chmod(0o600)  # the name of its sockets' folder may depend on it
        write_config(layout.config, config.model_copy(update={"run": absolute}))
    except OSError as error:
        raise ConfigError(f"run.folder: {layout.folder} cannot be written to: {error.strerror or error}") from None
    _point(layout.folder.parent / LATEST, layout.folder)
    if (now := layout_of(config)).sockets != layout.sockets:
        log.warning("%s %s: this run's are in %s", layout.sockets, private.trouble(layout.sockets), now.sockets)
    return now


def _point(link: Path, folder: Path) -> None:
    """A folder or a file of the user's with that name stays."""
    if link.is_symlink() or not link.exists():
        with contextlib.suppress(OSError):
            link.unlink(missing_ok=True)
            link.symlink_to(folder.name)


def new_id() -> str:
    return secrets.token_hex(8)


def add_id(folder: Path, id: str) -> None:
    """This is the run's id from now on."""
    earlier = [old for old in ids_of(folder) if old != id]
    atomic.write(folder / ID, msgspec.json.encode([*earlier, id]) + b"\n", mode=0o600, synced=True)


def identity(config: Config) -> dict[str, Any]:
    """Settings that must not change when a run is resumed, by key."""
    return {
        "model.path": config.model.path,
        "model.revision": config.model.revision,
        "model.chat_template": config.model.chat_template,
        **{f"data.{key}": value for key, value in config.data.model_dump().items()},
        "rollout.max_prompt_length": config.rollout.max_prompt_length,  # longer prompts may be left out
        "run.seed": config.run.seed,
        "rollout.prompts_per_step": config.rollout.prompts_per_step,
        "rollout.group_size": config.rollout.group_size,
        **({"environment": "its samples have turns"} if config.environment.active else {}),  # as those in its store
    }


def _models(trainer: Trainer) -> dict[str, Any]:
    """Which models its checkpoints hold."""
    return {
        "trainer.lora": trainer.lora and trainer.lora.model_dump(),
        "trainer.critic": (trainer.critic.model or "from model.path") if trainer.recipe.critic else None,
    }


def check_same(earlier: Config, config: Config, layout: RunLayout) -> None:
    """Raises `RunMismatch` when `config` cannot resume the run in that folder."""
    before, now = (identity(one) | _models(one.trainer) for one in (earlier, config))
    keys = [key for key in {**before, **now} if now.get(key) != before.get(key)]
    changed = [f"{key} = {now.get(key)!r} (it was {before.get(key)!r})" for key in keys]
    if changed:
        raise RunMismatch(
            f"{layout.folder} belongs to another run: {', '.join(changed)}; undo that to resume it, or start a new"
            " run with another run.name"
        )


def layout_of_folder(folder: Path) -> RunLayout:
    """The layout of the run in this folder. Raises `ConfigError`."""
    file = folder / "config.json"
    if not os.path.exists(file):  # unlike Path.exists, false for a folder that may not be read
        meant = near(folder)
        raise ConfigError(f"{file} does not exist: name a run's folder, or --broker ADDRESS{meant}")
    return layout_of(load_run(folder))


def no_run(folder: Path) -> str:
    """Why this folder, which has no config.json, cannot be opened as a run."""
    if os.path.exists(folder):
        return f"{folder} is not a run's folder: it has no config.json{near(folder)}"
    return f"{folder} does not exist: name a run's folder, e.g. runs/quickstart{near(folder)}"


def near(folder: Path) -> str:
    """Where the run that was meant may be, for the end of an error."""
    return f"; `rhymed runs {quoted(folder if folder.is_dir() else folder.parent)}` lists the runs there"


class Held:
    """The folder of a run that this process holds. `locked`: by the kernel's lock, which some storage lacks."""

    locked = True

    def __init__(self, layout: RunLayout, locks: contextlib.ExitStack) -> None:
        self._folder, self._locks = layout.folder, locks
        self._open = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        locks.callback(os.close, self._open)
        self._lock = self._claim()
        kept = [file for file in (layout.config, self._folder / ID) if file.exists()]
        self._kept = {file: (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) for file in kept}

    def check(self) -> None:
        """Write again what was removed of lock, configuration and id. A few system calls.

        Raises `FilesLost` if the folder itself is gone, or held by another process."""
        if not atomic.is_named(self._open, self._folder):
            raise FilesLost(
                f"{self._folder} was removed, moved or replaced while the run was working, which ends it. To resume"
                " it, put the folder back"
            )
        try:
            if not atomic.is_named(self._lock.fileno(), self._folder / LOCK):
                self._lock = self._claim()
            for file, (content, mode) in self._kept.items():
                if not file.exists():
                    log.warning("%s was removed from outside of this run: writing it again", file)
                    atomic.write(file, content, mode=mode, synced=True)
        except ConfigError as error:
            raise FilesLost(f"the lock of this run was removed, and {error}: this one stops") from None
        except OSError as error:  # a full disk, which is reported elsewhere; or the folder is being removed
            log.warning("a file of %s cannot be written again: %s", self._folder, error)

    def _claim(self) -> TextIO:
        """Raises `ConfigError` if another process has the lock."""
        lock = self._locks.enter_context((self._folder / LOCK).open("a+"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self._folder} is in use by a running `rhymed run`{_owner(lock)}") from None
        except OSError as error:  # e.g. a network file system without locks
            self.locked = False
            log.warning("%s cannot be locked (%s): its lease alone keeps others out", lock.name, error.strerror)
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        self._locks.callback(lock.truncate, 0)
        return lock


@contextlib.contextmanager
def hold(layout: RunLayout) -> Iterator[Held]:
    """Keep a second supervisor out of the folder; the kernel releases the lock of a dead one."""
    with contextlib.ExitStack() as locks:
        yield Held(layout, locks)


def _owner(lock: TextIO) -> str:
    lock.seek(0)
    return f" (process {number})" if (number := _number(lock)) else ""


def _number(lock: TextIO) -> int:
    text = lock.read(20).strip()
    return int(text) if text.isdecimal() else 0


def holder(folder: Path) -> int | None:
    """Process id of the `rhymed run` that holds the folder, 0 if unknown; None: it is free."""
    try:
        with (folder / LOCK).open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _number(lock)
    except OSError:
        pass  # no such folder, or no locks there
    return None


def read_metrics(layout: RunLayout) -> list[dict[str, Any]]:
    """The steps of `metrics.jsonl` in order; of a step that was trained again after a resume, the last line."""
    return _last(row for row in _rows(layout.metrics) if not _is_evaluation(row))


def read_evaluations(layout: RunLayout) -> list[dict[str, Any]]:
    """The evaluations of `metrics.jsonl`, in order; their `step` is the policy version."""
    return evaluations_in(layout.folder)


def evaluations_in(run: Path) -> list[dict[str, Any]]:
    """Likewise, of the run in this folder."""
    return _last(row for row in _rows(run / METRICS) if _is_evaluation(row))


def _is_evaluation(row: dict[str, Any]) -> bool:
    return any(key.startswith("val/") for key in row)


def _last(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    by_step = {int(row["step"]): row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _rows(metrics: Path) -> Iterator[dict[str, Any]]:
    """Their numbers. Incomplete and foreign lines are skipped."""
    with contextlib.suppress(OSError), metrics.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield {key: value for key, value in row.items() if isinstance(value, int | float)}


# The file that holds a run's configuration, secrets included.


def write_config(file: Path, config: Config) -> None:
    """Whole or not at all, and durable. Where it has secrets, only its owner may read it. Raises `OSError`."""
    mode = 0o600 if has_secrets(config) else None
    atomic.write(file, config.model_dump_json(indent=2) + "\n", mode=mode, synced=True)


def has_secrets(config: Config) -> bool:
    settings = config.model_dump(mode="json")
    return bool(redacted(settings) != settings)
