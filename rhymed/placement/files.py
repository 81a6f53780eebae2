"""Writes the scripts of Slurm to a folder, with the keys that their jobs need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rhymed.core.atomic import write_all
from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.text import quoted
from rhymed.core.wire.keys import PUBLIC, ROLES, make_keys, read_public, read_secret, secret_name
from rhymed.placement.plan import Seat


def write(folder: Path, files: Mapping[str, str], *, force: bool) -> list[Path]:
    """Files that are there already with other contents are kept without `force`. Raises `ConfigError`."""
    texts = {folder / name: text for name, text in files.items()}
    changed = [file for file, text in texts.items() if _differs(file, text)]
    return write_all(texts, changed, "another folder by --out", force=force)


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
            raise ConfigError(f"{keys / PUBLIC} has no key of {seat.role}: `rhymed keygen {quoted(keys)}` makes one")
    return keys


def split_keys(keys: Path, folder: Path, seats: Iterable[Seat]) -> None:
    """A folder for each role in `folder`, with links to its own two files."""
    for seat in seats:
        own = folder / seat.role
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (PUBLIC, secret_name(seat.role)):
            (own / name).unlink(missing_ok=True)
            (own / name).symlink_to(keys / name)
