"""Folders of earlier runs, and the command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

Done = tuple[int, str, str]

from rhymed.core.config import Config
from rhymed.start.cli import main
from tests.records.history.folders import Sample, two_epochs, write_store, write_tokenizer
from tests.records.history.sessions import write_sessions


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a model's folder has for who only reads text."""
    return write_tokenizer(tmp_path_factory.mktemp("model"))


@pytest.fixture
def make_run(tmp_path: Path, tokenizer: Path) -> Callable[..., Path]:
    """Writes a run's folder as it is found after the run."""

    def make(name: str, samples: Sequence[Sample] | None = None, *, engine: str = "vllm", dropped=()) -> Path:
        folder = tmp_path / name
        write_store(folder, two_epochs() if samples is None else samples, dropped)
        config = {"run": {"name": name, "folder": str(tmp_path)}, "model": {"path": str(tokenizer)}}
        config |= {"rollout": {"engine": engine}, "trace": {"vocabulary": 258}}
        (folder / "config.json").write_text(Config.model_validate(config).model_dump_json())
        return folder

    return make


@pytest.fixture
def in_turns(make_run: Callable[..., Path]) -> Path:
    """A run whose samples have turns."""
    folder = make_run("agents", [])
    write_sessions(folder)
    return folder


@pytest.fixture
def run(make_run: Callable[..., Path]) -> Path:
    return make_run("earlier")


@pytest.fixture
def rhymed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`rhymed history ...` at 80 columns: status, standard output, standard error."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        status = main(["history", *map(str, arguments)])
        done = capsys.readouterr()
        return status, done.out, done.err

    return call
