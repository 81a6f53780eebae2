"""Drafts of an engine's own head in the drafter: who drafts for whom, what is learned from it, and what it never
changes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rhymed.histospec.drafts.engine import EngineDrafts
from tests.histospec.scripted_engine import Engine, words

DEPTH = 4


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(budget="rate", engine=DEPTH)
    budget: Any = made.drafter._budget  # whether drafts pay on this machine is not what is tested
    budget.paused, budget.choose = lambda steps=1: 0, lambda survival, lengths: lengths
    yield made
    made.drafter.close()
    made.builder.close()


def knowing(engine: Engine, right: int) -> None:
    """The head knows the scripts of the engine, and errs from its `right`th token on."""

    def head(running: list[str]) -> Any:
        tokens = np.full((len(running), DEPTH), 3, np.int32)
        for row, name in enumerate(running):
            rest = engine.scripts[name][len(engine.requests[name].response) :][:right]
            tokens[row, : len(rest)] = rest
        return tokens

    engine.head = head


def test_a_head_drafts_what_history_has_not(engine: Engine) -> None:
    script = words(0)
    knowing(engine, DEPTH)
    engine.add("a", script)
    engine.finish()
    head = engine.drafter.engine
    assert head is not None
    assert engine.forwards < len(script) / 3
    assert head.accepted == len(script) - engine.forwards


def test_history_that_repeats_is_not_replaced(engine: Engine) -> None:
    script = words(0)
    engine.remember(script)
    knowing(engine, 0)
    for name in ("a", "b", "c"):
        engine.add(name, script)
        engine.finish()
    head = engine.drafter.engine
    assert head is not None
    assert engine.forwards < len(script)
    assert head.accepted == 0


def test_wrong_drafts_of_a_head_are_learned_and_say_nothing_about_history(engine: Engine) -> None:
    script = words(1, 300)
    knowing(engine, 0)
    seen: list[int] = []
    calibration: Any = engine.drafter._calibration
    calibration.observe = lambda drafts, tried, right: seen.append(int(tried.sum()))
    engine.add("a", script)
    engine.finish()
    head = engine.drafter.engine
    assert head is not None
    assert engine.forwards == len(script)
    assert head._tally.share[0] < 0.05
    assert sum(seen) == 0


def test_a_head_that_begins_to_be_right_is_noticed_while_nothing_of_it_is_verified(engine: Engine) -> None:
    knowing(engine, 0)
    engine.add("a", words(1, 300))
    engine.finish()
    head, budget = engine.drafter.engine, engine.drafter._budget
    assert head is not None
    low, verified = float(head._tally.share[0]), head.verified
    budget.choose = lambda survival, lengths: lengths * 0  # type: ignore[method-assign]
    knowing(engine, DEPTH)
    engine.add("b", words(2, 300))
    engine.finish()
    assert head.verified == verified
    assert head._tally.share[0] > 5 * low


def test_nothing_is_learned_from_a_prompt_that_is_not_whole() -> None:
    """The head drafts after each part of a prompt, but what the engine makes next is the response's first token."""
    head, none = EngineDrafts(DEPTH), np.zeros(1, np.int32)
    nothing: Any = SimpleNamespace(
        tokens=np.zeros((1, 8), np.int32), survival=np.zeros((1, 8), np.float32), lengths=np.zeros(1, np.int32)
    )
    for limit, share in ((0, 0.5), (1, 0.0)):
        for _ in range(200):
            assert not head.add(nothing, np.full((1, DEPTH), 3, np.int32), np.array([limit], np.int32), paused=True)
            head.learn(none.copy(), none.copy(), np.array([7], np.int32))
        assert head._tally.share[0] == pytest.approx(share, abs=0.05)


def test_carried_tokens_stay_the_draft(engine: Engine) -> None:
    script = words(2)
    knowing(engine, 0)
    engine.add("a", script, carried=script)
    engine.finish()
    assert engine.forwards < len(script) / 3
