"""Another release of vLLM on a machine without a GPU: `python -m scripts.vllm_overlay WHEEL_OR_FOLDER TARGET`.

Makes a package `vllm` in TARGET from the Python sources of a release (its wheel for CUDA, or a folder of sources) and
the compiled operations of the vLLM for CPUs that is installed here. Releases change their Python far more than these
operations, so the engine may well run, and then the engine tests run on that release:

    PYTHONPATH=TARGET python -m pytest tests/workers/engines/test_vllm.py

What that cannot show: anything about a GPU, and whether the release runs with another torch than the installed one.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
import zipfile
from pathlib import Path


def overlay(source: Path, target: Path, compiled: Path) -> str:
    """`compiled`: folder of an installed package `vllm`. Returns the version that the overlay has."""
    target.mkdir(parents=True)
    if source.is_file():
        with zipfile.ZipFile(source) as wheel:
            wheel.extractall(target, [name for name in wheel.namelist() if not name.endswith(".so")])
    else:
        for folder in (source / "vllm", *source.glob("vllm*.dist-info")):
            shutil.copytree(folder, target / folder.name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for file in compiled.glob("*.so"):
        (target / "vllm" / file.name).symlink_to(file)
    (about,) = target.glob("vllm*.dist-info/METADATA")
    text = about.read_text()
    version = re.search(r"^Version: ([\d.]+)", text, re.MULTILINE)
    assert version is not None, f"{about} has no version"
    build = f"{version[1]}+cpu"  # by this vLLM knows that it was built for CPUs
    about.write_text(re.sub(r"^Version: .*$", f"Version: {build}", text, flags=re.MULTILINE))
    about.parent.rename(target / f"vllm-{build}.dist-info")
    return build


if __name__ == "__main__":
    found = importlib.util.find_spec("vllm")
    assert found is not None, "a vLLM for CPUs must be installed (make setup)"
    assert found.origin is not None
    print(overlay(Path(sys.argv[1]), Path(sys.argv[2]), Path(found.origin).parent))
