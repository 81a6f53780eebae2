"""What a trainer says of a broadcast: a small file next to the version's file. Only engines on its machine see it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rhymed import atomic
from rhymed.errors import WireError

SUFFIX = ".broadcast"


class Notice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: str  # file of the keys by which members meet
    generation: int  # of the group: a set of members that stands still
    turn: int  # of the trainer: a version may be published twice
    members: int  # engines' ranks; the trainer is one more
    size: int  # bytes
    device: str  # kind of device on which all members compute

    @property
    def ready(self) -> str:
        """Key: number of members that wait for this turn."""
        return f"{self.generation}/{self.turn}/ready"

    @property
    def decision(self) -> str:
        """Key: `GO`, or why not."""
        return f"{self.generation}/{self.turn}/decision"

    @property
    def joined(self) -> str:
        """Key: number of processes that have asked to be members."""
        return f"{self.generation}/joined"

    @property
    def broken(self) -> str:
        """Key: set by a member that has left."""
        return f"{self.generation}/broken"


GO = b"go"


def write(path: Path, notice: Notice) -> None:
    """`path`: of the version's file."""
    with atomic.new_file(path.with_suffix(SUFFIX), 0o600) as part:
        part.write_bytes(msgspec.msgpack.encode(notice))


def read(path: Path) -> Notice:
    """Raises `WireError`."""
    try:
        return msgspec.msgpack.decode(path.with_suffix(SUFFIX).read_bytes(), type=Notice)
    except OSError:
        raise WireError("the trainer broadcasts this version no more, or not to this machine") from None
    except msgspec.MsgspecError as error:
        raise WireError(f"{path.with_suffix(SUFFIX)} is no notice of a broadcast: {error}") from error


def remove(path: Path) -> None:
    path.with_suffix(SUFFIX).unlink(missing_ok=True)
