"""Versions of tokens, from the times of steps and of changes."""

from __future__ import annotations

from rhymed_workers.engines.client import KEPT, Labels


def test_a_story() -> None:
    labels = Labels()
    labels.changed(4, 10.0)
    labels.made("a", 0, 11.0)
    labels.changed(5, 12.0)
    labels.made("a", 3, 11.9)  # processed after the change, made before it
    labels.made("b", 0, 11.9)
    labels.made("a", 5, 12.1)
    labels.made("b", 1, 13.0)
    labels.made("b", 2, 14.0)
    assert labels.spans("a", 6) == [(4, 5), (5, 1)]
    assert labels.spans("b", 4) == [(4, 1), (5, 3)]
    labels.forget("a")
    assert labels.spans("a", 6) == labels.spans("unknown", 6) == []


def test_tokens_that_were_cut_off_have_no_span() -> None:
    labels = Labels()
    labels.changed(1, 1.0)
    labels.made("a", 0, 2.0)
    labels.changed(2, 3.0)
    labels.made("a", 4, 4.0)
    assert labels.spans("a", 4) == [(1, 4)]
    assert labels.spans("a", 0) == []


def test_old_changes_are_dropped_and_new_ones_stay_exact() -> None:
    labels = Labels()
    for version in range(1000):
        labels.changed(version, float(version))
    labels.made("a", 0, 998.5)
    labels.made("a", 2, 999.5)
    assert labels.spans("a", 3) == [(998, 2), (999, 1)]
    assert len(labels._times) == KEPT
