from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rhymed.config import Config
from rhymed.errors import ConfigError, DataError
from rhymed.inputs.datasets import load_rows, placed_rows, read_rows
from rhymed.inputs.rows import Row
from tests.inputs.datafiles import config, lines

TRL = {"prompt": "2 + 2?", "answer": "4"}
VERL = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 0, "split": "train"},
}


def test_trl_and_verl_rows_pass_unchanged(read: Callable[..., list[Row]]) -> None:
    assert read("\ufeff" + lines(TRL, VERL) + "\n\n") == [TRL, VERL]


def test_parquet_gives_what_was_written(read: Callable[..., list[Row]], tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([VERL, VERL | {"ability": None}]), tmp_path / "made")
    assert read((tmp_path / "made").read_bytes(), "parquet") == [VERL, VERL | {"ability": None}]


def test_copies_are_used_once(read: Callable[..., list[Row]], caplog: pytest.LogCaptureFixture) -> None:
    assert read(lines(TRL, VERL, dict(reversed(TRL.items())))) == [TRL, VERL]
    assert "1 of 3 rows are exact copies" in caplog.text
    assert "rows.jsonl, line 3 repeats line 1" in caplog.text


def test_the_same_question_with_other_columns_is_used_and_told(
    read: Callable[..., list[Row]], caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(lines(TRL, VERL, TRL | {"answer": "5"}, TRL | {"answer": "6"}))) == 4
    assert "2 of 4 rows have the same prompt as others but differ in other columns, and are used" in caplog.text
    assert "rows.jsonl, line 3 repeats line 1" in caplog.text
    caplog.clear()
    read(lines(TRL, TRL | {"answer": "5"}), template="{prompt} ({answer})")
    assert caplog.text == ""


def test_columns_of_other_kinds_of_training_are_told_once(
    read: Callable[..., list[Row]], caplog: pytest.LogCaptureFixture
) -> None:
    assert len(read(lines({"prompt": "q", "completion": "a"}, {"prompt": "r", "completion": "b"}))) == 2
    assert caplog.text.count("reward.args.column = 'completion'") == 1


def test_only_the_first_rows(read: Callable[..., list[Row]]) -> None:
    assert read(lines(TRL, VERL, TRL | {"answer": 1}) + "\nnot JSON", limit=2) == [TRL, VERL]


def test_places_of_rows(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(lines(TRL) + "\n\n" + lines(VERL, TRL))
    made = config(path=str(file))
    assert [where for where, _ in read_rows(made)] == [f"{file}, line {n}" for n in (1, 3, 4)]
    assert placed_rows(made) == [(f"{file}, line 1", TRL), (f"{file}, line 3", VERL)]


def held_out(path: Path, **data: Any) -> Config:
    datasets = [{"name": "test", "path": str(path), **data}]
    return Config.model_validate({"eval": {"datasets": datasets}, "data": {"system": "S"}})


def test_a_held_out_dataset_may_be_small_but_not_empty(tmp_path: Path) -> None:
    file = tmp_path / "test.jsonl"
    file.write_text(lines(TRL))
    made = held_out(file)
    assert load_rows(made, made.eval.datasets[0]) == [TRL]
    file.write_text("")
    with pytest.raises(DataError, match=r"test\.jsonl: the dataset is empty"):
        load_rows(made, made.eval.datasets[0])


def test_fewer_rows_than_a_step_takes(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(lines(TRL))
    made = {
        "data": {"source": "jsonl", "path": str(tmp_path / "rows.jsonl")},
        "rollout": {"prompts_per_step": 2},
    }
    with pytest.raises(DataError, match=r"1 distinct rows, but a step needs rollout\.prompts_per_step = 2"):
        load_rows(Config.model_validate(made))


@pytest.mark.parametrize("template", ["", "no column", "{}", "{prompt"])
def test_bad_templates(read: Callable[..., list[Row]], template: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.template"):
        read(lines(TRL), template=template)
