"""Writes dist/rhymed-VERSION-LIST.cdx.json for `cpu` and `cuda`: software bills of materials in CycloneDX 1.6.

Versions and digests come from requirements/LIST.txt; licences and dependencies from the packages that are installed
here, so packages that are not (CUDA's, on a machine without) have none. The dashboard's chart library is in it too;
the images' Debian packages are not. One commit and one environment give the same bytes. `make sbom`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tomllib
import uuid
from datetime import UTC, datetime
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from scripts import vendor
from scripts.supply.installed import packages
from scripts.supply.pins import FOLDER, ROOT, Pin, canonical, read

LISTS = ("cpu", "cuda")
SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
Part = dict[str, Any]


def main() -> int:
    there = packages(Path(sysconfig.get_path("purelib")))
    (ROOT / "dist").mkdir(exist_ok=True)
    for name in LISTS:
        document = bill(name, read(FOLDER / f"{name}.txt"), there, committed_at())
        target = ROOT / "dist" / f"rhymed-{document['metadata']['component']['version']}-{name}.cdx.json"
        target.write_text(json.dumps(document, indent=2) + "\n")
        parts = document["components"]
        bare = [part["name"] for part in parts if "licenses" not in part]
        unknown = f"; {len(bare)} without a licence, e.g. {', '.join(bare[:3])}" if bare else ""
        print(f"{target.relative_to(ROOT)}: {len(parts)} packages{unknown}")
    return 0


def committed_at() -> str:
    """Time of the last commit; the present outside of a clone."""
    command = ["git", "log", "-1", "--format=%ct"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    moment = datetime.fromtimestamp(int(done.stdout), UTC) if done.returncode == 0 else datetime.now(UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def bill(name: str, pins: dict[str, Pin], there: dict[str, Distribution], time: str) -> Part:
    """The document. `there`: installed packages, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = _chart()
    root = _part("rhymed", project["version"], "application") | {"licenses": [{"expression": project["license"]}]}
    parts = [_package(pin, there.get(pin.name)) for _, pin in sorted(pins.items())]
    direct = sorted(pins.keys() & {canonical(Requirement(line).name) for line in _wanted(project, name)})
    links = [{"ref": root["bom-ref"], "dependsOn": [*(_purl(pins[one]) for one in direct), chart["bom-ref"]]}]
    links += [{"ref": _purl(pin), "dependsOn": _needs(pin, pins, there)} for _, pin in sorted(pins.items())]
    content = {"components": [*parts, chart], "dependencies": [*links, {"ref": chart["bom-ref"]}]}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([root, content]))
    metadata = {"timestamp": time, "lifecycles": [{"phase": "build"}], "component": root}
    head = {"$schema": SCHEMA, "bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{serial}"}
    return head | {"version": 1, "metadata": metadata} | content


def licences(package: Distribution) -> list[Part]:
    """As its metadata has them: an SPDX expression, else names."""
    if expression := package.metadata.get("License-Expression"):
        return [{"expression": expression}]
    classified = [line for line in package.metadata.get_all("Classifier", []) if line.startswith("License ::")]
    names = [line.rpartition(" :: ")[2] for line in classified if line.count(" :: ") > 1]
    written = package.metadata.get("License", "").strip().partition("\n")[0]  # or a whole text, which begins so
    if not names and written and written.upper() != "UNKNOWN":
        names = [written]
    return [{"license": {"name": name}} for name in sorted(set(names))]


def _package(pin: Pin, package: Distribution | None) -> Part:
    part = _part(pin.name, pin.version) | {"purl": _purl(pin), "bom-ref": _purl(pin)}
    known = licences(package) if package is not None and package.version == pin.version else []
    digests = [{"alg": "SHA-256", "content": digest.removeprefix("sha256:")} for digest in pin.hashes]
    if pin.local:  # on no public list: the file itself
        part["hashes"] = digests
    else:  # all files of the version, of which one is installed
        part["externalReferences"] = [{"type": "distribution", "url": _purl(pin), "hashes": digests}]
    return part | ({"licenses": known} if known else {})


def _part(name: str, version: str, kind: str = "library") -> Part:
    return {"type": kind, "name": name, "version": version, "bom-ref": f"{name}@{version}"}


def _chart() -> Part:
    """The dashboard's chart library, which is in the wheel."""
    known = json.loads((vendor.FOLDER / "VERSION").read_text())
    purl = f"pkg:npm/{known['name']}@{known['version']}"
    digest = {"alg": "SHA-256", "content": known["package_sha256"]}
    source = {"type": "distribution", "url": purl, "hashes": [digest]}
    part = _part(known["name"], known["version"]) | {"purl": purl, "bom-ref": purl, "externalReferences": [source]}
    return part | {"licenses": [{"license": {"id": "MIT"}}]}


def _purl(pin: Pin) -> str:
    return f"pkg:pypi/{pin.name}@{pin.version.replace('+', '%2B')}"


def _needs(pin: Pin, pins: dict[str, Pin], there: dict[str, Distribution]) -> list[str]:
    """What the package needs of the list, on this platform."""
    package = there.get(pin.name)
    lines = (package.requires or []) if package is not None and package.version == pin.version else []
    wanted = [Requirement(line) for line in lines]
    names = {canonical(one.name) for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})}
    return [_purl(pins[name]) for name in sorted(names & pins.keys())]


def _wanted(project: Part, *extras: str) -> list[str]:
    """The project's own requirements with those of extras, and of the extras that these name."""
    lines = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            wanted = Requirement(line)
            lines += _wanted(project, *sorted(wanted.extras)) if wanted.name == "rhymed" else [line]
    return lines


if __name__ == "__main__":
    sys.exit(main())
