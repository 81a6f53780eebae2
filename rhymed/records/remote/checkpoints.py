"""Checkpoints on shared storage. Each has a folder of its own; one counts when its manifest is there, written last.

Blocking. Does not know when one is uploaded, nor by whom.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from rhymed.core import atomic
from rhymed.core.errors import StorageError
from rhymed.core.run import checkpoint
from rhymed.core.run.checkpoint import MANIFEST, UNFINISHED, Checkpoint
from rhymed.records.remote.place import CHECKPOINTS, Place

log = logging.getLogger(__name__)

NAME = re.compile(r"step-(\d{6,})-[0-9a-f]{12}")
STAGED = ".uploading-"  # in the run's folder of checkpoints


class Uploaded(NamedTuple):
    step: int
    name: str  # of its folder


def name_of(local: Checkpoint) -> str:
    """With the digest of the manifest: a step that was trained again, to other weights, gets another folder."""
    manifest = (local.folder / MANIFEST).read_bytes()
    return f"{checkpoint.folder_of(Path(), local.step).name}-{hashlib.blake2b(manifest, digest_size=6).hexdigest()}"


class _Manifest(msgspec.Struct, frozen=True):
    files: dict[str, str]


class Checkpoints:
    def __init__(self, run: Place) -> None:
        self._place = run.child(CHECKPOINTS)

    def uploaded(self) -> list[Uploaded]:
        """The whole ones, oldest first."""
        names = [(found, name) for name in self._place.names() if (found := NAME.fullmatch(name))]
        whole = [(found, name) for found, name in names if self._files(name) is not None]
        return sorted(Uploaded(int(found[1]), name) for found, name in whole)

    def upload(self, local: Checkpoint) -> Uploaded:
        """Raises `FileNotFoundError` where the checkpoint is removed meanwhile, `StorageError`."""
        name = name_of(local)
        files = sorted(path for path in local.folder.rglob("*") if path.is_file() and path.name != MANIFEST)
        for file in [*files, local.folder / MANIFEST]:
            target = f"{name}/{file.relative_to(local.folder)}"
            self._place.upload(file, target)
            written, wanted = self._place.bytes_of(target), file.stat().st_size
            if written != wanted:
                raise StorageError(f"{self._place}/{target} has {written} bytes after {wanted} were written")
        return Uploaded(local.step, name)

    def download(self, found: Uploaded, folder: Path) -> Checkpoint:
        """Into a run's folder of checkpoints. Raises `StorageError` where it is not what was written, `OSError`."""
        target = checkpoint.folder_of(folder, found.step)
        part = folder / f"{UNFINISHED}{target.name}"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        self._place.download(f"{found.name}/{MANIFEST}", part / MANIFEST)
        for name in self._files(found.name) or ():
            if not (part / name).resolve().is_relative_to(part.resolve()):
                raise StorageError(f"{self._place}/{found.name}/{MANIFEST} names {name!r}, a file outside of it")
            self._place.download(f"{found.name}/{name}", part / name)
        if why := checkpoint.damage(part):
            shutil.rmtree(part)
            raise StorageError(f"{self._place}/{found.name} is damaged: {why}")
        atomic.sync(part / MANIFEST)
        atomic.sync(part)
        part.rename(target)
        atomic.sync(folder)
        return Checkpoint(found.step, target)

    def _files(self, name: str) -> Mapping[str, str] | None:
        """Digests by name; None: the manifest is missing, or was not written to its end."""
        try:
            return msgspec.json.decode(self._place.read(f"{name}/{MANIFEST}") or b"", type=_Manifest).files
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def prune(self, keep: Collection[int], newest: str) -> None:
        """Remove those of other steps, what was begun and not finished, and of a step with several all but `newest`.
        A manifest goes first, so that what is left of a folder does not count."""
        whole = {one.name: one.step for one in self.uploaded()}
        again = NAME.fullmatch(newest)
        for name in self._place.names():
            found = NAME.fullmatch(name)
            older = again is not None and found is not None and found[1] == again[1] and name != newest
            if found and (older or whole.get(name) not in keep):
                self._place.remove(f"{name}/{MANIFEST}")
                self._place.remove_folder(name)


def stage(local: Checkpoint) -> Checkpoint:
    """A second name for its files, so that it can be uploaded slowly while the trainer removes old checkpoints.
    Raises `OSError` where it is gone already."""
    staged = local.folder.with_name(f"{STAGED}{local.folder.name}")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        shutil.copytree(local.folder, staged, copy_function=os.link)
    except (OSError, shutil.Error):
        shutil.rmtree(staged, ignore_errors=True)
        return local  # a file system without links
    return Checkpoint(local.step, staged)


def unstage(folder: Path) -> None:
    """Of a run's checkpoints: also what an earlier process has left."""
    for left in folder.glob(f"{STAGED}*"):
        shutil.rmtree(left, ignore_errors=True)
