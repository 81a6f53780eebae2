from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import DataError
from rhymed.inputs.datasets import load_rows
from rhymed.inputs.lengths import check_prompts


def config(tmp_path: Path, limit: int, test: list[str] | None = None, **data: Any) -> Config:
    """The trace engine's tokens are bytes. Training prompts of 5, 50 and 7 tokens."""
    for name, prompts in (("train", ["a" * 5, "b" * 50, "c" * 7]), ("test", test or ["d"])):
        lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    return Config.model_validate(
        {
            "data": {"path": str(tmp_path / "train.jsonl"), **data},
            "eval": {"datasets": [{"name": "val", "path": str(tmp_path / "test.jsonl")}]},
            "rollout": {"engine": "trace", "max_prompt_length": limit, "prompts_per_step": 2},
        }
    )


def test_lengths_of_all_prompts(tmp_path: Path) -> None:
    train, val = check_prompts(config(tmp_path, 50))
    assert (train.name, train.lengths) == ("data", [5, 50, 7])
    assert (val.name, val.lengths, val.rows) == (
        "val",
        [1],
        [(f"{tmp_path / 'test.jsonl'}, line 1", {"prompt": "d"})],
    )


def test_prompts_over_the_limit_are_reported_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        check_prompts(config(tmp_path, 6))
    assert str(caught.value) == (
        f"{tmp_path}/train.jsonl, line 2: the prompt has 50 tokens, more than rollout.max_prompt_length = 6."
        f" In {tmp_path}/train.jsonl, 2 of 3 prompts are too long, the longest has 50 tokens: raise"
        ' rollout.max_prompt_length, or leave them out with data.overlong = "drop"'
    )
    with pytest.raises(DataError, match=r'test\.jsonl, line 2: .* eval\.datasets\.overlong = "drop"'):
        check_prompts(config(tmp_path, 50, ["d", "e" * 51]))


def test_prompts_over_the_limit_are_left_out_if_wanted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = config(tmp_path, 7, overlong="drop")
    assert [row["prompt"] for row in load_rows(made)] == ["a" * 5, "c" * 7]
    assert "1 of 3 prompts are longer than rollout.max_prompt_length = 7 and are left out" in caplog.text
    assert check_prompts(made)[0].lengths == [5, 7]


def test_too_few_prompts_are_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 rows of at most rollout\.max_prompt_length = 6 tokens, but a step"):
        load_rows(config(tmp_path, 6, overlong="drop"))
    with pytest.raises(DataError, match=r"no prompts of at most rollout\.max_prompt_length = 1 tokens"):
        load_rows(config(tmp_path, 1, overlong="drop"))
