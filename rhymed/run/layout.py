"""Paths and addresses of a run, derived from its configuration, so that all processes agree on them."""

from __future__ import annotations

import hashlib
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.wire.keys import Keyring, KeyRole

ADDRESS_FILE = "dashboard.json"  # in the run's folder: the address of its dashboard
PORTS_APART = 10  # of a run's stores: store-1 listens ten ports above net.store, store-2 twenty


def store_name(number: int) -> str:
    """Of one of a run's stores: its process, its folder and its log."""
    return f"store-{number}" if number else "store"


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
    shards: int = 1  # stores that share the prompts
    shard: int = 0  # the one that `store` and `database` are of

    @property
    def stores(self) -> list[RunLayout]:
        """The layout as each of the run's stores sees it, the first one first."""
        first = self.store
        return [replace(self, store=_beside(first, number), shard=number) for number in range(self.shards)]

    def listens(self, address: str) -> str:
        """The address that a server binds: ours, or `bind` if our TCP addresses name a host that cannot be bound."""
        if not self.bind or not address.startswith("tcp://"):
            return address
        host = f"[{self.bind}]" if ":" in self.bind else self.bind
        return f"tcp://{host}:{address.rpartition(':')[2]}"

    @property
    def database(self) -> Path:
        return self.folder / store_name(self.shard)

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

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


def _beside(address: str, number: int) -> str:
    """The address of another store of a run, from the first one's. Raises `ConfigError`."""
    if not number:
        return address
    head, _, port = address.rpartition(":")
    if not address.startswith("tcp://"):
        return f"{address}-{number}"
    if not port.isdecimal() or int(port) + PORTS_APART * number > 65535:
        raise ConfigError(
            f"net.store = {address}: the next stores listen {PORTS_APART} ports above each other, and there is no"
            f" port for {store_name(number)}: choose a lower one"
        )
    return f"{head}:{int(port) + PORTS_APART * number}"


def _check_stores(layout: RunLayout) -> RunLayout:
    """Raises `ConfigError` if one of several stores has the address of another server."""
    for one in layout.stores[1:]:
        if one.store in (layout.broker, layout.weights):
            raise ConfigError(
                f"{store_name(one.shard)} would listen at {one.store}, as another server does: stores listen"
                f" {PORTS_APART} ports above each other, so choose another net.store"
            )
    return layout


def layout_of(config: Config) -> RunLayout:
    """Empty addresses become ipc sockets in a folder that is named after the run folder's path. They are not in the
    run folder itself because a socket's path may have at most 107 characters. Raises `ConfigError`."""
    folder = _absolute("run.folder", config.run.folder) / config.run.name
    sockets = Path(tempfile.gettempdir()) / f"rhymed-{hashlib.blake2b(bytes(folder), digest_size=6).hexdigest()}"

    def address(configured: str, name: str) -> str:
        return configured or f"ipc://{sockets / name}"

    layout = RunLayout(
        folder=folder,
        broker=address(config.net.broker, "broker"),
        store=address(config.net.store, "store"),
        weights=address(config.net.weights, "weights"),
        sockets=sockets,
        keyfolder=_absolute("net.keys", config.net.keys) if config.net.keys else None,
        insecure=config.net.insecure,
        bind=config.net.bind,
        shards=config.store.shards,
    )
    return _check_stores(layout)
