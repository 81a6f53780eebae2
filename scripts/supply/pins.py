"""The lists of packages in requirements/: NAME.in is kept by people, NAME.txt is written from it, with hashes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "requirements"
LINE = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)")
HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass(frozen=True)
class Pin:
    """A package in one version, and the digests of the files that may be installed as it."""

    name: str  # canonical: lower case, words joined by "-"
    version: str
    hashes: tuple[str, ...] = ()  # "sha256:…", sorted

    @property
    def local(self) -> bool:
        """Whether the version is a build of its own, such as 2.13.0+cpu, which PyPI does not have."""
        return "+" in self.version

    def __str__(self) -> str:
        return " \\\n    ".join([f"{self.name}=={self.version}", *(f"--hash={digest}" for digest in self.hashes)])


def canonical(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(file: Path) -> dict[str, Pin]:
    """Canonical name -> pin. Raises `ValueError` for a line that pins nothing."""
    return parse(file.read_text(), str(file))


def parse(text: str, source: str) -> dict[str, Pin]:
    """As `read`; `source` is what an error names."""
    found: dict[str, Pin] = {}
    for line in filter(None, text.replace("\\\n", " ").splitlines()):
        if line.startswith("#"):
            continue
        match = LINE.match(line)
        if match is None:
            raise ValueError(f"{source}: {line.strip()[:80]!r} is not NAME==VERSION")
        name = canonical(match["name"])
        if name in found:
            raise ValueError(f"{source}: {name} is there twice")
        found[name] = Pin(name, match["version"], tuple(sorted(set(HASH.findall(line)))))
    return found


def join(pin: Pin, other: Pin | None) -> Pin:
    """The pin with the other's digests too, if that is the same version. A published file does not change."""
    if other is None or other.version != pin.version:
        return pin
    return replace(pin, hashes=tuple(sorted({*pin.hashes, *other.hashes})))


def page(head: str, pins: dict[str, Pin]) -> str:
    """The text of a file: a comment, and the pins by name."""
    return f"# {head}\n" + "".join(f"{pins[name]}\n" for name in sorted(pins))
