import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from rhymed.config import Config
from rhymed.data import Row, prompt_id
from rhymed.errors import ConfigError, DataError
from rhymed.sources import freeze, gym_entry, load_rows, thaw

TRL = {"prompt": "2 + 2?", "answer": "4"}
VERL = {
    "data_source": "gsm8k",
    "prompt": [{"role": "user", "content": "2 + 2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 0, "split": "train"},
}


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Row]]:
    """Writes a file and loads it."""

    def load(content: bytes | str, source: str = "jsonl", **data: Any) -> list[Row]:
        file = tmp_path / f"rows.{source}"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_rows(config(source=source, path=str(file), **data))

    return load


def config(**data: Any) -> Config:
    return Config.model_validate({"data": data, "rollout": {"prompts_per_step": 1}})


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def test_trl_and_verl_rows_pass_unchanged(read: Callable[..., list[Row]]) -> None:
    assert read("\ufeff" + lines(TRL, VERL) + "\n\n") == [TRL, VERL]


def test_parquet_gives_what_was_written(read: Callable[..., list[Row]], tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist([VERL, VERL | {"ability": None}]), tmp_path / "made")
    assert read((tmp_path / "made").read_bytes(), "parquet") == [VERL, VERL | {"ability": None}]


def test_copies_are_used_once(read: Callable[..., list[Row]], caplog: pytest.LogCaptureFixture) -> None:
    assert read(lines(TRL, VERL, dict(reversed(TRL.items())))) == [TRL, VERL]
    assert "1 of 3 rows are exact copies" in caplog.text


def test_template_may_use_other_columns(read: Callable[..., list[Row]]) -> None:
    row = {"question": "2 + 2?", "hint": "add"}
    assert read(lines(row), template="{question} ({hint}) {{}}") == [row]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("[1]", r"rows\.jsonl, line 2: \[1\] is not a JSON object"),
        ("{'prompt': 1}", r"line 2: not JSON \(Expecting property name"),
        ('{"prompt": "q"', r"line 2: not JSON"),
        ('{"prompts": "q"}', r"line 2: no column 'prompt'; did you mean 'prompts'\?"),
        ('{"text": "q"}', r"line 2: no column 'prompt'; columns: text"),
        ('{"prompt": 4}', r"line 2: prompt is 4; it must be a string or a list"),
        ('{"prompt": []}', r"line 2: prompt is \[\]"),
        ('{"prompt": " "}', r"line 2: the prompt is empty"),
        ('{"prompt": ["q"]}', r"line 2: prompt\[0\] is 'q'; it must be \{role, content\}"),
        ('{"prompt": [{"role": "user"}]}', r"line 2: prompt\[0\] is"),
        ('{"prompt": "q", "x": NaN}', r"line 2: NaN is not JSON"),
        ('{"prompt": "q", "x": "\\ud800"}', r"line 2: column 'x' holds half a surrogate pair"),
        ('{"prompt": "q", "x": ' + "[" * 100_000 + "}", r"line 2: nested too deeply"),
    ],
)
def test_a_bad_line_is_named(read: Callable[..., list[Row]], second: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(lines(TRL) + "\n" + second + "\n")


@pytest.mark.parametrize(
    ("content", "source", "message"),
    [
        (b"", "jsonl", "the dataset is empty"),
        (b"\n \n", "jsonl", "the dataset is empty"),
        (b'[\n{"prompt": "q"}\n]', "jsonl", "looks like one JSON array"),
        (b"PAR1....", "jsonl", "a parquet file: set data.source to 'parquet'"),
        (b"\x1f\x8b\x08", "jsonl", "compressed with gzip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "parquet", "a Git LFS pointer"),
        (b'{"prompt": "q\xff"}', "jsonl", "line 1: not UTF-8"),
        (b'{"prompt": "q"}\n', "parquet", "not a readable parquet file"),
        (b"PAR1" + b"\x00" * 60, "parquet", "not a readable parquet file"),
        (b"", "parquet", "not a readable parquet file"),
    ],
)
def test_a_file_that_is_not_what_it_should_be(
    read: Callable[..., list[Row]], content: bytes, source: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(content, source)


def test_parquet_columns_that_json_cannot_hold(read: Callable[..., list[Row]], tmp_path: Path) -> None:
    for value in (b"png", float("nan"), pa.scalar(0, pa.timestamp("s")).as_py()):
        parquet.write_table(pa.Table.from_pylist([{"prompt": "q", "x": value}]), tmp_path / "made")
        with pytest.raises(DataError, match=r"row 0: column 'x' cannot be JSON .* drop it"):
            read((tmp_path / "made").read_bytes(), "parquet")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file.*data\.path"):
        load_rows(config(source="jsonl", path=str(tmp_path / "none.jsonl")))
    with pytest.raises(DataError, match="is a folder"):
        load_rows(config(source="parquet", path=str(tmp_path)))


def test_fewer_rows_than_a_step_takes(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(lines(TRL))
    made = {"data": {"source": "jsonl", "path": str(tmp_path / "rows.jsonl")}, "rollout": {"prompts_per_step": 2}}
    with pytest.raises(DataError, match=r"1 different rows, but a step takes rollout\.prompts_per_step = 2"):
        load_rows(Config.model_validate(made))


@pytest.mark.parametrize("template", ["", "no column", "{}", "{prompt"])
def test_bad_templates(read: Callable[..., list[Row]], template: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.template"):
        read(lines(TRL), template=template)


def test_reasoning_gym_is_a_function_of_the_seed() -> None:
    def load(seed: int, size: int) -> list[Row]:
        return load_rows(Config.model_validate({"run": {"seed": seed}, "data": {"size": size}}))

    rows = load(3, 16)
    assert rows[:8] == load(3, 8)
    assert len({prompt_id(row) for row in rows}) == 16
    assert not {row["prompt"] for row in rows} & {row["prompt"] for row in load(1000, 16)}  # it adds seed and index
    assert rows[0].keys() == {"prompt", "answer", "metadata", "data_source"}


def test_reasoning_gym_entries_survive_json() -> None:
    from reasoning_gym import create_dataset

    task = "graph_color"  # keys of its graph are numbers, edges are tuples
    entries = list(create_dataset(task, size=8, seed=0))
    rows = load_rows(config(task=task, size=8))
    assert [gym_entry(json.loads(json.dumps(row))) for row in rows] == entries


def test_composite_takes_its_parts_from_the_configuration() -> None:
    parts = [{"name": name, "weight": 1.0, "config": {}} for name in ("chain_sum", "gcd")]
    rows = load_rows(config(task="composite", size=8, args={"datasets": parts}))
    assert {row["metadata"]["source_dataset"] for row in rows} == {"chain_sum", "gcd"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"task": "chain_sums"}, "did you mean chain_sum"),
        ({"task": "zzz"}, "known: .*chain_sum"),
        ({"args": {"min_term": 2}}, "has no argument 'min_term'; known: .*min_terms"),
        ({"args": {"min_terms": 0}}, "chain_sum refuses them"),
    ],
)
def test_reasoning_gym_mistakes(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_rows(config(**data))


def test_freeze_and_thaw() -> None:
    value = {"a": (1, [2, (3,)]), "b": {1: "x", (0, 1): {"y": None}}, "c": {"__tuple__": [1]}, "d": 10**40}
    assert thaw(json.loads(json.dumps(freeze(value)))) == value
    assert freeze(TRL) == TRL
