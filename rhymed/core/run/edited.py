"""Checks whether the files that a configuration names have the content with which the run was started.

Reward functions, tools, environments, programs of agents, rubrics and the chat template belong to a run. Every start
of `rhymed run` writes their digests into `starts.jsonl` and keeps copies of small ones in `inputs/`, called by digest
and name. A process that reads such a file later compares it after it has read it, and ends if it differs: one step
has one reward. They are read where they are, not in `inputs/`, since they import their neighbours. Rows are compared
as such, by the broker (rhymed.inputs.prepared). A folder in which no `rhymed run` was started has nothing to compare
with.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rhymed.core import atomic
from rhymed.core.config import Config
from rhymed.core.errors import RunMismatch
from rhymed.core.run import provenance
from rhymed.core.run.layout import INPUTS
from rhymed.core.run.provenance import DATA, TEMPLATE
from rhymed.core.text import quoted

LARGEST = 1 << 20  # bytes of a file that is copied


class Edited(NamedTuple):
    setting: str  # a key of `provenance.named`
    path: str  # as configured
    copy: Path | None  # of its content at the start of the run; None: none was kept


def start(folder: Path, start: provenance.Start) -> None:
    """Record the files' present content as that of this start. Errors are ignored, as by `provenance.note`."""
    for path, digest in start.files.items():
        copy, own = _copy(folder, path, digest), Path(path).expanduser()
        with contextlib.suppress(OSError):
            if digest and not copy.exists() and own.stat().st_size <= LARGEST:
                copy.parent.mkdir(exist_ok=True)
                with atomic.new_file(copy, stat.S_IMODE(own.stat().st_mode) | stat.S_IWUSR) as part:
                    shutil.copyfile(own, part)
                    atomic.sync(part)
    provenance.note(folder, start)


def files(folder: Path, config: Config, *settings: str) -> Iterator[Edited]:
    """Files of these settings (none: of all) whose content differs from that at the newest start which had them.
    Blocking. Those that are too large to be hashed are left out, and missing ones, which their reader reports."""
    before: dict[str, str] = {}
    for one in provenance.read(folder):
        before |= {} if one.prepared else one.files
    for setting, paths in provenance.named(config).items():
        if settings and setting not in settings:
            continue
        now = provenance.files(config, setting) if any(map(before.get, paths)) else {}
        for path, digest in now.items():
            if before.get(path) and digest != before[path]:
                copy = _copy(folder, path, before[path])
                yield Edited(setting, path, copy if copy.exists() else None)


def difference(folder: Path, config: Config, *settings: str) -> str:
    """Why a process of the run must not work with these files as it has read them; empty: it may. Blocking."""
    for one in files(folder, config, *settings):
        resume = f"accept it with `rhymed run --resume {quoted(folder)}`, which reports the difference"
        accept = "start a new run" if one.setting == TEMPLATE else resume
        return (
            f"{one.path} ({one.setting}) was edited while the run was working, and with its new content one step"
            f" would be a mixture of two. Either put the old content back{_from(one)} and resume the run, or {accept}"
        )
    return ""


def compare(folder: Path | None, config: Config, setting: str, error: type[Exception]) -> None:
    """Raises `error` if a process of the run must not work with files of this setting as it has read them.

    `folder`: of the run; None: it has none. Blocking."""
    if folder and (why := difference(folder, config, setting)):
        raise error(why)


def accepted(folder: Path, config: Config) -> list[str]:
    """At a resume: a message for each file that differs and may differ. Raises `RunMismatch` for a chat template: as
    with another `model.chat_template`, the prompts would be others. The broker compares rows."""
    found = []
    for one in files(folder, config):
        if one.setting == TEMPLATE:
            raise RunMismatch(
                f"{folder} belongs to another run: the content of {one.path} ({TEMPLATE}) is not what it was; put the"
                f" old content back{_from(one)} to resume it, or start a new run with another run.name"
            )
        if one.setting != DATA:
            kept = f"; its old content is in {one.copy}" if one.copy else ""
            found.append(
                f"{one.path} ({one.setting}) was edited after the run was started: its new content counts{kept}"
            )
    return found


def _copy(folder: Path, path: str, digest: str) -> Path:
    return folder / INPUTS / f"{digest[:12]}-{os.path.basename(path)}"


def _from(one: Edited) -> str:
    return f" (cp {quoted(one.copy)} {quoted(Path(one.path))})" if one.copy else ""
