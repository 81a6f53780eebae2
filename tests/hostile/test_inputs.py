"""Generated inputs by the hundred of each kind; `make stress-inputs` tries them by the ten thousand."""

import asyncio
from pathlib import Path

import pytest
import uvloop

from rhymed.core.errors import ConfigError
from tests.hostile import inputs

COUNTS = {"configurations": 300, "datasets": 200, "rewards": 200, "results": 500, "commands": 100, "folders": 100}


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", inputs.TRIES)
def test_every_outcome_is_a_success_or_a_sentence(kind: str) -> None:
    with inputs.place():
        assert inputs.attempt(kind, 0, COUNTS[kind]) >= COUNTS[kind] / 2


def test_the_inputs_without_damage_are_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_bytes(inputs.ROWS)
    before = inputs.outcomes["sentences"]
    inputs.try_configuration(inputs.TOML, ["trainer.lr=1e-5"])
    inputs.try_dataset(inputs.ROWS, "rows.jsonl")
    assert inputs.outcomes["sentences"] == before


def test_what_is_neither_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def bug() -> None:
        raise KeyError("a bug")

    def mistake() -> None:
        raise ConfigError("a mistake of the user's")

    def mute() -> None:
        raise ConfigError("")

    def spin() -> None:
        while True:
            pass

    def wait() -> None:
        uvloop.run(asyncio.sleep(60))

    assert inputs.sentence(mistake) is None
    with pytest.raises(KeyError):
        inputs.sentence(bug)
    with pytest.raises(inputs.Failure, match="without a word"):
        inputs.sentence(mute)
    monkeypatch.setattr(inputs, "HANG_S", 1)
    for endless in (spin, wait):
        with pytest.raises(inputs.Failure, match="no end within"):
            inputs.sentence(endless)
    assert inputs.called("run", "nowhere.toml") == 2
