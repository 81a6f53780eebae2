"""The built wheel in an environment of its own, without the repository: what `pip install` users have."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
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


def rhymed(bin: Path, home: Path, *words: object, **settings: str) -> str:
    """The output of a command in `home`, which must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {f"RHYMED_{name.upper()}": value for name, value in settings.items()}
    command = [str(bin / "rhymed"), *map(str, words)]
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_alone_lists_checks_and_runs_a_task(installed: Path, tmp_path: Path, tiny_model: Path) -> None:
    for package in ("rhymed", "rhymed_broker", "rhymed_store", "rhymed_workers"):
        program = f"import {package}; print({package}.__file__)"
        where = subprocess.check_output([installed / "python", "-c", program], cwd=tmp_path, text=True)
        assert where.startswith(str(installed.parent))
    assert "quickstart" in rhymed(installed, tmp_path, "init", "--list")
    rhymed(installed, tmp_path, "init", "mine")
    model = {"model__path": str(tiny_model)}
    assert "ready to run" in rhymed(installed, tmp_path, "check", "--no-generate", "mine/config.toml", **model)
    quick = {"rollout__engine": "trace", "trainer__engine": "trace", "trainer__steps": "2", "net__http": ""}
    assert "2 steps" in rhymed(installed, tmp_path, "run", "--plain", "mine/config.toml", **model, **quick)
    assert "every sample is accounted for, exactly once" in rhymed(
        installed, tmp_path, "history", "audit", "runs/mine"
    )


@pytest.mark.thorough
def test_the_wheel_alone_trains_with_the_engine(installed: Path, tmp_path: Path, tiny_model: Path) -> None:
    rhymed(installed, tmp_path, "init", "mine")
    settings = {
        "model__path": str(tiny_model),
        "trainer__steps": "2",
        "net__http": "",
        "rollout__kv_cache_gib": "0.1",
        "rollout__prompts_per_step": "2",
        "rollout__group_size": "2",
    }
    assert "2 steps" in rhymed(installed, tmp_path, "run", "--plain", "mine/config.toml", **settings)
