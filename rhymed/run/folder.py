"""Run folders: created once, held by one supervisor at a time, read again to resume."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from rhymed.config import Config, Data, Dataset, Trainer
from rhymed.config.load import load_run
from rhymed.errors import ConfigError, RunMismatch
from rhymed.run.layout import RunLayout, layout_of

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
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": f"{wanted}-{number}"})})
    return config


def save(config: Config) -> RunLayout:
    """Write the configuration into the run's folder and point `latest` to it."""
    layout = layout_of(config)
    layout.folder.mkdir(parents=True, exist_ok=True)
    absolute = config.run.model_copy(update={"folder": str(layout.folder.parent)})
    layout.config.write_text(config.model_copy(update={"run": absolute}).model_dump_json(indent=2) + "\n")
    latest = layout.folder.parent / "latest"
    with contextlib.suppress(FileNotFoundError):
        latest.unlink()
    with contextlib.suppress(FileExistsError):
        latest.symlink_to(layout.folder.name)
    return layout


def identity(config: Config) -> dict[str, Any]:
    """Settings that must not change when a run is resumed, by key."""
    return {
        "model.path": config.model.path,
        "model.revision": config.model.revision,
        "model.chat_template": config.model.chat_template,
        **_data(config.data),
        "rollout.max_prompt_length": config.rollout.max_prompt_length,  # longer prompts may be left out
        "run.seed": config.run.seed,
        "rollout.prompts_per_step": config.rollout.prompts_per_step,
        "rollout.group_size": config.rollout.group_size,
    }


def _data(data: Data) -> dict[str, Any]:
    """Keys that earlier releases did not have only where they are set, so that their runs can be resumed."""
    fields = type(data).model_fields
    changed = {key for key in fields if getattr(data, key) != fields[key].default}
    kept = Dataset.model_fields.keys() | changed
    return {f"data.{key}": value for key, value in data.model_dump().items() if key in kept}


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
        raise ConfigError(f"{file} does not exist: name the run's folder with --run, or --broker ADDRESS{meant}")
    return layout_of(load_run(folder))


def inside(place: Path) -> list[Path]:
    """The runs' folders in this one, newest first, without links such as `latest`."""
    files = [(file.stat().st_mtime, file.parent) for file in place.glob("*/config.json")]
    return [folder for _, folder in sorted(files, reverse=True) if not folder.is_symlink()]


def near(folder: Path, most: int = 5) -> str:
    """What else a folder that is no run may mean, for the end of an error; empty: no run is near."""
    with contextlib.suppress(OSError):
        runs = {run.name: run for run in inside(folder if folder.is_dir() else folder.parent)}
        if close := difflib.get_close_matches(folder.name, runs, n=1):
            return f"; did you mean {runs[close[0]]}?"
        if runs:
            more = ", ..." if len(runs) > most else ""
            return f"; runs there, newest first: {', '.join(map(str, list(runs.values())[:most]))}{more}"
    return ""


@contextlib.contextmanager
def hold(layout: RunLayout) -> Iterator[None]:
    """Keep a second supervisor out of the folder; the kernel releases the lock of a dead one."""
    with (layout.folder / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{layout.folder} is in use by a running `rhymed run`{_owner(lock)}") from None
        lock.truncate(0)
        print(os.getpid(), file=lock, flush=True)
        try:
            yield
        finally:
            lock.truncate(0)


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
            except OSError:
                return _number(lock)
    except OSError:
        pass  # no such folder
    return None


def read_metrics(layout: RunLayout) -> list[dict[str, Any]]:
    """The steps of `metrics.jsonl` in order; of a step that was trained again after a resume, the last line."""
    return _last(row for row in _rows(layout) if not _is_evaluation(row))


def read_evaluations(layout: RunLayout) -> list[dict[str, Any]]:
    """The evaluations of `metrics.jsonl`, in order; their `step` is the policy version."""
    return _last(row for row in _rows(layout) if _is_evaluation(row))


def _is_evaluation(row: dict[str, Any]) -> bool:
    return any(key.startswith("val/") for key in row)


def _last(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    by_step = {int(row["step"]): row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _rows(layout: RunLayout) -> Iterator[dict[str, Any]]:
    """Their numbers. Incomplete and foreign lines are skipped."""
    with contextlib.suppress(OSError), layout.metrics.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield {key: value for key, value in row.items() if isinstance(value, int | float)}
