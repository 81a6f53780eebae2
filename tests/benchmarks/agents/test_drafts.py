from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.agents.drafts import _epoch
from benchmarks.agents.recorded import Recorded, read
from benchmarks.traces import Response, Trace
from rhymed.core.errors import ConfigError
from rhymed.histospec.drafts.calibration import Calibration
from rhymed.histospec.drafts.trust import Trust
from tests.records.history.fixtures import in_turns, make_run, run, tokenizer

__all__ = ["in_turns", "make_run", "run", "tokenizer"]


def recorded() -> Recorded:
    """A call, its result, and a sentence about it, said nearly the same in two epochs."""
    prompt = np.arange(300, 320, dtype=np.int32)
    responses, runs = [], []
    for epoch in range(2):
        for sample in range(4):
            tokens = [*range(10, 40), 900 + sample, 950 + epoch, *range(50, 80), 2]
            responses.append(Response(0, epoch, sample, 1.0, np.array(tokens, np.int32)))
            runs.append([30, 2, 31])
    return Recorded(Trace([prompt], responses), runs)


def test_turns_are_counted_apart_and_history_knows_the_next_one() -> None:
    given = recorded()
    responses, masks = given.of(1)
    assert len(responses) == 4
    assert masks[0].tolist() == [True] * 30 + [False] * 2 + [True] * 31
    learned = {"calibration": Calibration(), "trust": Trust()}
    rows = _epoch(given.trace, 1, responses, masks, suffix=False, learned=learned)
    assert set(rows) == {"ngram", "siblings", "history"}
    for row in rows.values():
        assert row["turn_1"]["tokens"] == 4 * 30
        assert row["later_turns"]["tokens"] == 4 * 31
    assert rows["history"]["later_turns"]["tokens_per_forward"] > rows["ngram"]["later_turns"]["tokens_per_forward"]


def test_a_run_without_turns_is_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match="0 epochs of samples in turns, at least two are needed"):
        read(run)


def test_history_needs_an_epoch_before(in_turns: Path) -> None:
    with pytest.raises(ConfigError, match="1 epochs of samples in turns, at least two are needed"):
        read(in_turns)
