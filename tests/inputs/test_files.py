from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs.datasets import load_rows
from rhymed.inputs.rows import Row
from tests.inputs.datafiles import config


@pytest.mark.parametrize(
    ("content", "source", "message"),
    [
        (b"", "jsonl", "the dataset is empty"),
        (b"\n \n", "jsonl", "the dataset is empty"),
        (
            b'[\n{"prompt": "q"}\n]',
            "jsonl",
            r"it begins: \[; a \*.jsonl file is UTF-8 text",
        ),
        (b"\x1f\x8b\x08", "jsonl", "line 1: not UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\n", "jsonl", "it begins: version https://git-lfs"),
        (b'{"prompt": "q\xff"}', "jsonl", "line 1: not UTF-8"),
        (b'{"prompt": "q"}\n', "parquet", "not a readable parquet file.*or set data.source = 'jsonl'"),
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
    for value in (b"png", float("inf")):
        parquet.write_table(pa.Table.from_pylist([{"prompt": "q", "x": value}]), tmp_path / "made")
        with pytest.raises(DataError, match=r"row 0: column 'x' cannot be JSON .* drop it"):
            read((tmp_path / "made").read_bytes(), "parquet")


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file.*data\.path"):
        load_rows(config(source="jsonl", path=str(tmp_path / "none.jsonl")))
    with pytest.raises(DataError, match="is a folder"):
        load_rows(config(source="parquet", path=str(tmp_path)))


def test_a_mistyped_path_tells_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").touch()
    with pytest.raises(DataError, match=r"did you mean .*/train\.jsonl\?"):
        load_rows(config(path=str(tmp_path / "trian.jsonl")))
    with pytest.raises(DataError, match=rf"{tmp_path} contains train\.jsonl$"):
        load_rows(config(path=str(tmp_path / "gone" / "deep" / "zzz.jsonl")))


def test_parquet_without_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "rows.parquet").write_bytes(b"ROWS")
    with pytest.raises(ConfigError, match="pip install"):
        load_rows(config(path=str(tmp_path / "rows.parquet")))
