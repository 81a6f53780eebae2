"""Writes requirements/NAME.txt from NAME.in: each version with the SHA-256 of every file that the index has of it.

A list holds for all platforms and Python versions that way: pip takes whichever file fits and compares it. `cuda` and
`audit` name what is wanted, and uv finds what that needs; the other lists are complete. A build such as 2.13.0+cpu is
on no public list: pip downloads it from wherever it is set up to look, on the platform that this runs on, and the
digests of other platforms in the file remain. `make requirements`; PIP_INDEX_URL names another index than PyPI.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.supply.pins import FOLDER, Pin, join, page, parse, read

WHOLE = ("build", "cpu", "cuda-imports", "docs", "package", "ray")
RESOLVED = ("cuda", "audit")
PYTHON = ("--python-version", "3.11.9", "--python-platform", "x86_64-manylinux_2_28")  # what `cuda` is found for
HEAD = "Written by `make requirements` from {name}.in: do not edit."


def main() -> int:
    try:
        return write()
    except subprocess.CalledProcessError as error:
        print(f"{error.cmd[0]} found no digests, for the reason above; the list is unchanged", file=sys.stderr)
    except (OSError, ValueError) as error:
        print(f"requirements/ cannot be written: {error}", file=sys.stderr)
    return 2


def write() -> int:
    """Every list. The exit code is 1 if a package has no digest."""
    for name in (*WHOLE, *RESOLVED):
        source, target = FOLDER / f"{name}.in", FOLDER / f"{name}.txt"
        old = read(target) if target.exists() else {}
        pins = whole(read(source), old) if name in WHOLE else resolved(source, old)
        lacking = [str(pin) for pin in pins.values() if not pin.hashes]
        if lacking:
            print(f"{target}: the index has no digest for {', '.join(lacking)}", file=sys.stderr)
            return 1
        target.write_text(page(HEAD.format(name=name), pins))
        print(f"{target.relative_to(FOLDER.parent)}: {len(pins)} packages")
    return 0


def whole(wanted: dict[str, Pin], old: dict[str, Pin]) -> dict[str, Pin]:
    """The digests of exactly these packages."""
    builds = {name: pin for name, pin in wanted.items() if pin.local}
    public = "".join(f"{pin}\n" for name, pin in wanted.items() if name not in builds)
    found = published(public, "", "--no-deps")
    return found | {name: join(at_hand(pin), old.get(name)) for name, pin in builds.items()}


def resolved(source: Path, old: dict[str, Pin]) -> dict[str, Pin]:
    """What `source` names and all that it needs; preferably in the versions of cpu.in, else in the old ones."""
    preferred = old | {name: pin for name, pin in read(FOLDER / "cpu.in").items() if not pin.local}
    return published(source.read_text(), page("preferred", preferred))


def published(wanted: str, preferred: str, *options: str) -> dict[str, Pin]:
    """What uv finds on the index. Raises `CalledProcessError`; uv has then written why."""
    index = ["--default-index", place] if (place := os.environ.get("PIP_INDEX_URL")) else []  # else uv's own
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "wanted.in"), Path(folder, "found.txt")
        source.write_text(wanted)
        target.write_text(preferred)
        uv = [str(Path(sys.executable).with_name("uv")), "--no-config", "--quiet", "--cache-dir", f"{folder}/cache"]
        what = ["pip", "compile", "--generate-hashes", "--no-annotate", "--no-header", *index]
        subprocess.run([*uv, *what, *PYTHON, *options, str(source), "-o", str(target)], check=True)
        return parse(target.read_text(), "uv's answer")


def at_hand(pin: Pin) -> Pin:
    """The file of this platform, as pip finds it. Raises `CalledProcessError`; pip has then written why."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--dry-run"]
    answer = subprocess.check_output(
        [*pip, "--no-deps", "--ignore-installed", "--report", "-", f"{pin.name}=={pin.version}"]
    )
    (file,) = json.loads(answer)["install"]
    return Pin(pin.name, pin.version, (f"sha256:{file['download_info']['archive_info']['hashes']['sha256']}",))


if __name__ == "__main__":
    sys.exit(main())
