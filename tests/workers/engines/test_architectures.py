"""Engine and trainer agree after every update, whatever the architecture: the command that made the table in
docs/models.md, on one model of each grade and on mixtures of experts. In minutes: real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import architectures
from tests.packages import needs

pytestmark = [needs("vllm"), needs("peft"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(1500)]


@pytest.mark.parametrize(("name", "grade"), [("qwen3_moe", "packed"), ("gpt_oss", "rows"), ("falcon_h1", "alone")])
def test_the_engine_samples_from_what_was_trained(tmp_path: Path, name: str, grade: str) -> None:
    (row,) = architectures.run(quick=False, names=[name], out=tmp_path)["rows"]
    assert row["grade"] == grade
    assert row["names"], "published under the names on disk"
    assert row["export"], "loaded by transformers"
    assert len(row["mismatch"]) == architectures.UPDATES + 1
    assert max(*row["mismatch"], row["mismatch with lora"]) < 1e-10 < 1e-3 < min(row["with weights of before"]), row
    assert row["samples with the same tokens"] == "6 of 6"
