"""The compiled kernels against the reference: the same tokens, and log-probs of the distribution that was sampled."""

from __future__ import annotations

import numpy as np
import pytest

from rhymed.histospec.sampling import noise
from rhymed.histospec.sampling.cpu import Rows, ThreadTeam, verify

RNG = np.random.default_rng(0)
V = 3001  # no multiple of anything


def plain(logits, keys, positions, scales=None):
    count = len(logits)
    scales = np.ones(count) if scales is None else scales
    return Rows(
        np.ascontiguousarray(logits, np.float32),
        np.arange(count + 1),
        np.empty(0, np.int64),
        np.asarray(keys, np.uint64),
        np.asarray(positions, np.int64),
        np.asarray(scales, np.float32),
    )


def logits(rows, spread=3.0, vocabulary=V):
    return (RNG.standard_normal((rows, vocabulary)) * spread).astype(np.float32)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 6.0, 100.0])
def test_tokens_are_the_references(spread):
    x = logits(50, spread)
    keys = RNG.integers(0, 2**63, 50).astype(np.uint64) * np.uint64(2)
    positions = RNG.integers(0, 2**31, 50)
    tokens, _ = verify(plain(x, keys, positions), False)
    expected = [noise.draw(*row) for row in zip(x, map(int, keys), map(int, positions), strict=True)]
    assert tokens[:, 0].tolist() == expected


@pytest.mark.parametrize("vocabulary", [1, 2, 255, 256, 257, 1025])
def test_any_size_of_vocabulary(vocabulary):
    x = logits(20, 2.0, vocabulary)
    tokens, logprobs = verify(plain(x, range(20), range(20)), True)
    assert tokens[:, 0].tolist() == [noise.draw(x[i], i, i) for i in range(20)]
    assert logprobs[:, 0] == pytest.approx(log_softmax(x)[np.arange(20), tokens[:, 0]], abs=2e-6)


def log_softmax(x):
    x = x.astype(np.float64)
    return x - np.log(np.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True)) - x.max(1, keepdims=True)


def test_logprobs_are_those_of_the_scaled_and_masked_row():
    x = logits(30, 8.0)
    x[:, 100:2000] = -np.inf
    scales = RNG.uniform(0.3, 3.0, 30).astype(np.float32)
    tokens, logprobs = verify(plain(x, range(30), [9] * 30, scales), True)
    scaled = x * scales[:, None]
    assert tokens[:, 0].tolist() == [noise.draw(scaled[i], i, 9) for i in range(30)]
    assert logprobs[:, 0] == pytest.approx(log_softmax(scaled)[np.arange(30), tokens[:, 0]], abs=3e-6)


def test_a_scale_of_zero_takes_the_lowest_of_the_largest():
    x = logits(4)
    x[0, 7] = x[0, 900] = x[0].max() + 1
    x[1, :] = 2.0
    tokens, logprobs = verify(plain(x, [1, 2, 3, 4], [0] * 4, np.zeros(4)), True)
    assert tokens[:, 0].tolist() == x.argmax(1).tolist()
    assert logprobs[1, 0] == pytest.approx(-np.log(V), abs=1e-6)


def test_what_is_no_number_never_wins_and_never_crashes():
    x = logits(6)
    x[0, :] = np.nan
    x[1, 1:] = -np.inf
    x[2, :] = -np.inf
    x[3, ::2] = np.nan
    x[4, 5] = np.inf
    x[5, :] = -np.nan
    for scale in (0.0, 1.0):
        tokens, _ = verify(plain(x, range(6), range(6), [scale] * 6), True)
        assert tokens[[0, 1, 2, 4, 5], 0].tolist() == [0, 0, 0, 5, 0]
        assert tokens[3, 0] % 2 == 1
    assert verify(plain(x, range(6), range(6)), False)[0][:, 0].tolist() == [noise.draw(x[i], i, i) for i in range(6)]


