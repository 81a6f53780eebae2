"""Builds of torchvision and others for CUDA next to a torch for CPUs: real packages on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from rhymed.core.unloadable import hide_unloadable
print(hide_unloadable())
from transformers.utils import is_torchvision_available
print(is_torchvision_available())
try:
    import torchvision
except ImportError:
    print("not there")
"""


def install(folder: Path, name: str, version: str, body: str = "") -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(body)
    information = folder / f"{name}-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def run(program: str, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", "")))}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("torch", ["2.13.0+cpu", "2.13.0+cu130", "2.13.0"])
def test_only_builds_that_do_not_fit_torch_are_hidden(tmp_path: Path, torch: str) -> None:
    install(tmp_path, "torch", torch)
    install(tmp_path, "torchvision", "0.28.0")
    install(tmp_path, "torchaudio", "2.11.0+cpu")
    out = run(
        "from rhymed.core.unloadable import hide_unloadable, note; print(hide_unloadable(), note()[:30])", tmp_path
    )
    assert out.strip() == ("['torchvision'] torchvision cannot be imported" if torch.endswith("+cpu") else "[]")


def test_the_own_sitecustomize_is_imported_though_ours_fails(tmp_path: Path) -> None:
    (tmp_path / "rhymed/core/unloadable").mkdir(parents=True)
    (tmp_path / "rhymed/__init__.py").touch()
    (tmp_path / "rhymed/core/unloadable/__init__.py").write_text("raise ValueError('a damaged record')")
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    ours = Path(__file__).parents[2] / "rhymed/core/unloadable"
    path = os.pathsep.join(map(str, (ours, tmp_path)))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("customized\n", "")


def test_transformers_does_without_a_torchvision_that_cannot_be_imported(tmp_path: Path) -> None:
    import torch

    if not torch.__version__.endswith("+cpu"):
        pytest.skip("needs a torch for CPUs")
    install(tmp_path, "torchvision", "0.28.0", "raise RuntimeError('operator torchvision::nms does not exist')")
    assert run(PROGRAM, tmp_path).split("\n")[:3] == ["['torchvision']", "False", "not there"]


CHILD = """
import importlib
import multiprocessing
import subprocess
import sys

if __name__ == "__main__":
    from rhymed.core.unloadable import hide_unloadable

    hide_unloadable()
    spawn = multiprocessing.get_context("spawn")
    child = spawn.Process(target=importlib.import_module, args=["optional"])
    child.start()
    child.join()
    program = "import optional, where; print(where.HERE)"
    print(child.exitcode, subprocess.run([sys.executable, "-c", program], capture_output=True, text=True))
"""


def test_every_python_that_a_process_starts_does_without_it_and_keeps_the_own_sitecustomize(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.13.0+cpu")
    install(tmp_path, "torchvision", "0.28.0", "raise RuntimeError('operator torchvision::nms does not exist')")
    install(tmp_path, "spawns", "1.0")
    (tmp_path / "optional.py").write_text("try:\n    import torchvision\nexcept ImportError:\n    pass\n")
    (tmp_path / "spawns/__main__.py").write_text(CHILD)
    (tmp_path / "where.py").write_text("HERE = 'nowhere'")
    (tmp_path / "sitecustomize.py").write_text("import where; where.HERE = 'customized'")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    for words in (["-m", "spawns"], [str(tmp_path / "spawns/__main__.py")]):
        command = [sys.executable, "-W", "ignore", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.stdout.startswith("0 "), done.stderr
        assert "returncode=0, stdout='customized\\n'" in done.stdout, done.stdout
