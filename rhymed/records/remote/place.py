"""A folder on shared storage: a mounted folder, or anything that fsspec opens by its URL (s3, gs, hf, memory, …).

Invariant: a name has its old content or the new, never a part. Mounted folders get that by another name and a rename,
object stores have it. Everything here blocks, and raises `StorageError` with the URL and the storage's own words.
Does not know what is stored.
"""

from __future__ import annotations

import contextlib
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from rhymed.core import atomic
from rhymed.core.errors import ConfigError, StorageError
from rhymed.core.secret import redacted

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

    def write(self, name: str, content: bytes, mode: int | None = None) -> None:
        """`mode`: of the file, on a mounted folder; None: by the umask."""
        with self._explained(name):
            if self._local is None:
                self._files.pipe_file(self._path(name), content)
                return
            target = self._local / name
            atomic.make_folder(target.parent)
            atomic.write(target, content, mode=mode, synced=True)

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
            with atomic.new_file(target, stat.S_IMODE(file.stat().st_mode)) as part:
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


# What a run's copy consists of, and where: names on shared storage, and the manifests of backups.
#
#     URL/RUN/lease.json                     which head writes here
#     URL/RUN/checkpoints/step-000010-…/     a checkpoint's files; it counts when manifest.json is there, written last
#     URL/RUN/backups/000003.json            a backup: the run's files as lists of chunks
#     URL/RUN/chunks/ab/ab12…                their content, named by its digest
#     URL/RUN/report.html                    when the run has ended
#
# Pure.

LEASE = "lease.json"
CHECKPOINTS, BACKUPS, CHUNKS = "checkpoints", "backups", "chunks"
PUBLISHED = ("report.html", "metrics.jsonl")  # files of the run's folder for people, when it ends
RUN_FILES = ("config.json", "id.json", "model-runner", "metrics.jsonl", "timeline.jsonl", "starts.jsonl")
STORE_FILE = "store/data.mdb"
"""Files of a backup."""


def is_kept(name: str) -> bool:
    """Whether a backup may have a file of this name."""
    return name in RUN_FILES or name == STORE_FILE


class File(msgspec.Struct, frozen=True):
    bytes: int
    chunks: list[str]  # digests


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """`end` and `forgotten` count training steps, as in `rhymed_store.position`. A run continues from this backup
    with a checkpoint of at least `forgotten` steps, whose samples are all here: the store may have only some of the
    steps after `steps`."""

    number: int
    ids: list[str]  # of the run, the newest last
    steps: int  # trained, as far as its metrics show
    forgotten: int
    end: int
    at: float  # seconds since 1970
    files: dict[str, File]

    @property
    def name(self) -> str:
        return f"{self.number:06d}.json"

    @property
    def chunks(self) -> set[str]:
        return {digest for file in self.files.values() for digest in file.chunks}

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())


def fitting(backup: Backup, steps: Sequence[int]) -> int | None:
    """With which checkpoint the run continues from a backup: its steps; 0: none is needed; None: none fits."""
    usable = [step for step in steps if backup.forgotten <= step <= min(backup.steps, backup.end)]
    return max(usable, default=None if backup.forgotten else 0)


def needed(backups: Sequence[Backup], steps: Sequence[int], keep: int) -> set[int]:
    """Steps of the checkpoints to keep: the newest ones, and those that a backup needs."""
    pairs = {fitting(backup, steps) for backup in backups}
    return {*sorted(steps)[-keep:], *(step for step in pairs if step)}


def chunk_name(digest: str) -> str:
    return f"{digest[:2]}/{digest}"
