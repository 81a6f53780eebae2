"""A run's samples as tables, from a store that was written without a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed import open_run
from rhymed.core.config import Config
from tests.records.history.folders import APPLES, two_epochs, write_store, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    folder.mkdir()
    config = {"run": {"folder": str(folder.parent)}, "model": {"path": str(write_tokenizer(folder.parent))}}
    (folder / "config.json").write_text(Config.model_validate(config).model_dump_json())
    write_store(folder, two_epochs())
    return folder


def test_parts_of_rewards_are_columns(folder: Path) -> None:
    run = open_run(folder)
    rows = run.samples()
    assert len(rows) == 8
    assert len({tuple(row) for row in rows}) == 1, "all rows have all columns"
    parts = {
        (row["prompt_id"], row["step"], row["index"]): (row["reward/exact"], row["reward/format"]) for row in rows
    }
    assert parts.pop((APPLES, 2, 0)) == (1.0, 0.25)
    assert set(parts.values()) == {(None, None)}
    assert [row["reward/format"] for row in run.history("apples")] == [None, None, 0.25, None]
    assert "reward/exact" not in run.samples(step=0)[0]
