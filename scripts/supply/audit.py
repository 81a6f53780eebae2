"""Checks what rhymed is made of: `make audit`; `--quick`, as in `make lint`, only what needs seconds and no network.

Exit code 0: all was looked at and is in order. 1: something was found. 2: nothing was found, but not all could be
looked at, such as known vulnerabilities without a network.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from scripts import vendor
from scripts.supply import installed, leaks, vulnerable
from scripts.supply.lock import RESOLVED, WHOLE
from scripts.supply.pins import FOLDER, ROOT, Pin, read

FOUND, COULD_NOT_LOOK = 1, 2
SHOWN = 20  # sentences of one check
CURES = {
    "secrets": f"a secret is no longer one: replace it. If it is none, add its path and text to {leaks.ALLOWED.name}",
    "lists": "`make requirements`",
    "installed": "`make clean` and `make setup`",
}
WHEELS = ROOT / "docker" / "wheels"
Check = Callable[[], tuple[str, list[str]]]  # -> what is in order, or what was found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the environment and without vulnerabilities")
    parser.add_argument("--list", default="cpu", choices=("cpu", "cuda"), help="what the environment was made from")
    parser.add_argument("--tools", type=Path, default=ROOT / ".venv-audit", help="the environment with pip-audit")
    options = parser.parse_args()
    quick: dict[str, Check] = {"secrets": secrets, "lists": lists, "wheels": wheels, "vendored": vendored}
    results = [attempt(name, check) for name, check in quick.items()]
    if not options.quick:
        results.append(attempt("installed", lambda: environment(options.list)))
        results.append(vulnerabilities(options.tools / "bin" / "pip-audit"))
    return FOUND if FOUND in results else max(results)


def attempt(name: str, check: Check) -> int:
    """Makes one check, prints its result, and returns its exit code."""
    try:
        return report(name, *check())
    except leaks.NoRepository as error:
        print(f"{name + ':':<17}could not look: {error}")
        return COULD_NOT_LOOK
    except (OSError, ValueError) as error:  # a list that is missing or cannot be read
        return report(name, "", [str(error)])


def report(name: str, order: str, found: list[str]) -> int:
    """Prints one check's result, and returns its exit code."""
    print(f"{name + ':':<17}{f'{len(found)} found' if found else order}", flush=True)
    for sentence in found[:SHOWN]:
        print(f"  {sentence}")
    if len(found) > SHOWN:
        print(f"  and {len(found) - SHOWN} more")
    if found and name in CURES:
        print(f"  what to do: {CURES[name]}")
    return FOUND if found else 0


def secrets() -> tuple[str, list[str]]:
    """Keys, tokens and passwords in tracked files."""
    files = [path for path in leaks.tracked(ROOT) if ROOT / path != leaks.ALLOWED]
    found = leaks.unexpected(leaks.scan(ROOT, files), leaks.ALLOWED.read_text())
    return f"{len(files)} files have none", found


def lists() -> tuple[str, list[str]]:
    """Whether requirements/NAME.txt has the versions of NAME.in, each with digests."""
    pins = {name: read(FOLDER / f"{name}.txt") for name in (*WHOLE, *RESOLVED, "slim")}
    total = sum(map(len, pins.values()))
    return f"{len(pins)} lists, {total} packages, each with its SHA-256", list(_disagreements(pins))


def _disagreements(pins: dict[str, dict[str, Pin]]) -> Iterator[str]:
    for name, locked in pins.items():
        yield from (f"{name}.txt: {pin.name} has no SHA-256" for pin in locked.values() if not pin.hashes)
        wanted = read(FOLDER / f"{name}.in") if name != "slim" else locked
        for pin in wanted.values():
            if pin.name not in locked or locked[pin.name].version != pin.version:
                yield f"{name}.txt: has not {pin.name}=={pin.version}; run `make requirements`"
    yield from (
        f"slim.txt: {pin.name} is not as in cpu.txt"
        for pin in pins["slim"].values()
        if pin != pins["cpu"].get(pin.name)
    )


def wheels(folder: Path = WHEELS) -> tuple[str, list[str]]:
    """Files for builds without a network: each must be in a list."""
    known = {digest for name in WHOLE for pin in read(FOLDER / f"{name}.txt").values() for digest in pin.hashes}
    files = [file for file in sorted(folder.glob("*")) if file.is_file() and not file.name.startswith(".")]
    found = [f"{file.name}: its SHA-256 is in no list" for file in files if f"sha256:{_digest(file)}" not in known]
    return f"{len(files)} files in docker/wheels, all in the lists", found


def vendored() -> tuple[str, list[str]]:
    """The dashboard's chart library: the files of its package."""
    known = json.loads((vendor.FOLDER / "VERSION").read_text())
    files = {name: (vendor.FOLDER / name).read_bytes() for name in vendor.FILES.values()}
    same = vendor.hashes(files) == known["sha256"]
    return f"{known['name']} {known['version']} is as its package", [] if same else [f"{vendor.FOLDER}: files differ"]


def environment(name: str) -> tuple[str, list[str]]:
    """The environment that runs this: versions as in the list, files as recorded."""
    site = Path(sysconfig.get_path("purelib"))
    there, wanted = installed.packages(site), read(FOLDER / f"{name}.txt")
    found = [*installed.other_versions(there, wanted), *installed.changed_files(site, there)]
    others = sorted(there.keys() - wanted.keys() - {"rhymed", "pip"})
    also = f"; also there, not in the list: {', '.join(others)}" if others else ""
    return f"{len(wanted)} packages of {name}.txt, {installed.count(there)} files as installed{also}", found


def vulnerabilities(program: Path) -> int:
    """Asks for the packages of every list. Returns the exit code."""
    pins = {pin for name in (*WHOLE, *RESOLVED) for pin in read(FOLDER / f"{name}.txt").values()}
    answer = vulnerable.ask(program, pins)
    if not answer.looked:
        print(f"{'vulnerabilities:':<17}could not look at any of {len(answer.unknown)} packages: {answer.why}")
        return COULD_NOT_LOOK
    code = report("vulnerabilities", f"none known of {answer.looked} packages", answer.found)
    if answer.unknown:
        total = answer.looked + len(answer.unknown)
        print(f"  {len(answer.unknown)} of {total} packages were not looked up: {answer.why}")
    return code or (COULD_NOT_LOOK if answer.unknown else 0)


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
