"""Checkpoint folders that appear whole or not at all: `step-000010` is the state after 10 trained steps.

A folder is written under another name, synced, completed by a manifest with the digests of its files, and renamed.
`newest` verifies the digests and falls back to the checkpoint before. `best` is the checkpoint with the highest
held-out reward, kept in a folder of its own. Does not know the content of the files.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

from rhymed.core import atomic
from rhymed.core.atomic import make_folder, open_up, sync
from rhymed.core.errors import CheckpointError, CheckpointLost, DiskFull, RhymedError, RunMismatch
from rhymed.core.run.folder import evaluations_in

log = logging.getLogger(__name__)

# The best checkpoint of a run, by its held-out reward: `trainer.keep_best`.
#
# `best/` has hard links to the files of checkpoints that were evaluated or will be, so that rotation removes none of
# them: the best one so far, and those whose evaluation was not over when the last one was added. So a run that has
# ended may leave two: `best` returns the right one. A resume does not read the folder.

FOLDER = "best"


class Best(NamedTuple):
    checkpoint: Checkpoint
    reward: float  # mean over the held-out datasets


def held_out(evaluations: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Version -> reward, as the mean over the datasets. A version without a finite reward is left out."""
    found = {}
    for row in evaluations:
        rewards = [value for key, value in row.items() if key.startswith("val/") and key.endswith("/reward/mean")]
        if rewards and math.isfinite(mean := fmean(rewards)):
            found[int(row["step"])] = mean
    return found


def best(run: Path) -> Best | None:
    """The best of the checkpoints in `best/`; of equally good ones the first. None: none of them was evaluated."""
    rewards = held_out(evaluations_in(run))
    known = [Best(one, rewards[one.step]) for one in checkpoints_in(run / FOLDER) if one.step in rewards]
    return max(known, key=lambda one: one.reward, default=None)


def keep(run: Path, checkpoint: Checkpoint) -> None:
    """Keep this checkpoint until it is known whether it is the best, and remove those that are not. Blocking. Raises
    `OSError`."""
    target = run / FOLDER / checkpoint.folder.name
    if not _same(target, checkpoint.folder):
        with atomic.new_folder(target) as part:
            shutil.copytree(checkpoint.folder, part, copy_function=_link, dirs_exist_ok=True)
            _remove(target)
        atomic.sync(target.parent)
    newest, found = max(held_out(evaluations_in(run)), default=0), best(run)
    for other in checkpoints_in(run / FOLDER):
        if other.step <= newest and found is not None and other != found.checkpoint:
            shutil.rmtree(other.folder, ignore_errors=True)


def _same(kept: Path, written: Path) -> bool:
    """Whether `kept` has links to all files of this checkpoint: it is neither damaged, nor of the same step before a
    resume trained it again."""
    files, there = ({one.relative_to(of) for one in of.rglob("*") if one.is_file()} for of in (written, kept))
    if not files:
        raise _removed(written)
    return files == there and all((kept / one).samefile(written / one) for one in files)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _link(source: str, target: str) -> None:
    """A copy where the file system has no hard links."""
    with contextlib.suppress(OSError):
        Path(target).hardlink_to(source)
        return
    shutil.copyfile(source, target)


# Checkpoints: written, sealed, verified, removed.

MANIFEST = "manifest.json"
NAME = re.compile(r"step-(\d{6,})")
UNFINISHED = ".writing-"
READERS = 4  # threads

Result = TypeVar("Result")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Checkpoint(NamedTuple):
    step: int  # steps trained
    folder: Path


def folder_of(folder: Path, step: int) -> Path:
    """Of the checkpoint after `step` steps, whether it exists or not."""
    return folder / f"step-{step:06d}"


Write = Callable[[], Mapping[str, str] | None]
"""Fills a checkpoint's folder; may be called again. Returns the files that have to be there then, by name: their
digests where these are known, and the files synced, else "". None: whatever is there then."""


