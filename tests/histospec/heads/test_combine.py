"""A head in addition to history in the drafter: who drafts for whom, what is learned from it, and what it never
changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.histospec.scripted_engine import Engine, words


class Oracle:
    """A head that knows the scripts of a scripted engine, and errs from its `right`th token on."""

    depth = 4
    guess = (0.5, 0.3, 0.2, 0.1)

    def __init__(self, engine: Engine, right: int = 4) -> None:
        self.engine, self.right, self.asked = engine, right, 0

    def draft(self, rows):
        self.asked += len(rows)
        tokens = np.full((len(rows), self.depth), 3, np.int32)
        running = [name for name in self.engine.scripts if name in self.engine.requests]
        for place, row in enumerate(rows):
            name = running[row]
            rest = self.engine.scripts[name][len(self.engine.written[name]) :][: self.right]
            tokens[place, : len(rest)] = rest
        return tokens, np.full((len(rows), self.depth), 6.0, np.float32)


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(budget="rate")
    made.drafter._budget.paused = lambda steps=1: 0  # whether drafts pay on this machine is not what is tested
    made.drafter._budget.choose = lambda survival, lengths: lengths
    made.drafter._budget.rate = lambda survival, lengths, extra_s=0.0: 1.0 + float(lengths.sum())
    yield made
    made.drafter.close()
    made.builder.close()


def test_a_head_drafts_what_history_has_not(engine):
    script = words(0)
    head = Oracle(engine)
    engine.drafter.use_head(head)
    engine.add("a", script)
    engine.finish()
    counts = engine.drafter.head_counts()
    assert engine.forwards < len(script) / 3
    assert counts.accepted == len(script) - engine.forwards
    assert counts.passes == head.asked > 0
    assert "100% of these accepted" in str(counts)


def test_history_that_repeats_is_not_replaced(engine):
    script = words(0)
    engine.remember(script)
    engine.drafter.use_head(Oracle(engine, right=0))
    for name in ("a", "b", "c"):
        engine.add(name, script)
        engine.finish()
    assert engine.forwards < len(script)
    assert engine.drafter.head_counts().accepted == 0


def test_wrong_drafts_of_a_head_are_learned_and_say_nothing_about_history(engine):
    script = words(1, 300)
    engine.drafter.use_head(Oracle(engine, right=0))
    engine.drafter._calibration.observe = lambda drafts, tried, right: seen.append(tried.tolist())
    seen: list[list[int]] = []
    engine.add("a", script)
    engine.finish()
    assert engine.forwards == len(script)
    assert engine.drafter._combined.gain.survival[0] < 0.2
    assert sum(map(sum, seen)) == 0


def test_carried_tokens_stay_the_draft(engine):
    script = words(2)
    engine.drafter.use_head(Oracle(engine, right=0))
    engine.add("a", script, carried=script)
    engine.finish()
    assert engine.forwards < len(script) / 3


def test_another_budget_has_no_head():
    engine = Engine(budget="fixed")
    engine.drafter.use_head(Oracle(engine))
    assert engine.drafter.head_counts() is None
    engine.drafter.close()
    engine.builder.close()
