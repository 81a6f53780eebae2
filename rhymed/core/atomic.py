"""Files and folders that appear whole or not at all: written under another name next to the target, then renamed.

A reader sees the old content or the new, never a part. Unless it is synced, new content may still be lost in a power
cut. The temporary name is unique, so several processes may write one target; the last one to finish wins.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from rhymed.core.errors import ConfigError


def write(target: Path, content: str | bytes, *, mode: int | None = None, synced: bool = False) -> None:
    """`mode` holds from the first moment on; None: as the umask has it. `synced`: content and name are durable when
    this returns. Raises `OSError`."""
    with new_file(target, mode) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        if synced:
            sync(part)
    if synced:
        sync(target.parent)


def write_all(files: Mapping[Path, str], taken: Iterable[Path], elsewhere: str, *, force: bool) -> list[Path]:
    """Texts for a user, who names `elsewhere` if files of theirs are `taken`; with `force` these are replaced. Raises
    `ConfigError`."""
    if not force and (kept := ", ".join(map(str, taken))):
        raise ConfigError(f"not overwritten: {kept}; name {elsewhere}, or add --force")
    for file, text in files.items():
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write(file, text)
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from None
    return list(files)


@contextlib.contextmanager
def new_file(target: Path, mode: int | None = None) -> Iterator[Path]:
    """An empty file that becomes `target` at the end of the block, or is removed when the block raises."""
    part = _temporary(target)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode))
    try:
        if mode is not None:
            part.chmod(mode)  # whatever the umask is
        yield part
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` at the end of the block, or is removed when the block raises. Raises
    `OSError` if `target` is not an empty folder by then."""
    part = _temporary(target)
    part.mkdir(parents=True)
    try:
        yield part
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def open_up(folder: Path) -> None:
    """Give its files the permissions that the folder has from the umask. safetensors writes files that only their
    owner may read, also where those next to them are for everybody."""
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(mode)


def sync(path: Path) -> None:
    """Make a file, or a folder's list of names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, durable. Nothing if it is there."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync(made.parent)


def sync_folder(folder: Path) -> None:
    """Make a folder durable: its files, then their names."""
    for path in folder.iterdir():
        if path.is_file():
            sync(path)
    sync(folder)


def is_named(descriptor: int, path: Path) -> bool:
    """Whether the path still leads to this open file or folder. A few microseconds."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:  # it is gone, or its disk
        return False


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")
