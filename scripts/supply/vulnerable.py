"""Known vulnerabilities of the packages in requirements/, as PyPI's database has them. Asked by pip-audit.

That no vulnerability was found is said only of packages that the database knows: pip-audit itself succeeds also if
it could look up none.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from scripts.supply.pins import Pin

PATIENCE_S = 300


@dataclass
class Answer:
    """What is known of some packages."""

    looked: int = 0
    found: list[str] = field(default_factory=list)  # a sentence for each vulnerability
    unknown: list[str] = field(default_factory=list)  # packages that the database did not answer for
    why: str = ""  # the first reason for that

    def add(self, other: Answer) -> None:
        self.looked += other.looked
        self.found += other.found
        self.unknown += other.unknown
        self.why = self.why or other.why


def ask(program: Path, pins: Iterable[Pin]) -> Answer:
    """Looks the packages up. A build such as 2.13.0+cpu is looked up as 2.13.0, which is what databases list."""
    answer = Answer()
    for versions in rounds({(pin.name, pin.version.partition("+")[0]) for pin in pins}):
        if program.exists():
            answer.add(_asked(program, versions))
        else:
            why = f"{program} is missing: `make audit` installs it, with a network"
            answer.add(Answer(unknown=sorted(versions), why=why))
    return answer


def rounds(packages: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Name -> version, in as many parts as a name has versions: pip-audit refuses a name that is there twice."""
    parts: list[dict[str, str]] = []
    for name, version in sorted(packages):
        for part in parts:
            if name not in part:
                part[name] = version
                break
        else:
            parts.append({name: version})
    return parts


def _asked(program: Path, versions: dict[str, str]) -> Answer:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "packages.txt")
        source.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
        options = ["--no-deps", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
        command = [str(program), *options, "--requirement", str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return Answer(unknown=sorted(versions), why=f"no answer within {PATIENCE_S} s")
    return judge(done.stdout, done.stderr, versions)


def judge(output: str, errors: str, versions: dict[str, str]) -> Answer:
    """Reads pip-audit's JSON. Output that is none means that it could not look; the last error says why."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = [line for line in errors.splitlines() if line.strip()]
        return Answer(unknown=sorted(versions), why=last[-1].strip()[:300] if last else "pip-audit wrote nothing")
    answer = Answer(unknown=sorted(versions.keys() - {package["name"] for package in packages}))
    for package in packages:
        if "skip_reason" in package:
            answer.unknown.append(package["name"])
            answer.why = answer.why or package["skip_reason"]
            continue
        answer.looked += 1
        for known in package["vulns"]:
            mended = ", ".join(known["fix_versions"]) or "no version yet"
            answer.found.append(f"{package['name']} {package['version']}: {known['id']}; mended in {mended}")
    return answer
