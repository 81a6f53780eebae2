"""Writes what was rendered to a folder, with the keys that it needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rhymed import atomic
from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.placement.plan import Seat
from rhymed.wire.keys import PUBLIC, ROLES, make_keys, read_public, read_secret, secret_name

MOUNTS = Path("/proc/self/mounts")
OF_ONE = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "f2fs")
"""File systems that one machine mounts."""


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Files that are there already with other contents are kept without `force`. Raises `ConfigError`."""
    changed = [name for name, text in files.items() if _differs(folder / name, text)]
    if changed and not force:
        names = ", ".join(str(folder / name) for name in changed)
        raise ConfigError(f"not overwritten: {names}; name another folder by --out, or add --force")
    for name, text in files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            atomic.write(folder / name, text)
        except OSError as error:
            raise ConfigError(f"{folder / name} cannot be written: {error.strerror or error}") from None
    return [folder / name for name in files]


def _differs(file: Path, text: str) -> bool:
    try:
        return file.read_text() != text
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True


def all_keys(config: Config, folder: Path, seats: Iterable[Seat]) -> Path:
    """The folder with every role's keys: the configured one, or one that is made here. Raises `ConfigError`."""
    keys = Path(config.net.keys).expanduser().resolve() if config.net.keys else folder / "keys"
    if not config.net.keys:
        try:
            make_keys(keys, ROLES)
        except OSError as error:
            raise ConfigError(f"{keys}: {error.strerror or error}") from None
    public = set(read_public(keys).values())
    for seat in seats:
        read_secret(keys, seat.role)
        if seat.role not in public:
            raise ConfigError(f"{keys / PUBLIC} has no key of {seat.role}: `rhymed keygen {keys}` makes one")
    return keys


def split_keys(keys: Path, folder: Path, seats: Iterable[Seat]) -> None:
    """A folder for each role in `folder`, with links to its own two files, so that a changed key is changed there."""
    for seat in seats:
        own = folder / seat.role
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (PUBLIC, secret_name(seat.role)):
            (own / name).unlink(missing_ok=True)
            (own / name).symlink_to(keys / name)


def unshared(paths: Iterable[Path]) -> list[str]:
    """A warning for each folder that other machines do not see, as far as its file system shows."""
    try:
        mounts = [line.split()[1:3] for line in MOUNTS.read_text().splitlines()]
    except OSError:
        return []
    found = []
    for path in dict.fromkeys(paths):
        kind = _file_system(path.resolve(), mounts)
        if kind in OF_ONE:
            found.append(
                f"{path} is on {kind}, a file system of this machine, so jobs on other nodes may not find it:"
                " choose a folder on shared storage, with the same path on all nodes"
            )
    return found


def _file_system(path: Path, mounts: Sequence[Sequence[str]]) -> str:
    """Of the longest mount point above the path."""
    above = [(len(point), kind) for point, kind in mounts if path.is_relative_to(point.replace("\\040", " "))]
    return max(above, default=(0, ""))[1]


def copy_keys(keys: Path, folder: Path) -> None:
    """All keys, for tools that read files below their own folder only. Raises `ConfigError`."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in (PUBLIC, *map(secret_name, ROLES)):
        if (keys / name).exists() and keys != folder:
            atomic.write(folder / name, (keys / name).read_text(), mode=0o644 if name == PUBLIC else 0o600)


def make_token(file: Path) -> None:
    """Of the dashboard; one that is there stays."""
    if not file.exists():
        atomic.write(file, secrets.token_urlsafe(32), mode=0o600)


def named_files(config: Config) -> Iterator[str]:
    """`section.key = 'path'` of what is a file or folder of this machine: rows, models, reward functions."""
    for section in ("model", "data", "environment", "reward", "eval", "trainer"):
        for key, value in _texts(section, getattr(config, section).model_dump()):
            path = value.partition(":")[0]
            if ("/" in path or "." in path) and Path(path).expanduser().exists():
                yield f"{key} = {value!r}"


def _texts(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(f"{key}.{name}", inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(key, inner)
