"""Paths and addresses of a run, derived from its configuration, so that all processes agree on them; its random ids,
and the names of files in its folder."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rhymed.core import private
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.wire.addresses import bracketed
from rhymed.core.wire.keys import Keyring, KeyRole

METRICS = "metrics.jsonl"  # in the run's folder
INPUTS = "inputs"  # in the run's folder: copies of the user's files, and what a program passed as objects
ADDRESS_FILE = "dashboard.json"  # in the run's folder: the address of its dashboard
ID = "id.json"  # in the run's folder; holds the run's random ids


@dataclass(frozen=True)
class RunLayout:
    folder: Path  # absolute
    broker: str
    store: str
    weights: str
    sockets: Path  # folder of the ipc sockets whose address was not configured
    keyfolder: Path | None = None  # of the keys of TCP links
    insecure: bool = False
    bind: str = ""  # host part of what our servers listen on; empty: that of the address

    def listens(self, address: str) -> str:
        """The address that a server binds: ours, or `bind` if our TCP addresses name a host that cannot be bound."""
        if not self.bind or not address.startswith("tcp://"):
            return address
        return f"tcp://{bracketed(self.bind)}:{address.rpartition(':')[2]}"

    @property
    def database(self) -> Path:
        return self.folder / "store"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.folder / METRICS

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    def keys(self, role: KeyRole) -> Keyring:
        return Keyring(role, self.keyfolder, self.insecure)

    def log(self, process: str) -> Path:
        return self.folder / "logs" / f"{process}.log"


def _absolute(key: str, path: str) -> Path:
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: no such user's home, a circle of links
        raise ConfigError(f"{key} = {path!r}: {error}") from None


def ids_of(folder: Path) -> list[str]:
    """The run's random ids, the newest last. Its store carries the newest, its checkpoints any of them. Empty: the
    file is missing. Raises `ConfigError`."""
    file = folder / ID
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[str])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): remove it, and it is written again") from None


def _sockets(folder: Path) -> Path:
    """Named after the run folder's path, so that all its processes find it. If another user has made that folder,
    the run's first id, which only this user can read, is part of the name."""
    plain, secret = (_in_temporary(bytes(folder) + end) for end in (b"", _first_id(folder)))
    if secret.exists() and not private.trouble(secret):
        return secret
    return secret if private.trouble(plain) else plain


def _first_id(folder: Path) -> bytes:
    try:
        return "".join(ids_of(folder)[:1]).encode()
    except ConfigError:
        return b""  # code that needs the ids reports it


def _in_temporary(name: bytes) -> Path:
    return Path(tempfile.gettempdir()) / f"rhymed-{hashlib.blake2b(name, digest_size=6).hexdigest()}"


def paths_of(folder: Path) -> RunLayout:
    """Paths alone: they follow from the folder, also after it was moved."""
    return RunLayout(folder=folder, broker="", store="", weights="", sockets=folder)


def layout_of(config: Config) -> RunLayout:
    """Empty addresses become ipc sockets in a folder of their own. They are not in the run folder itself because a
    socket's path may have at most 107 characters. Raises `ConfigError`."""
    folder = _absolute("run.folder", config.run.folder) / config.run.name
    sockets = _sockets(folder)

    def address(configured: str, name: str) -> str:
        return configured or f"ipc://{sockets / name}"

    return RunLayout(
        folder=folder,
        broker=address(config.net.broker, "broker"),
        store=address(config.net.store, "store"),
        weights=address(config.net.weights, "weights"),
        sockets=sockets,
        keyfolder=_absolute("net.keys", config.net.keys) if config.net.keys else None,
        insecure=config.net.insecure,
        bind=config.net.bind,
    )
