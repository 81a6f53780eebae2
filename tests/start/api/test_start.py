"""What `rhymed.train` makes of rows, rewards and environments that are not named."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import ConfigError
from rhymed.start.api import inputs
from rhymed.start.api.start import Asked


class Game:
    def reset(self, **row: Any) -> str:
        return "Begin."

    def move(self, to: str) -> str:
        """Moves.

        Args:
            to: Where.
        """
        return to

    def get_reward(self) -> float:
        return 1.0


def short(completions: list[str], **columns: Any) -> list[float]:
    return [float(len(text) < 9) for text in completions]


def asked(**given: Any) -> Asked:
    named = {"config": None, "model": None, "dataset": None, "eval_dataset": None, "reward": None, "keywords": {}}
    return Asked(**{**named, **given})


def test_without_rows_the_environment_writes_the_prompts_and_gives_the_reward(tmp_path: Path) -> None:
    keywords = {"steps": 3, "prompts_per_step": 2}
    config = asked(environment_factory=Game, keywords=keywords).read(tmp_path / "inputs")
    rows = [json.loads(line) for line in Path(config.data.path).read_text().splitlines()]
    assert len(rows) == 6, "an episode for each prompt of each step"
    assert rows[5] == {"prompt": [{"role": "user", "content": ""}], "episode": 5}
    assert (config.data.source, config.reward.scorer) == ("jsonl", "environment")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "no rows are named: pass dataset"),
        ({"reward": short}, "no rows are named: pass dataset"),
        ({"config": {"trainer": {"steps": 3}, "data": {"system": "Be brief."}}}, "no rows are named"),
        ({"environment_factory": Game}, r"steps=… sets their number"),
    ],
)
def test_a_task_that_nobody_named_is_not_trained(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        asked(**given).read(None)


@pytest.mark.parametrize("data", [{"task": "chain_sum"}, {"path": "rows.jsonl"}, {"source": "reasoning_gym"}])
def test_what_is_named_is_trained(data: dict[str, Any]) -> None:
    assert asked(keywords={"data": data}).read(None).data.model_fields_set >= data.keys()


def test_what_get_reward_gives_is_added_as_in_trl(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}]
    both = asked(dataset=rows, reward=short, environment_factory=Game).read(tmp_path / "one")
    assert [one.label for one in both.reward.all] == ["short", "environment"]
    alone = asked(dataset=rows, reward=short).read(tmp_path / "two")
    assert [one.label for one in alone.reward.all] == ["short"]
    named = asked(dataset=rows, reward=["environment", short], environment_factory=Game).read(tmp_path / "three")
    assert [one.label for one in named.reward.all] == ["environment", "short"]


def test_rows_of_a_program_are_written_as_those_of_files_are_read() -> None:
    (line,) = inputs.lines([{"prompt": "p", "price": Decimal("1.50"), "none": float("nan")}], "dataset")
    assert json.loads(line) == {"prompt": "p", "price": "1.50", "none": None}