def drafted(x, lengths, drafts, keys, positions):
    first = np.concatenate(([0], np.cumsum(np.asarray(lengths) + 1)))
    flat = np.array([token for draft in drafts for token in draft], np.int64)
    ones = np.ones(len(lengths), np.float32)
    return Rows(x, first, flat, np.asarray(keys, np.uint64), np.asarray(positions, np.int64), ones)


def story(rows_x, keys, positions, drafts):
    """What sampling one token after the other gives: up to the first that differs from its draft."""
    result, at = [], 0
    for key, position, draft in zip(keys, positions, drafts, strict=True):
        tokens = []
        for j in range(len(draft) + 1):
            tokens.append(noise.draw(rows_x[at + j], key, position + j))
            if j < len(draft) and draft[j] != tokens[j]:
                break
        result.append(tokens)
        at += len(draft) + 1
    return result


def make_drafts(rows, seed=5):
    """Right, wrong, half right, empty drafts and ids that no token has; right ones are known from the noise."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 7, rows)
    x = logits(int(lengths.sum()) + rows)
    keys, positions = list(range(100, 100 + rows)), rng.integers(0, 999, rows).tolist()
    drafts, at = [], 0
    for r, length in enumerate(lengths):
        draft = [noise.draw(x[at + j], keys[r], positions[r] + j) for j in range(length)]
        if length and r % 3 == 1:
            draft[rng.integers(length)] = [-1, V, int(rng.integers(V))][r % 3]
        drafts.append(draft)
        at += length + 1
    return x, lengths, drafts, keys, positions


def test_drafts_are_verified_as_if_sampled_one_by_one():
    x, lengths, drafts, keys, positions = make_drafts(40)
    tokens, logprobs = verify(drafted(x, lengths, drafts, keys, positions), True)
    expected = story(x, keys, positions, drafts)
    assert [row[row >= 0].tolist() for row in tokens] == expected
    assert tokens.shape == (40, lengths.max() + 1)
    assert tokens.dtype == np.int32
    assert ((tokens < 0) <= (logprobs == 0)).all()
    assert any(len(row) == length + 1 for row, length in zip(expected, lengths, strict=True) if length)
    assert any(len(row) <= length for row, length in zip(expected, lengths, strict=True))


def test_neither_threads_nor_company_change_a_bit(monkeypatch):
    monkeypatch.setattr("rhymed.histospec.sampling.cpu.LEAST_SHARED", 0)
    x, lengths, drafts, keys, positions = make_drafts(17)
    together = verify(drafted(x, lengths, drafts, keys, positions), True)
    for size in (1, 2, 3, 40):
        threads = ThreadTeam(size)
        shared = verify(drafted(x, lengths, drafts, keys, positions), True, threads)
        threads.close()
        assert (shared[0] == together[0]).all()
        assert (shared[1].view(np.int32) == together[1].view(np.int32)).all()
    at = 0
    for r, length in enumerate(lengths):
        alone = verify(drafted(x[at : at + length + 1], [length], [drafts[r]], keys[r : r + 1], [positions[r]]), True)
        assert (alone[0][0] == together[0][r, : length + 1]).all()
        assert (alone[1][0] == together[1][r, : length + 1]).all()
        at += length + 1


def test_draws_follow_the_distribution():
    x = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625], np.float32))
    for keys, positions in ((np.arange(40_000), np.zeros(40_000)), (np.full(40_000, 77), np.arange(40_000))):
        tokens, _ = verify(plain(np.tile(x, (40_000, 1)), keys, positions), False)
        counts = np.bincount(tokens[:, 0], minlength=5)
        expected = 40_000 * np.exp(x.astype(np.float64))
        assert ((counts - expected) ** 2 / expected).sum() < 27.0  # 4 degrees of freedom: p = 2e-5
        pairs = np.bincount(tokens[:-1, 0] * 5 + tokens[1:, 0], minlength=25)
        expected = 39_999 * np.exp(x[:, None].astype(np.float64) + x[None, :]).ravel()
        assert ((pairs - expected) ** 2 / expected).sum() < 65.0  # 24 degrees of freedom: p = 1e-5
