"""A Python environment with TRL, in a folder of the cache. It sees the packages of this one and changes none."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from rhymed.core.errors import ConfigError
from rhymed.core.service.children import last_lines
from rhymed.inputs.models import cache

TRL = "1.16.0"
READY = "ready"
MODULES = ("torch", "transformers", "accelerate", "datasets")
"""That TRL needs, from this environment."""


def environment(version: str = TRL) -> Path:
    """Its Python. Made at the first call, from the package index. Raises `ConfigError`."""
    folder = cache().parent / "peers" / f"trl-{version}-py{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if not (folder / READY).is_file():
        _make(folder, version)
    _tie(folder)
    check = f"import {', '.join((*MODULES, 'trl'))}; print(trl.__version__)"
    done = subprocess.run([python, "-c", check], capture_output=True, text=True)
    if done.returncode or done.stdout.split()[-1:] != [version]:
        reason = done.stderr.strip().splitlines()[-1:] or ["it is another version"]
        raise ConfigError(
            f"{folder}: TRL {version} cannot be imported there: {reason[0]}; remove the folder to retry"
        )
    return python


def _make(folder: Path, version: str) -> None:
    venv.create(folder, with_pip=False, clear=True)
    log = folder / "pip.log"
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(_packages(folder)),
        f"trl=={version}",
    ]
    with log.open("w") as output:
        status = subprocess.run(command, stdout=output, stderr=output).returncode
    if status:
        raise ConfigError(f"TRL {version} cannot be installed: {' '.join(last_lines(log)[-1:])}; see {log}")
    (folder / READY).touch()


def _packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _tie(folder: Path) -> None:
    """Packages of this environment, and what its own .pth files add, come after those of the folder."""
    here = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
    lines = [f"import site; site.addsitedir({path!r})" for path in here]
    (_packages(folder) / "shared.pth").write_text("\n".join(lines) + "\n")
