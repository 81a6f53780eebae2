import numpy as np
import pytest

from rhymed.histospec.drafts.calibration import CELLS, Calibration
from rhymed.histospec.drafts.trust import Trust
from rhymed.histospec.drafts.types import Matching
from rhymed.histospec.drafts.voting import draft
from rhymed.histospec.index.index import Index


def test_a_guess_is_a_probability_before_anything_was_seen():
    table = Calibration().table
    assert table.shape == (CELLS,)
    assert ((table > 0) & (table < 1)).all()


@pytest.mark.parametrize("rate", [0.3, 0.8, 0.97])
def test_survival_converges_to_what_a_source_accepts(rate):
    """A source whose every drafted token is accepted with one probability, whatever the evidence."""
    random = np.random.default_rng(0)
    index = Index(np.arange(8, dtype=np.int32))
    index.add(np.arange(100, 140, dtype=np.int32), age=1)
    rows = np.array([index.open() for _ in range(16)], np.int32)
    calibration, settings = Calibration(), Matching(longest=4, floor=0.0)
    none, empty = np.zeros(len(rows) + 1, np.int32), np.zeros(0, np.int32)
    limits = np.full(len(rows), 4, np.int32)
    for _ in range(300):
        drafts = draft([index] * len(rows), rows, empty, none, limits, settings, calibration, Trust())
        accepted = (random.random((len(rows), 4)) < rate).cumprod(axis=1).sum(axis=1).astype(np.int32)
        calibration.observe(drafts, drafts.lengths, accepted)
    drafts = draft([index] * len(rows), rows, empty, none, limits, settings, calibration, Trust())
    # Form sorts the requests by luck here; on the average of them the estimate is right.
    assert drafts.survival.mean(axis=0) == pytest.approx(rate ** np.arange(1, 5), abs=0.08)
    assert (np.diff(drafts.survival, axis=1) <= 0).all()
    assert ((drafts.survival >= 0) & (drafts.survival <= 1)).all()


def test_what_was_not_verified_teaches_nothing():
    index = Index(np.arange(8, dtype=np.int32))
    index.add(np.arange(100, 140, dtype=np.int32), age=1)
    rows, calibration = np.array([index.open()], np.int32), Calibration()
    before = calibration.table.copy()
    offsets, limits = np.zeros(2, np.int32), np.full(1, 8, np.int32)
    drafts = draft([index], rows, np.zeros(0, np.int32), offsets, limits, Matching(), calibration, Trust())
    calibration.observe(drafts, np.zeros(1, np.int32), np.zeros(1, np.int32))
    assert (calibration.table == before).all()
