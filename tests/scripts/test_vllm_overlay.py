"""Sources of one release, operations of another."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path

import pytest

from scripts.vllm_overlay import overlay

FILES = {
    "vllm/__init__.py": "release = 'of the sources'\n",
    "vllm/_C.abi3.so": "built for a GPU",
    "vllm-0.99.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: vllm\nVersion: 0.99.0\n",
}


@pytest.mark.parametrize("packed", [True, False])
def test_the_overlay_is_a_package_for_cpus(packed: bool, tmp_path: Path) -> None:
    compiled, source, target = tmp_path / "installed", tmp_path / "source", tmp_path / "target"
    compiled.mkdir()
    (compiled / "_C.abi3.so").write_text("built for a CPU")
    (compiled / "other.py").write_text("")
    if packed:
        with zipfile.ZipFile(source, "w") as wheel:
            for name, text in FILES.items():
                wheel.writestr(name, text)
    else:
        for name, text in FILES.items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text(text)
    assert overlay(source, target, compiled) == "0.99.0+cpu"
    assert sorted(file.name for file in (target / "vllm").iterdir()) == ["_C.abi3.so", "__init__.py"]
    assert (target / "vllm" / "_C.abi3.so").read_text() == "built for a CPU"
    (found,) = importlib.metadata.distributions(name="vllm", path=[str(target)])
    assert found.version == "0.99.0+cpu"
