"""The noise is what it claims to be: standard Gumbel, independent over tokens, positions and keys."""

from __future__ import annotations

import numpy as np
import pytest

from rhymed.histospec.sampling import noise

V = 64
ROWS = 20_000
WALKS = {
    "positions of one key": [(0x5EED, t) for t in range(ROWS)],
    "consecutive keys": [(k, 7) for k in range(ROWS)],
    "keys that differ in their highest bits": [(k << 49, 7) for k in range(ROWS)],
    "both": [(k, k) for k in range(ROWS)],
}


def deviation(counts, expected):
    """Chi-square, in standard deviations from its mean."""
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


@pytest.fixture(scope="module", params=WALKS)
def words(request):
    return np.stack([noise.hashes(key, position, V) for key, position in WALKS[request.param]])


def pairs(first, second, kinds):
    counts = np.bincount((first.astype(np.int64) * kinds + second).ravel(), minlength=kinds**2)
    return deviation(counts, counts.sum() / kinds**2)


@pytest.mark.parametrize("shift", [28, 24, 12, 0])
def test_every_part_of_a_word_is_uniform(words, shift):
    part = (words >> np.uint32(shift)) & np.uint32(15)
    assert deviation(np.bincount(part.ravel(), minlength=16), part.size / 16) < 4.5


@pytest.mark.parametrize("apart", [1, 2, 16])
def test_tokens_of_a_row_are_independent(words, apart):
    high = words >> np.uint32(27)
    assert pairs(high[:, :-apart], high[:, apart:], 32) < 4.5


@pytest.mark.parametrize("apart", [1, 2, 256])
def test_rows_are_independent(words, apart):
    high = words >> np.uint32(27)
    assert pairs(high[:-apart], high[apart:], 32) < 4.5
    winners = words.argmin(axis=1)
    assert pairs(winners[:-apart], winners[apart:], V) < 4.5


def test_rows_do_not_repeat_each_other_shifted(words):
    assert len(np.unique(words[:, 0])) > ROWS - 10
    assert len(np.unique(words[:, 1] - words[:, 0])) > ROWS - 10


def test_the_tail_has_the_mass_of_a_gumbel():
    g = np.concatenate([noise.gumbel(3, t, 2000) for t in range(500)])
    for level in (-1.0, 0.0, 2.0, 5.0, 8.0):
        above = 1 - np.exp(-np.exp(-level))
        assert abs((g > level).sum() - len(g) * above) < 4.5 * np.sqrt(len(g) * above)
    assert g.mean() == pytest.approx(np.euler_gamma, abs=5e-3)


def test_a_row_gives_no_noise_twice_and_every_key_of_64_bits_its_own():
    assert len(np.unique(noise.hashes(1, 2, 200_000))) == 200_000
    rows = {noise.row_word(key, position) for key in (0, 1, 2**63, 2**64 - 1) for position in range(1000)}
    assert len(rows) == 4000
