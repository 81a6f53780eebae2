"""An environment on the disk, compared with what pip recorded when it installed it (RECORD), and with a list."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from scripts.supply.pins import Pin, canonical


def packages(site: Path) -> dict[str, Distribution]:
    """Canonical name -> what is installed in the folder."""
    return {canonical(found.metadata["Name"]): found for found in distributions(path=[str(site)])}


def other_versions(there: dict[str, Distribution], wanted: dict[str, Pin]) -> Iterator[str]:
    """A sentence for every package of the list that is missing or has another version."""
    for name, pin in wanted.items():
        version = there[name].version if name in there else None
        if version != pin.version:
            yield f"{name}: {version or 'not installed'}; the list has {pin.version}"


def changed_files(site: Path, there: dict[str, Distribution]) -> Iterator[str]:
    """A sentence for every file that is not as it was installed, and for every .pth file that no package brought.

    Python runs the lines of .pth files at each start. Compiled files (.pyc) have no digest in RECORD.
    """
    recorded: set[str] = set()
    for name, package in sorted(there.items()):
        record = package.read_text("RECORD")
        if record is None:
            yield f"{name}: has no RECORD, so its files cannot be compared"
            continue
        for path, digest, _ in csv.reader(record.splitlines()):
            recorded.add(path)
            if digest and (reason := _changed(Path(package.locate_file(path)), digest)):
                yield f"{name}: {path} {reason}"
    yield from (f"{file.name}: of no package" for file in sorted(site.glob("*.pth")) if file.name not in recorded)


def count(there: dict[str, Distribution]) -> int:
    """Files that `changed_files` compares."""
    records = (package.read_text("RECORD") or "" for package in there.values())
    return sum(bool(digest) for record in records for _, digest, _ in csv.reader(record.splitlines()))


def _changed(file: Path, digest: str) -> str:
    """Why the file is not the recorded one; empty if it is. `digest`: ALGORITHM=BASE64, without padding (PEP 376)."""
    algorithm, _, expected = digest.partition("=")
    try:
        with file.open("rb") as content:
            actual = hashlib.file_digest(content, algorithm).digest()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    same = base64.urlsafe_b64encode(actual).rstrip(b"=").decode() == expected
    return "" if same else "was changed after its installation"
