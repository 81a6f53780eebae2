"""`rhymed history export`: what is in the file is what is in the store, and the file is whole or not there."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rhymed.core.messages import EVAL, SampleId
from rhymed.records.history import export
from tests.records.history.folders import APPLES, PEARS, ROWS, drafts_of, two_epochs


def test_every_sample_is_a_row(make_run, tmp_path: Path, rhymed) -> None:
    samples = [*two_epochs(), (-1, APPLES, 0, [7, 8], None), (EVAL + 1, PEARS, 0, [9], 1.0)]
    folder = make_run("some", samples, dropped=[SampleId(0, APPLES, 0)])
    status, out, err = rhymed("export", tmp_path / "out.parquet", folder)
    assert (status, err) == (0, "")
    assert "10 samples of 2 prompts, 127 tokens" in out
    table = pq.read_table(tmp_path / "out.parquet")
    assert table.schema.names == export.schema().names
    rows = table.to_pylist()
    assert [(row["prompt_id"], row["step"], row["index"]) for row in rows] == sorted(
        (prompt, step, index) for step, prompt, index, *_ in samples
    )
    found = {(row["step"], row["prompt_id"], row["index"]): row for row in rows}
    for step, prompt, index, tokens, reward in samples:
        row = found[step, prompt, index]
        assert (row["tokens"], row["length"], row["reward"]) == (tokens, len(tokens), reward)
        assert row["prompt_tokens"] == [0, 1, 2]
        drafted = drafts_of(SampleId(step, prompt, index), len(tokens))
        assert row["drafted"] == (None if drafted is None else drafted.tolist())
        assert json.loads(row["row"]) == ROWS[prompt == PEARS]
    row = found[2, APPLES, 0]
    assert (row["epoch"], row["policy_version"], row["state"], row["text"]) == (1, 2, "scored", "GHIJKLMNOy")
    assert [found[key]["epoch"] for key in ((-1, APPLES, 0), (EVAL + 1, PEARS, 0))] == [None, None]
    assert (json.loads(row["parts"]), found[2, APPLES, 1]["parts"]) == ({"exact": 1.0, "format": 0.25}, None)
    assert found[0, APPLES, 0]["state"] == "dropped"


def test_jsonl_has_the_same_rows(run: Path, tmp_path: Path, rhymed) -> None:
    rhymed("export", tmp_path / "out.parquet", run)
    rhymed("export", tmp_path / "out.jsonl", run)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert lines == pq.read_table(tmp_path / "out.parquet").to_pylist()


def test_it_is_written_in_groups(run: Path, tmp_path: Path, rhymed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "GROUP_ROWS", 3)
    rhymed("export", tmp_path / "out.parquet", run)
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 3
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 8


def test_a_file_is_not_replaced_unasked(run: Path, tmp_path: Path, rhymed) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("precious")
    status, _, err = rhymed("export", out, run)
    assert (status, "exists: name another file, or replace it with --force" in err) == (2, True)
    assert out.read_text() == "precious"
    assert rhymed("export", out, run, "--force")[0] == 0
    assert len(out.read_text().splitlines()) == 8


def test_a_failure_leaves_nothing_behind(run: Path, tmp_path: Path, rhymed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "GROUP_ROWS", 2)
    monkeypatch.setattr(export, "rows", broken_after(export.rows))
    out = tmp_path / "kept" / "out.parquet"
    out.parent.mkdir()
    status, _, err = rhymed("export", out, run)
    assert (status, "the disk is gone" in err) == (2, True)
    assert list(out.parent.iterdir()) == []


def broken_after(rows):
    def read(folder, prompt: str):
        if prompt != min(APPLES, PEARS):
            raise OSError("the disk is gone")
        return rows(folder, prompt)

    return read


def test_names_that_cannot_be_written_are_reported(run: Path, tmp_path: Path, rhymed) -> None:
    assert "name a file that ends in .parquet or .jsonl" in rhymed("export", tmp_path / "out.csv", run)[2]
    assert "is not a folder: make it first" in rhymed("export", tmp_path / "no" / "out.jsonl", run)[2]


def test_without_a_tokenizer_the_text_is_left_out(make_run, tmp_path: Path, rhymed) -> None:
    status, _, err = rhymed("export", tmp_path / "out.jsonl", make_run("traced", engine="trace"))
    assert (status, "without text: the trace engine has no tokenizer" in err) == (0, True)
    assert json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])["text"] is None
