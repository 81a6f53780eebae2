"""The file `sweep.json` of a sweep's folder: which runs it has, with which settings. What became of them is in their
folders."""

from __future__ import annotations

from pathlib import Path

import msgspec

from rhymed import atomic
from rhymed.errors import ConfigError

FILE = "sweep.json"


class Planned(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str  # of the run, and of its folder
    settings: dict[str, str]  # those that differ between the runs, as they were typed
    refused: str = ""  # why its last start was refused


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    config: str  # the file, as it was typed
    fixed: list[str] = []  # key=value, for all runs
    runs: list[Planned]


def read(folder: Path) -> Manifest | None:
    """None: there is none. Raises `ConfigError` if it is damaged."""
    try:
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{folder / FILE} cannot be read: {error}; its runs are whole: move the file away, and `rhymed sweep`"
            " with the same arguments writes it again"
        ) from None


def write(folder: Path, manifest: Manifest) -> None:
    """Raises `OSError`."""
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    atomic.write(folder / FILE, content + b"\n", synced=True)
