"""A folder on shared storage: a mounted folder, or anything that fsspec opens by its URL (s3, gs, hf, memory, …).

Invariant: a name has its old content or the new, never a part. Mounted folders get that by another name and a rename,
object stores have it. Everything here blocks, and raises `StorageError` with the URL and the storage's own words.
Does not know what is stored.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rhymed import atomic
from rhymed.errors import ConfigError, StorageError
from rhymed.run.redact import redacted

LOCAL = "file"
WORDS = 300  # characters of a storage's error


class Place:
    """`root`: of the file system, without the protocol. `shown`: for people."""

    def __init__(self, files: Any, root: str, shown: str) -> None:
        self._files, self._root, self.shown = files, root.rstrip("/"), shown.rstrip("/")
        protocols = (files.protocol,) if isinstance(files.protocol, str) else files.protocol
        self._local = Path(self._root) if LOCAL in protocols else None

    def __str__(self) -> str:
        return self.shown

    @property
    def url(self) -> str:
        """For `rhymed run --resume`."""
        return f"{LOCAL}://{self._local}" if self._local is not None else self.shown

    def child(self, name: str) -> Place:
        return Place(self._files, f"{self._root}/{name}", f"{self.shown}/{name}")

    def read(self, name: str) -> bytes | None:
        """None: there is no such file."""
        with self._explained(name):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        with self._explained(name):
            if self._local is None:
                self._files.pipe_file(self._path(name), content)
                return
            target = self._local / name
            atomic.make_folder(target.parent)
            atomic.write(target, content, synced=True)

    def upload(self, file: Path, name: str) -> None:
        """Raises `FileNotFoundError` where `file` is gone."""
        if not file.exists():
            raise FileNotFoundError(file)
        with self._explained(name):
            if self._local is None:
                self._files.put_file(str(file), self._path(name))
                return
            target = self._local / name
            atomic.make_folder(target.parent)
            with atomic.new_file(target) as part:
                shutil.copyfile(file, part)
                atomic.sync(part)
            atomic.sync(target.parent)

    def download(self, name: str, file: Path) -> None:
        """Durable. Raises `StorageError` where there is no such file."""
        with self._explained(name):
            file.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(self._path(name), str(file))
            atomic.sync(file)

    def bytes_of(self, name: str) -> int | None:
        """None: there is no such file."""
        with self._explained(name):
            self._files.invalidate_cache()
            try:
                return int(self._files.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def names(self) -> list[str]:
        """Of the files and folders in here, sorted. Empty: there is no such folder."""
        with self._explained(""):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._root, detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return []
            names = {str(path).rstrip("/").rpartition("/")[2] for path in found}
            return sorted(name for name in names - {""} if not name.startswith("."))

    def remove(self, name: str) -> None:
        """A file. Nothing if it is gone."""
        with self._explained(name), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def remove_folder(self, name: str) -> None:
        with self._explained(name), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Each storage has errors of its own, of any type."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            where = f"{self.shown}/{name}".rstrip("/")
            raise StorageError(f"{where}: {type(error).__name__}: {redacted(why)[:WORDS]}") from error


def is_url(text: str) -> bool:
    return "://" in text


def open_place(url: str) -> Place:
    """Raises `ConfigError` where no package can open it, or a mounted folder is not there."""
    shown = redacted(url)
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ConfigError(f'run.remote = {shown!r} needs fsspec: pip install "rhymed[remote]"') from None
    try:
        files, root = url_to_fs(url)
    except ImportError as error:
        raise ConfigError(f"run.remote = {shown!r}: {str(error).rstrip('.')}, in this environment") from None
    except Exception as error:  # each storage has errors of its own, e.g. of credentials
        raise ConfigError(f"run.remote = {shown!r} cannot be opened: {redacted(str(error))[:WORDS]}") from None
    place = Place(files, str(root), shown)
    if place._local is not None and not place._local.is_dir():
        raise ConfigError(f"run.remote: {place._local} is no folder: is it mounted? If it is new, make it first")
    return place


def place_at(url: str) -> Place:
    """Of the copy of one run. Raises `ConfigError`."""
    remote, _, name = url.rstrip("/").rpartition("/")
    if not name or remote.endswith(":/"):
        raise ConfigError(f"{url}: name the folder of one run, e.g. {url.rstrip('/')}/runs/quickstart")
    return open_place(remote).child(name)
