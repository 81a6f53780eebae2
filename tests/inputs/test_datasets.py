from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rhymed.core.config import Config, Data
from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs import render
from rhymed.inputs.datasets import load_rows, placed_rows, read_rows
from rhymed.inputs.rows import Row, prompt_id
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


def test_copies_are_visits(read: Callable[..., list[Row]], caplog: pytest.LogCaptureFixture) -> None:
    assert read(lines(TRL, VERL, dict(reversed(TRL.items())))) == [TRL, VERL, TRL | {"rhymed_visit": 1}]
    assert "1 of 3 rows are exact copies" in caplog.text
    assert len({prompt_id(row) for row in read(lines(*[TRL] * 1000))}) == 1000
    assert "rows.jsonl, line 3 repeats line 1" in caplog.text


def test_a_users_column_is_no_number_of_a_copy(read: Callable[..., list[Row]]) -> None:
    given = [TRL, TRL, TRL | {"visit": 1}, TRL | {"visit": 7}, TRL | {"visit": 7}]
    found = read(lines(*given))
    assert [row.get("visit") for row in found] == [None, None, 1, 7, 7]
    assert [row.get("rhymed_visit") for row in found] == [None, 1, None, None, 1]
    with pytest.raises(DataError, match=r"line 2: column 'rhymed_visit' is reserved"):
        read(lines(TRL, TRL | {"rhymed_visit": 1}))


CALL = {"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (
            {
                "prompt": [
                    {"role": "user", "content": "a", "name": None},
                    {"role": "assistant", "content": None, "tool_calls": [CALL]},
                ]
            },
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}],
        ),
        (
            {
                "prompt": [
                    {"role": "user", "content": [{"type": "text", "text": "hi "}, {"type": "text", "text": "you"}]}
                ]
            },
            [{"role": "user", "content": "hi you"}],
        ),
        (
            {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "4"}]},
            [{"role": "user", "content": "q"}],
        ),
        ({"messages": [{"role": "user", "content": "q"}]}, [{"role": "user", "content": "q"}]),
    ],
)
def test_chats_as_tables_and_apis_write_them(read: Callable[..., list[Row]], given: Row, prompt: Any) -> None:
    (row,) = read(lines(given))
    assert row == {**given, "prompt": prompt}


def test_the_keys_that_a_table_adds_are_left_out_of_a_chat(read: Callable[..., list[Row]], tmp_path: Path) -> None:
    plain = [{"role": "user", "content": "hi"}]
    called = [
        {"role": "user", "name": "bob", "content": "add"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
    ]
    parquet.write_table(pa.Table.from_pylist([{"prompt": plain}, {"prompt": called}]), tmp_path / "made")
    assert [row["prompt"] for row in read((tmp_path / "made").read_bytes(), "parquet")] == [plain, called]


def test_a_tables_dates_decimals_and_missing_numbers_are_json(read: Callable[..., list[Row]], tmp_path: Path) -> None:
    when, price = datetime(2026, 11, 27, 9, 30), Decimal("12.50")
    rows = [{"prompt": "a", "when": when, "price": price, "score": math.nan, "inner": {"days": [when]}}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "made")
    text = when.isoformat()
    assert read((tmp_path / "made").read_bytes(), "parquet") == [
        {"prompt": "a", "when": text, "price": "12.50", "score": None, "inner": {"days": [text]}}
    ]


def test_what_is_null_in_a_row_is_empty_in_its_prompt(read: Callable[..., list[Row]]) -> None:
    (row,) = read(lines({"question": "p0", "hint": None}), template="{question} {hint}")
    assert row["prompt"] == "p0"
    filled = render.messages(Data(source="jsonl", path="x", template="{prompt}{hint}"), "row 1", row)
    assert filled == [{"role": "user", "content": "p0"}]


def test_the_same_question_with_other_columns_is_another_prompt(read: Callable[..., list[Row]]) -> None:
    assert len(read(lines(TRL, VERL, TRL | {"answer": "5"}, TRL | {"answer": "6"}))) == 4


def test_columns_of_other_kinds_of_training_are_reported_once(
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
    third = f"{file}, line 4", TRL | {"rhymed_visit": 1}
    assert placed_rows(made) == [(f"{file}, line 1", TRL), (f"{file}, line 3", VERL), third]


SYSTEM, USER = ({"role": role, "content": "x"} for role in ("system", "user"))


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({}, ["columns completion, rejected: training uses generated answers, not these"]),
        ({"reward": {"scorer": "exact", "args": {"column": "completion"}}}, ["column rejected: training"]),
        ({"rollout": {"engine": "dataset"}, "trainer": {"algorithm": "sft"}}, ["column rejected: training"]),
        ({"data": {"system": "S"}}, ["columns completion", "2 of 3 rows begin with a system message, which is kept"]),
    ],
)
def test_what_is_not_read_of_rows_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, dict[str, Any]], reported: list[str]
) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": [USER]}, {"prompt": [SYSTEM, USER], "completion": "5"}, {"prompt": [SYSTEM], "rejected": "6"}]
    file.write_text(lines(*rows))
    made = {"rollout": {}, "data": {}} | settings
    made["data"] = {"path": str(file), **made["data"]}
    made["rollout"] = {"prompts_per_step": 1, **made["rollout"]}
    load_rows(Config.model_validate(made))
    assert len(caplog.messages) == len(reported)
    for words, message in zip(reported, caplog.messages, strict=True):
        assert words in message
        assert message.startswith(f"{file}: ")


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
    with pytest.raises(DataError, match=r"1 rows, but a step needs rollout\.prompts_per_step = 2"):
        load_rows(Config.model_validate(made))


@pytest.mark.parametrize("template", ["", "no column", "{}", "{prompt"])
def test_bad_templates(read: Callable[..., list[Row]], template: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.template"):
        read(lines(TRL), template=template)