def save(
    folder: Path, step: int, write: Callable[[Path], Mapping[str, str] | None], keep: int, run: str = ""
) -> Checkpoint:
    """Let `write` fill a folder, see `Write`, and make it durable as the checkpoint of `step`; keep the `keep`
    newest. Blocking. An existing intact checkpoint of this step is kept as it is. `run`: its id, for `run_of`. Raises
    `CheckpointError`."""
    part = begin(folder, step)
    if part is None:
        return finish(folder, step, None, keep)
    return finish(folder, step, lambda: write(part), keep, run)


def begin(folder: Path, step: int) -> Path | None:
    """An empty folder for the checkpoint of `step`; None if an intact one is there. Blocking. What an earlier process
    has not finished is removed. Raises `CheckpointError`."""
    target = folder_of(folder, step)

    def make() -> Path | None:
        make_folder(folder)
        _sweep(folder)
        if target.is_dir() and _is_intact(target):
            return None
        part = _unfinished(target)
        part.mkdir()
        return part

    with _writing(target):
        return _again_if_removed(make, target)


def _unfinished(target: Path) -> Path:
    return target.with_name(f"{UNFINISHED}{target.name}")


def written_bytes(folder: Path, step: int) -> int:
    """Of the checkpoint of `step` while it is written. Blocking."""
    files = _unfinished(folder_of(folder, step)).rglob("*")
    return sum(file.lstat().st_size for file in files)


def finish(folder: Path, step: int, write: Write | None, keep: int, run: str = "") -> Checkpoint:
    """`write` fills the folder that `begin` has made; None: there is nothing to write. Blocking. Raises
    `CheckpointError`; after `DiskFull` it may be called again."""
    target = folder_of(folder, step)

    def fill(write: Write) -> None:
        part = _unfinished(target)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)
        part.mkdir(exist_ok=True)  # gone, if this is tried again
        with _opened(part) as opened:
            known = write() or {}
            if not atomic.is_named(opened, part):  # removed, and made again by a library that makes folders
                raise _removed(part)
            open_up(part)
            sizes = _seal(part, known, run)
            if target.exists():
                shutil.rmtree(target)
            part.rename(target)
            sync(folder)
        for name, size in sizes.items():
            file = target / name
            if not file.is_file() or file.stat().st_size != size:
                (target / MANIFEST).unlink(missing_ok=True)  # nobody takes it for a whole one meanwhile
                raise _removed(file)

    with _writing(target):
        if write is not None:
            _again_if_removed(lambda: fill(write), target)
        elif not (target / MANIFEST).is_file():
            raise _removed(target)
        _prune(folder, step, keep)
    return Checkpoint(step, target)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """While it is open, no other file or folder gets its inode number."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _removed(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it was removed while the checkpoint was written", str(path))


def _again_if_removed(work: Callable[[], Result], target: Path) -> Result:
    """Repeats work that writes, once, if somebody removed its files meanwhile: the state is still in memory, and
    without a checkpoint nothing covers the steps whose log-probs the store has forgotten."""
    try:
        return work()
    except Exception as error:
        named = Path(getattr(error, "filename", None) or "")  # `rmtree` gives the last part of the path alone
        elsewhere = named.is_absolute() and not named.is_relative_to(target.parent.absolute())
        if _number(error) != errno.ENOENT or elsewhere:
            raise
        log.warning("files of %s were removed while it was written (%s): it is written again", target, error)
        shutil.rmtree(_unfinished(target), ignore_errors=True)
        return work()


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Raises `DiskFull` if that is why it cannot be written, else `CheckpointError`."""
    try:
        yield
    except Exception as error:  # safetensors has a kind of its own, with the system's number in its text only
        shutil.rmtree(_unfinished(target), ignore_errors=True)  # the room is for others now
        number = _number(error)
        kind = DiskFull if number in FULL else CheckpointError
        if number is None and not isinstance(error, OSError):
            raise
        full = "the disk is full: " if kind is DiskFull else ""  # first, as a line that waits is short
        cure = "let nothing else remove files there" if number == errno.ENOENT else "free some space"
        raise kind(f"{full}{target} cannot be written: {error}; {cure}, or move run.folder") from error


