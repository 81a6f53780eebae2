"""Torch operations for keyed sampling against the compiled sampler."""

from __future__ import annotations

import numpy as np
import pytest

from rhymed.histospec.sampling import cpu, noise

torch = pytest.importorskip("torch")

from tests.histospec.sampling import operations


def case(seed=0, vocabulary=997):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, 30)
    first = np.concatenate(([0], np.cumsum(lengths + 1)))
    x = (rng.standard_normal((int(first[-1]), vocabulary)) * 4).astype(np.float32)
    x[::7, 100:300] = -np.inf
    keys = rng.integers(0, 2**64 - 1, 30, dtype=np.uint64)
    positions = rng.integers(0, 10_000, 30)
    drafts = [
        noise.draw(x[first[r] + j], int(keys[r]), int(positions[r]) + j) for r in range(30) for j in range(lengths[r])
    ]
    flat = np.array(drafts, np.int64)
    flat[rng.random(len(flat)) < 0.3] = 3
    scale = np.where(np.arange(30) % 5 == 0, 0, 1).astype(np.float32)
    return cpu.Rows(x, first, flat, keys, positions, scale)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_equals_the_kernels(place, monkeypatch):
    if place == "cuda" and not torch.cuda.is_available():
        pytest.skip("no accelerator")
    monkeypatch.setattr(operations, "PART", 8 * 997)  # several parts
    for seed in range(5):
        rows = case(seed)
        tokens, logprobs = cpu.verify(rows, True)
        x = torch.from_numpy(rows.logits_NV).to(place)
        drafts = torch.from_numpy(rows.drafts).to(place)
        made = operations.verify(rows._replace(logits_NV=np.empty((0, 0), np.float32)), x, drafts, True).cpu()
        assert (made[0].numpy() == tokens).all()
        assert made.dtype == torch.int32
        assert made[1].view(torch.float32).numpy() == pytest.approx(logprobs, abs=1e-5)


def test_noise_is_the_references():
    keys, positions = [0, 5, 2**63 + 1, 2**64 - 1], [0, 1, 2**31, 77]
    words = torch.from_numpy(np.array(keys, np.uint64).view(np.int64))
    made = operations.gumbel(words, torch.tensor(positions), 5000)
    for row, key, position in zip(made.numpy(), keys, positions, strict=True):
        assert row == pytest.approx(noise.gumbel(key, position, 5000), rel=1e-12, abs=1e-12)


def test_what_is_no_number_never_wins():
    x = torch.randn(3, 50)
    x[0, :] = torch.nan
    x[1, 1:] = -torch.inf
    x[2, :] = -torch.inf
    rows = cpu.Rows(
        x.numpy(),
        np.arange(4),
        np.empty(0, np.int64),
        np.arange(3).astype(np.uint64),
        np.arange(3),
        np.ones(3, np.float32),
    )
    assert operations.verify(rows, x, None, False)[0].flatten().tolist() == [0, 0, 0]
