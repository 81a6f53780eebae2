"""Power cuts of recorded sessions; `python -m tests.hostile.disk` does hundreds."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.hostile.disk import interposed
from tests.hostile.disk.cuts import cut_checkpoints, cut_store
from tests.hostile.disk.record import File
from tests.hostile.disk.wholerun import cut_run

compiled = pytest.mark.skipif(not interposed.is_possible(), reason="needs gcc")


@pytest.mark.thorough
@compiled
def test_a_store_has_what_it_acknowledged_before_the_power_failed(tmp_path: Path) -> None:
    result = cut_store(tmp_path, interposed.build(tmp_path), cuts=20, seed=5)
    assert result.lost == []
    assert result.writes > result.cuts
    assert result.flushes > 10
    assert result.compared > 0


@pytest.mark.thorough
@compiled
def test_a_checkpoint_that_was_reported_outlives_the_power(tmp_path: Path) -> None:
    result = cut_checkpoints(tmp_path, interposed.build(tmp_path), cuts=40, seed=5)
    assert result.lost == []
    assert result.compared > 20


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(900)
@compiled
def test_a_run_can_be_resumed_after_the_power_failed(tmp_path: Path) -> None:
    result = cut_run(tmp_path, interposed.build(tmp_path), cuts=20, seed=5, resumes=1)
    assert result.lost == []
    assert result.compared > 10


def test_after_a_cut_a_sector_has_any_version_since_the_flush() -> None:
    file = File()
    file.write(1, 0, b"a" * 1024, through=False)
    file.flush(1)
    file.write(2, 0, b"b" * 1024, through=False)
    file.write(3, 512, b"c" * 512, through=False)
    found = {file.after_cut(random.Random(seed)) for seed in range(200)}
    assert found == {first * 512 + second * 512 for first in (b"a", b"b") for second in (b"a", b"b", b"c")}
    file.flush(2)
    found = {file.after_cut(random.Random(seed)) for seed in range(200)}
    assert found == {b"b" * 512 + second * 512 for second in (b"b", b"c")}


def test_after_a_cut_a_new_file_has_any_of_its_sizes() -> None:
    file = File()
    file.write(1, 0, b"a" * 600, through=False)
    file.resize(2, 0)
    file.write(3, 0, b"b" * 10, through=False)
    found = {file.after_cut(random.Random(seed)) for seed in range(200)}
    assert {len(content) for content in found} == {0, 600, 10}
    file.flush(3)
    assert {file.after_cut(random.Random(seed)) for seed in range(50)} == {b"b" * 10}


def test_what_is_written_through_is_durable() -> None:
    file = File()
    file.resize(1, 1024)
    file.flush(1)
    file.write(2, 0, b"a" * 600, through=False)
    file.write(3, 0, b"b" * 512, through=True)
    found = {file.after_cut(random.Random(seed)) for seed in range(100)}
    assert found == {b"b" * 512 + end.ljust(512, b"\0") for end in (b"", b"a" * 88)}