def _number(error: Exception) -> int | None:
    """Of the system's error; None: it is of another kind. Also safetensors' errors have one."""
    if isinstance(error, RhymedError):  # whoever raised it has judged
        return None
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def newest(folder: Path) -> Checkpoint | None:
    """The newest intact one. Blocking: reads all of it."""
    return next((one for one in reversed(checkpoints_in(folder)) if _is_intact(one.folder)), None)


def resume(folder: Path, ids: Sequence[str] = ()) -> Checkpoint | None:
    """The newest intact one; None if there is none at all. `ids`: of the run; empty: unknown. Blocking.

    Raises `CheckpointLost` if all are damaged, `RunMismatch` if another run wrote it.
    """
    checkpoint = newest(folder)
    if checkpoint is None and (damaged := checkpoints_in(folder)):
        names = ", ".join(one.folder.name for one in damaged)
        raise CheckpointLost(
            f"every checkpoint in {folder} is damaged ({names}): put a good one back, or start a new run"
        )
    if checkpoint is not None and ids and (run := run_of(checkpoint.folder)) and run not in ids:
        raise RunMismatch(
            f"{checkpoint.folder} was written by another run (id {run}; this one is {ids[-1]}): put this run's"
            " checkpoints back"
        )
    return checkpoint


def at_step(folder: Path, step: int) -> Checkpoint | None:
    """The one after `step` steps, if it is intact. Blocking."""
    return next((one for one in checkpoints_in(folder) if one.step == step and _is_intact(one.folder)), None)


def _is_intact(folder: Path) -> bool:
    """Logs the damage, if there is any."""
    if why := damage(folder):
        log.warning("checkpoint %s is damaged and will not be used: %s", folder, why)
    return not why


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint; empty if it is intact. Blocking: reads all of it."""
    try:
        written = dict(json.loads((folder / MANIFEST).read_text())["files"].items())
        for name, digest in _digests(folder, written).items():
            if written[name] != digest:
                raise ValueError(f"{name} is not what was written")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return str(error)
    return ""


def run_of(folder: Path) -> str:
    """The id of the run that wrote this checkpoint; empty: unknown, since its manifest is damaged."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads((folder / MANIFEST).read_text())["run"])
    return ""


def _seal(folder: Path, known: Mapping[str, str], run: str) -> dict[str, int]:
    """Sync every file of the folder, then write and sync the manifest. Returns the sizes. Raises `OSError`."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if gone := known.keys() - set(names):
        raise _removed(folder / min(gone))
    unknown = [name for name in names if not known.get(name)]
    files = {**known, **_digests(folder, unknown)}
    for name in unknown:
        sync(folder / name)
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"run": run, "files": {name: files[name] for name in names}}, indent=1))
    sync(manifest)
    for inner in (path for path in folder.rglob("*") if path.is_dir()):
        sync(inner)
    sync(folder)
    return {name: (folder / name).stat().st_size for name in [*names, MANIFEST]}


def _prune(folder: Path, step: int, keep: int) -> None:
    """Of those up to `step`, with what was never completed before them. Later ones stay: a run that was rolled back
    by damage has yet to reach them."""
    found = [one for one in checkpoints_in(folder) if one.step <= step]
    kept = [one.step for one in found if (one.folder / MANIFEST).is_file()][-keep:]
    for old in [one for one in found if kept and one.step < kept[0]]:
        shutil.rmtree(old.folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left)


def checkpoints_in(folder: Path) -> list[Checkpoint]:
    """By their names, oldest first, intact or not."""
    try:
        names = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(Checkpoint(int(match[1]), path) for match, path in names if match)


def newest_sealed(folder: Path) -> Checkpoint | None:
    """The newest one that was completed, as its manifest shows. Not verified: reads no more than that."""
    return next((one for one in reversed(checkpoints_in(folder)) if (one.folder / MANIFEST).is_file()), None)


def _digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """By name, several files at a time."""
    listed = list(names)
    with ThreadPoolExecutor(READERS, "digest") as pool:
        return dict(zip(listed, pool.map(lambda name: digest_of(folder / name), listed), strict=True))


def digest_of(path: Path) -> str:
    """Blake2b-128 in hex. Blocking: a second per gigabyte. Raises `OSError`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
