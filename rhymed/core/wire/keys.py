"""Keys of a run's processes: one pair per role, in one folder, `net.keys`.

The folder holds `public`, one line `role key` per role, and `ROLE.secret`, readable only by its owner. A process
needs `public` and its own role's secret, nothing else. Other keys are those of another folder, with which the run is
resumed. Knows no sockets. Secrets are read when used; no attribute, message or log holds one.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from rhymed.core import atomic
from rhymed.core.errors import ConfigError
from rhymed.core.text import quoted

KeyRole: TypeAlias = Literal["broker", "store", "trainer", "rollout", "environment", "reward", "viewer", "operator"]
ROLES: tuple[KeyRole, ...] = get_args(KeyRole)
PUBLIC = "public"
KEY_LENGTH = 40  # characters: 32 bytes in Z85
HEAD = "# Public keys of a run: role and key. Every machine of the run has this file.\n"


@dataclass(frozen=True)
class Keyring:
    """One process's access to the run's keys. Without a folder there are none, and open addresses need `insecure`."""

    role: KeyRole = "viewer"
    folder: Path | None = None
    insecure: bool = False
    server: KeyRole = "broker"  # role of the server that a client connects to; only its key is accepted

    def to(self, server: KeyRole) -> Keyring:
        """For a client of a server of that role."""
        return replace(self, server=server)

    def secret(self) -> bytes:
        """This role's secret key. Raises `ConfigError`."""
        return read_secret(self._folder(), self.role)

    def own_public(self) -> bytes:
        """The public key of our secret. Raises `ConfigError` if it is another one in `public`."""
        public = public_of(self.secret())
        if read_public(self._folder()).get(public.decode()) != self.role:
            raise ConfigError(
                f"{self._folder() / secret_name(self.role)} does not belong to a key of {self._folder() / PUBLIC}:"
                " copy both from the folder where the keys were made"
            )
        return public

    def server_key(self) -> bytes:
        """The server's public key. Raises `ConfigError`."""
        for key, role in read_public(self._folder()).items():
            if role == self.server:
                return key.encode()
        raise ConfigError(f"{self._folder() / PUBLIC} has no key of role {self.server}: `rhymed keygen` makes one")

    def known(self) -> dict[str, KeyRole]:
        """The role of each public key (Z85). Raises `ConfigError`."""
        return read_public(self._folder())

    def _folder(self) -> Path:
        assert self.folder is not None, "no folder of keys is configured"
        return self.folder


OPEN = Keyring()
"""No keys: only ipc and loopback addresses."""


def secret_name(role: KeyRole) -> str:
    return f"{role}.secret"


def public_of(secret: bytes) -> bytes:
    """The public key (Z85) of a secret one (Z85)."""
    import zmq

    return bytes(zmq.curve_public(secret))


def read_public(folder: Path) -> dict[str, KeyRole]:
    """key (Z85) -> role. Raises `ConfigError`."""
    file = folder / PUBLIC
    text = _read(file, stat.S_IWGRP | stat.S_IWOTH, "can be changed by others: run chmod go-w on it")
    roles: dict[str, KeyRole] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        role, _, key = line.strip().partition(" ")
        key = key.strip()
        if role not in ROLES or not _is_key(key):
            raise ConfigError(f"{file}, line {number}: not a role ({', '.join(ROLES)}) and a key")
        if key in roles or role in roles.values():
            raise ConfigError(f"{file}, line {number}: {role} or this key has a line already: each role has one key")
        roles[key] = role
    return roles


def read_secret(folder: Path, role: KeyRole) -> bytes:
    """Raises `ConfigError`, which never contains the file's content."""
    file = folder / secret_name(role)
    key = _read(
        file, stat.S_IRWXG | stat.S_IRWXO, "can be read by others: run chmod 600 on it, or better make a new one"
    ).strip()
    if not _is_key(key):
        raise ConfigError(f"{file} holds no secret key: copy it again, or make a new one with `rhymed keygen`")
    return key.encode()


def make_keys(folder: Path, roles: Iterable[KeyRole]) -> list[KeyRole]:
    """Make the missing pairs of `roles`; returns the roles with a new pair. Overwrites no secret."""
    import zmq

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    public = read_public(folder) if (folder / PUBLIC).exists() else {}
    new = [role for role in ROLES if role in set(roles) and role not in public.values()]
    for role in new:
        if (folder / secret_name(role)).exists():
            raise ConfigError(
                f"{folder / secret_name(role)} exists, but {folder / PUBLIC} has no key of {role}: restore the file,"
                " or make a new set of keys in another folder"
            )
    secrets: dict[KeyRole, bytes] = {}
    for role in new:
        key, secrets[role] = zmq.curve_keypair()
        public[key.decode()] = role
    if new:  # public keys first: a secret whose public key is not listed is refused
        lines = sorted(f"{role} {key}\n" for key, role in public.items())
        atomic.write(folder / PUBLIC, HEAD + "".join(lines), mode=0o644, synced=True)
    for role, secret in secrets.items():
        atomic.write(folder / secret_name(role), secret.decode() + "\n", mode=0o600, synced=True)
    return new


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
        raise ConfigError(f"{file}: {reason}; {_cure(file)}") from None


def _cure(file: Path) -> str:
    """Of a file that cannot be read. Where others of the run's keys are there, this one was lost."""
    if file.name == PUBLIC and any(file.parent.glob("*.secret")):
        return "copy it from another machine of the run, or from the folder where the keys were made"
    if file.name != PUBLIC and (file.parent / PUBLIC).exists():
        return "copy it from the folder where the keys were made, or make a new set of keys in another folder"
    return f"`rhymed keygen {quoted(file.parent)}` makes a run's keys"
