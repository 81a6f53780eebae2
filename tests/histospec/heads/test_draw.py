"""Drafts of a head by the sampler's noise: equal to the definition, and right as often as theory says."""

from __future__ import annotations

import numpy as np
import pytest

from rhymed.histospec.heads.model import draw
from rhymed.histospec.sampling import noise

V, B = 700, 64


def drawn(logits, ids, keys, positions, scale):
    tokens, lead = np.empty(len(logits), np.int32), np.empty(len(logits), np.float32)
    draw(logits.astype(np.float32), ids.astype(np.int32), keys, positions, scale, tokens, lead)
    return tokens, lead


@pytest.mark.parametrize("count", [V, 101, 1])
def test_a_draft_is_the_token_that_this_noise_draws_from_the_heads_logits(count):
    maker = np.random.default_rng(0)
    ids = np.sort(maker.choice(V, count, replace=False))
    logits, keys = maker.normal(size=(B, count)) * 3, maker.integers(0, 2**63, B).astype(np.uint64)
    positions, scale = np.arange(B), np.full(B, 1 / 0.7, np.float32)
    tokens, lead = drawn(logits, ids, keys, positions, scale)
    for row in range(B):
        z = logits[row].astype(np.float32) * scale[row]
        scores = z + noise.gumbel(int(keys[row]), int(positions[row]), V)[ids]
        assert tokens[row] == ids[scores.argmax()]
        if count > 1:
            best, second = np.sort(scores)[-1:-3:-1]
            assert lead[row] == pytest.approx(best - second, abs=1e-4)


def test_without_noise_it_is_the_most_probable_token():
    logits = np.random.default_rng(1).normal(size=(B, V))
    zeros = np.zeros(B, np.int64)
    tokens, lead = drawn(logits, np.arange(V), zeros.astype(np.uint64), zeros, np.zeros(B, np.float32))
    assert tokens.tolist() == logits.astype(np.float32).argmax(1).tolist()
    assert (lead > 0).all()


def test_coupled_drafts_are_right_as_often_as_theory_says_and_likeliest_ones_less():
    """The head's distribution is near the policy's: at least (1 - TV) / (1 + TV), against max p."""
    maker, count = np.random.default_rng(2), 4000
    z = np.log(np.array([0.3, 0.25, 0.2, 0.15, 0.1]))
    q = z + maker.normal(size=5) * 0.2
    p, draft = np.exp(z), np.exp(q) / np.exp(q).sum()
    apart = np.abs(p - draft).sum() / 2
    keys, positions = np.arange(count).astype(np.uint64), np.full(count, 9)
    ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
    truth, _ = drawn(np.tile(z, (count, 1)), np.arange(5), keys, positions, ones)
    coupled, _ = drawn(np.tile(q, (count, 1)), np.arange(5), keys, positions, ones)
    likeliest, _ = drawn(np.tile(q, (count, 1)), np.arange(5), keys, positions, zeros)
    assert (coupled == truth).mean() > (1 - apart) / (1 + apart) - 0.03
    assert (likeliest == truth).mean() < 0.35 < (coupled == truth).mean()
