"""The built wheel in an environment of its own, without the repository: what `pip install` users have."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("PYTHONPATH", "XDG_CACHE_HOME", "VLLM_CACHE_ROOT")  # would lead out of the environment, or of its home
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel. Dependencies are those of the tests."""
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(place), str(copy(place))]
    subprocess.run(build, check=True, timeout=300)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place / "venv")], check=True, timeout=120)
    (wheel,) = place.glob("rhymed-*.whl")
    python = place / "venv/bin/python"
    subprocess.run([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], check=True)
    site = next((place / "venv/lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python.parent


def copy(place: Path) -> Path:
    """The files of the repository: a build writes into its folder."""
    tree = place / "source"
    tree.mkdir()
    tracked = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(tracked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())
    return tree


def surroundings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in ELSEWHERE}


def rhymed(bin: Path, home: Path, *words: object, **settings: str) -> str:
    """The output of a command in `home`, which must succeed."""
    environment = surroundings()
    for name, value in settings.items():
        environment[name if name.isupper() else f"RHYMED_{name.upper()}"] = value
    command = [str(bin / "rhymed"), *map(str, words)]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.thorough
def test_the_wheel_alone_lists_checks_and_runs_a_task(installed: Path, tmp_path: Path, tiny_model: Path) -> None:
    for package in ("rhymed", "rhymed_broker", "rhymed_store", "rhymed_workers"):
        program = f"import {package}; print({package}.__file__)"
        command = [installed / "python", "-c", program]
        where = subprocess.check_output(command, cwd=tmp_path, text=True, env=surroundings())
        assert where.startswith(str(installed.parent))
    assert "quickstart" in rhymed(installed, tmp_path, "init", "--list")
    rhymed(installed, tmp_path, "init", "mine")
    model = {"model__path": str(tiny_model)}
    assert "ready to run" in rhymed(installed, tmp_path, "check", "mine/config.toml", **model)
    quick = {"rollout__engine": "trace", "trainer__engine": "trace", "trainer__steps": "2", "net__http": ""}
    assert "2 steps" in rhymed(installed, tmp_path, "run", "--plain", "mine/config.toml", **model, **quick)
    assert "every sample is accounted for, exactly once" in rhymed(
        installed, tmp_path, "history", "audit", "runs/mine"
    )


@pytest.fixture
def torchvision(installed: Path) -> Iterator[None]:
    """As pip takes it from an index without builds for CPUs: it raises next to this torch."""
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    folders = [site / "torchvision", site / "torchvision-0.28.0.dist-info"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')\n")
    (folders[1] / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.28.0\n")
    yield
    for folder in folders:
        shutil.rmtree(folder)


@pytest.mark.thorough
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("torchvision")
def test_the_wheel_alone_trains_with_the_engine_on_a_new_account(
    installed: Path, tmp_path: Path, tiny_model: Path
) -> None:
    """An empty home: vLLM has looked at no model here yet, which it does in a process of its own."""
    import torch

    if not torch.__version__.endswith("+cpu"):
        pytest.skip("needs a torch for CPUs")
    (tmp_path / "home").mkdir()
    home = {"HOME": str(tmp_path / "home")}
    rhymed(installed, tmp_path, "init", "mine", **home)
    settings = home | {
        "model__path": str(tiny_model),
        "trainer__steps": "3",
        "net__http": "",
        "rollout__kv_cache_gib": "0.1",
        "rollout__prompts_per_step": "2",
        "rollout__group_size": "2",
    }
    assert "ready to run" in rhymed(installed, tmp_path, "check", "mine/config.toml", **settings)
    assert "3 steps" in rhymed(installed, tmp_path, "run", "--plain", "mine/config.toml", **settings)
    looked = list((tmp_path / "home/.cache/vllm/modelinfos").glob("*-LlamaForCausalLM.json"))
    assert looked, "vLLM looked at the model's class in a process of its own: that of the check, or of the engine"
