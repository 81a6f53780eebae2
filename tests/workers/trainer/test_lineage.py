"""What every step was trained on, and that a step that is trained again is there once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rhymed.core.errors import CheckpointError
from rhymed.core.messages import SampleId, SampleInfo
from rhymed_store.client import StoredSample
from rhymed_workers.trainer import lineage
from rhymed_workers.trainer.lineage import Lineage


def sample(step: int, index: int, tokens: list[int], reward: float | None = 1.0) -> StoredSample:
    info = SampleInfo(
        id=SampleId(step, "a" * 16, index),
        prompt_length=1,
        length=len(tokens),
        finish_reason="stop",
        versions=[(step, len(tokens))] if tokens else [],
        reward=reward,
    )
    return StoredSample(info, np.array(tokens, np.uint32))


def test_a_line_tells_what_a_step_was_trained_on() -> None:
    samples = [sample(0, 0, [1, 2]), sample(0, 1, [3])]
    line = Lineage().add(0, samples, "w")
    assert (line.step, line.samples, line.tokens, line.weights) == (0, 2, 3, "w")
    assert len(line.digest) == 32
    assert Lineage().add(0, samples[::-1], "w") == line


def test_no_two_lists_of_samples_have_one_digest() -> None:
    lists = [
        [sample(0, 0, [1, 2]), sample(0, 1, [3])],
        [sample(0, 0, [1]), sample(0, 1, [2, 3])],  # the same tokens, cut elsewhere
        [sample(0, 0, [1, 2])],
        [sample(0, 0, [1, 2]), sample(0, 0, [1, 2])],
        [sample(0, 0, [1, 2], None)],
        [sample(0, 0, [1, 2], 0.0)],
        [sample(1, 0, [1, 2])],
        [],
    ]
    assert len({Lineage().add(0, samples).digest for samples in lists}) == len(lists)


def test_a_step_that_is_trained_again_replaces_the_lost_future() -> None:
    kept = Lineage()
    for step in range(4):
        kept.add(step, [sample(step, 0, [step])])
    kept.add(2, [sample(2, 0, [9])])
    assert [line.step for line in kept.lines] == [0, 1, 2]
    assert kept.lines[2] == Lineage().add(2, [sample(2, 0, [9])])


def test_it_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    kept = Lineage()
    for step in range(3):
        kept.add(step, [sample(step, 0, [step])], f"{step}")
    kept.save(tmp_path)
    assert Lineage.load(tmp_path, 3).lines == kept.lines == lineage.read(tmp_path)
    assert all(len(text) < 200 for text in (tmp_path / lineage.FILE).read_text().splitlines())


def test_a_checkpoint_without_lineage_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lineage\.jsonl"):
        Lineage.load(tmp_path, 7)


@pytest.mark.parametrize("steps", [2, 4])
def test_one_that_does_not_fit_its_checkpoint_is_refused(tmp_path: Path, steps: int) -> None:
    kept = Lineage()
    for step in range(3):
        kept.add(step, [])
    kept.save(tmp_path)
    with pytest.raises(CheckpointError, match="does not list every step"):
        Lineage.load(tmp_path, steps)


def test_garbage_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / lineage.FILE).write_text('{"step": "x"}\n')
    with pytest.raises(CheckpointError, match=r"lineage\.jsonl"):
        Lineage.load(tmp_path, 1)
