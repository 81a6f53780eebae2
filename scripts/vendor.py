"""The dashboard's chart library: downloaded from the npm registry and compared with `VERSION`.

    python scripts/vendor.py            download it again; refused unless package and files are those of VERSION
    python scripts/vendor.py --check    only compare the files in the tree with VERSION (no network)
    python scripts/vendor.py 1.6.33     change to another version and write its hashes to VERSION

The package is only unpacked and hashed, never run. Downloading needs `npm`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "rhymed" / "show" / "dashboard" / "static" / "vendor" / "uplot"
FILES = {
    "package/dist/uPlot.esm.js": "uPlot.esm.js",
    "package/dist/uPlot.min.css": "uPlot.min.css",
    "package/LICENSE": "LICENSE",
}
PACKAGE = "uplot"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="another version than the one in VERSION")
    parser.add_argument("--check", action="store_true", help="only compare the files in the tree with VERSION")
    options = parser.parse_args()
    known = json.loads((FOLDER / "VERSION").read_text()) if (FOLDER / "VERSION").exists() else None
    if options.check:
        return report(known, {name: (FOLDER / name).read_bytes() for name in FILES.values()})
    if known is None and not options.version:
        parser.error("there is no VERSION yet: name a version")
    version = options.version or known["version"]
    archive = pack(version)
    files = unpack(archive)
    actual = {"name": PACKAGE, "version": version, "package_sha256": sha256(archive), "sha256": hashes(files)}
    if not options.version and actual != known:
        print(f"{PACKAGE} {version} from the registry differs from VERSION: {json.dumps(actual)}", file=sys.stderr)
        return 1
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (FOLDER / name).write_bytes(content)
    (FOLDER / "VERSION").write_text(json.dumps(actual, indent=2) + "\n")
    return report(actual, files)


def pack(version: str) -> bytes:
    """The package as the registry serves it. `--ignore-scripts`: none of its code is run."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--silent", "--ignore-scripts", "--pack-destination", folder]
        command = ["npm", "pack", *options, f"{PACKAGE}@{version}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder)
        (archive,) = Path(folder).glob("*.tgz")
        return archive.read_bytes()


def unpack(archive: bytes) -> dict[str, bytes]:
    """The files of the package that the page loads."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        members = {path: tar.extractfile(path) for path in FILES}
        return {FILES[path]: member.read() for path, member in members.items() if member is not None}


def report(known: dict | None, files: dict[str, bytes]) -> int:
    if known is None or hashes(files) != known["sha256"]:
        print(f"{FOLDER}: the files are not those of VERSION", file=sys.stderr)
        return 1
    print(f"{known['name']} {known['version']}: {len(files)} files, as VERSION says")
    return 0


def hashes(files: dict[str, bytes]) -> dict[str, str]:
    return {name: sha256(content) for name, content in sorted(files.items())}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
