"""Keys of a run's processes: one pair a role, in one folder, `net.keys`.

The folder holds `public`, a line `role key` for every key that counts, and `ROLE.secret`, which only its owner may
read. A process needs `public` and its own role's secret, nothing else. A role may have several public keys at a time,
the newest last: so keys are changed while a run goes on. Knows no sockets; secrets are read when they are used, and
stand in no attribute, no message and no log.
"""

from __future__ import annotations

import logging
import os
import stat
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from rhymed import atomic
from rhymed.errors import ConfigError

log = logging.getLogger(__name__)

KeyRole: TypeAlias = Literal["broker", "store", "trainer", "rollout", "reward", "viewer", "operator"]
ROLES: tuple[KeyRole, ...] = get_args(KeyRole)
PUBLIC = "public"
KEY_LENGTH = 40  # characters: 32 bytes in Z85
LOOK_S = 1.0  # a change of the public keys counts after so long
HEAD = "# Public keys of a run: role and key, a role's newest last. Every machine of the run has this file.\n"


@dataclass(frozen=True)
class Keyring:
    """What one process has of a run's keys. Without a folder: none, and open addresses need `insecure`."""

    role: KeyRole = "viewer"
    folder: Path | None = None
    insecure: bool = False
    server: KeyRole = "broker"  # whose socket a client means; no other key is accepted from there

    def to(self, server: KeyRole) -> Keyring:
        """For a client of that role's socket."""
        return replace(self, server=server)

    def secret(self) -> bytes:
        """This role's secret key. Raises `ConfigError`."""
        return read_secret(self._folder(), self.role)

    def own_public(self) -> bytes:
        """The public half of our secret. Raises `ConfigError` when it is not among those that count."""
        mine = public_of(self.secret())
        if read_public(self._folder()).get(mine.decode()) != self.role:
            raise ConfigError(
                f"{self._folder() / secret_name(self.role)} does not belong to a key of {self._folder() / PUBLIC}:"
                " copy both from the folder where the keys were made"
            )
        return mine

    def server_keys(self) -> list[bytes]:
        """Public keys that the server may have, newest first; never empty. Raises `ConfigError`."""
        found = [key.encode() for key, role in read_public(self._folder()).items() if role == self.server]
        if not found:
            raise ConfigError(
                f"{self._folder() / PUBLIC} has no key of role {self.server}: `rhymed keygen` makes one"
            )
        return found[::-1]

    def known(self) -> Known:
        return Known(self._folder())

    def _folder(self) -> Path:
        assert self.folder is not None, "asked for keys where there are none"
        return self.folder


OPEN = Keyring()
"""No keys: ipc and loopback only."""


class Known:
    """Whose key is it? Follows the file of public keys; one that cannot be read changes nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._roles = read_public(folder)
        self._stamp = self._look()
        self._looked = time.monotonic()

    def role(self, key: str) -> KeyRole | None:
        """`None`: a stranger's, or one that does not count any more. `key` in Z85."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            self._refresh()
        return self._roles.get(key)

    def _refresh(self) -> None:
        stamp = self._look()
        if stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self._roles = read_public(self._folder)
            log.info("public keys read again: %d", len(self._roles))
        except ConfigError as error:
            log.warning("the public keys stay as they were: %s", error)

    def _look(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._folder / PUBLIC)
        except OSError:
            return (0, 0, 0)
        return (found.st_mtime_ns, found.st_ino, found.st_size)


def secret_name(role: KeyRole) -> str:
    return f"{role}.secret"


def public_of(secret: bytes) -> bytes:
    """The public key (Z85) of a secret one (Z85)."""
    import zmq

    return bytes(zmq.curve_public(secret))


def read_public(folder: Path) -> dict[str, KeyRole]:
    """key (Z85) -> role, a role's newest key last. Raises `ConfigError`."""
    file = folder / PUBLIC
    text = _read(file, stat.S_IWGRP | stat.S_IWOTH, "can be changed by others: chmod go-w it")
    found: dict[str, KeyRole] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        role, _, key = line.strip().partition(" ")
        key = key.strip()
        if role not in ROLES or not _is_key(key):
            raise ConfigError(f"{file}, line {number}: not a role ({', '.join(ROLES)}) and a key")
        if found.setdefault(key, role) != role:
            raise ConfigError(f"{file}, line {number}: the key of {role} is that of {found[key]}, too")
    return found


def read_secret(folder: Path, role: KeyRole) -> bytes:
    """Raises `ConfigError`, which never shows the file's content."""
    file = folder / secret_name(role)
    key = _read(
        file, stat.S_IRWXG | stat.S_IRWXO, "can be read by others: chmod 600 it, better make a new one"
    ).strip()
    if not _is_key(key):
        raise ConfigError(f"{file} holds no secret key: copy it again, or make a new one with `rhymed keygen`")
    return key.encode()


def make_keys(folder: Path, roles: Iterable[KeyRole], rotate: Iterable[KeyRole] = ()) -> list[KeyRole]:
    """Make the pairs of `roles` that are missing, and new ones for `rotate`; the roles that got one.

    Old public keys go on counting until `retire`. A secret is overwritten only by `rotate`.
    """
    import zmq

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    public = read_public(folder) if (folder / PUBLIC).exists() else {}
    rotated = set(rotate)
    made = [role for role in ROLES if role in rotated or (role in set(roles) and role not in public.values())]
    for role in made:
        if role not in rotated and (folder / secret_name(role)).exists():
            raise ConfigError(
                f"{folder / secret_name(role)} is there, but {folder / PUBLIC} has no key of {role}: bring the file"
                f" back, or make a new pair with --rotate {role}"
            )
    secrets: dict[KeyRole, bytes] = {}
    for role in made:
        key, secrets[role] = zmq.curve_keypair()
        public[key.decode()] = role
    if made:  # the public keys first: a secret whose public half nobody knows opens nothing
        _write_public(folder, public)
    for role, secret in secrets.items():
        atomic.write(folder / secret_name(role), secret.decode() + "\n", mode=0o600, synced=True)
    return made


def retire(folder: Path, roles: Iterable[KeyRole]) -> int:
    """Only the newest public key of these roles goes on counting; how many were taken out."""
    public, retired = read_public(folder), set(roles)
    newest = {role: key for key, role in public.items()}
    kept = {key: role for key, role in public.items() if role not in retired or newest[role] == key}
    if len(kept) < len(public):
        _write_public(folder, kept)
    return len(public) - len(kept)


def _is_key(text: str) -> bool:
    from zmq.utils import z85

    try:
        return len(text) == KEY_LENGTH and len(z85.decode(text.encode())) == 32
    except (ValueError, KeyError, struct.error):
        return False


def _read(file: Path, forbidden: int, why: str) -> str:
    try:
        with file.open() as stream:
            if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & forbidden:
                raise ConfigError(f"{file} {why}")
            return stream.read()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"{file}: {reason}; `rhymed keygen {file.parent}` makes a run's keys") from None


def _write_public(folder: Path, keys: dict[str, KeyRole]) -> None:
    lines = [f"{role} {key}\n" for role in ROLES for key, owner in keys.items() if owner == role]
    atomic.write(folder / PUBLIC, HEAD + "".join(lines), mode=0o644, synced=True)
