"""When a head's pass pays: its cost and gain are learned, and a head that does not pay is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from rhymed.histospec.drafts.budget import Budget
from rhymed.histospec.heads.combine import LEAST, Calibration, HeadGain, HeadPause

BATCH, DEPTH = 8, 4
FORWARD_S, TOKEN_S = 0.030, 0.0005


def seconds(tokens: int) -> float:
    return FORWARD_S + TOKEN_S * tokens


@pytest.fixture
def budget() -> Budget:
    """It has learned what a step costs."""
    made = Budget(512)
    for step in range(200):
        tokens = BATCH * (1 + step % 5)
        made.observe(BATCH, tokens, seconds(tokens), tokens)
    return made


def without() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """History drafts nothing."""
    return np.zeros((BATCH, 8), np.float32), np.zeros(BATCH, np.int32), np.full(BATCH, 8, np.int32)


def gain_of(survival: list[float], pass_s: float) -> HeadGain:
    made = HeadGain()
    for _ in range(400):
        made.drafted(np.tile(np.array(survival, np.float32), (BATCH, 1)), pass_s)
    return made


def test_a_cheap_head_drafts_where_history_has_nothing(budget):
    rows, alone = gain_of([0.6, 0.4, 0.3, 0.2], 0.002).choose(budget, *without())
    assert rows.tolist() == list(range(BATCH))
    assert alone == pytest.approx(BATCH / seconds(BATCH), rel=0.05)


@pytest.mark.parametrize("width", [1, 3])
def test_drafts_may_be_shorter_than_the_heads(budget, width):
    survival, lengths, limits = without()
    given = survival[:, :width], lengths, np.minimum(limits, width)
    rows, _ = gain_of([0.6, 0.4, 0.3, 0.2], 0.002).choose(budget, *given)
    assert rows.tolist() == list(range(BATCH))


def test_a_head_that_costs_more_than_it_gives_does_not_draft(budget):
    for gain in (gain_of([0.6, 0.4, 0.3, 0.2], 0.1), gain_of([0.02, 0, 0, 0], 0.002)):
        chosen = [len(gain.choose(budget, *without())[0]) for _ in range(2000)]
        assert sum(map(bool, chosen)) < 100  # it is tried now and then
        assert chosen[0] == 0


def test_rows_that_history_drafts_well_stay_its_own(budget):
    survival, lengths, limits = without()
    survival[:3], lengths[:3] = 0.95, 2
    rows, _ = gain_of([0.6, 0.4, 0.3, 0.2], 0.002).choose(budget, survival, lengths, limits)
    assert rows.tolist() == list(range(3, BATCH))
    limits[5:] = 0
    rows, _ = gain_of([0.6, 0.4, 0.3, 0.2], 0.002).choose(budget, survival, lengths, limits)
    assert rows.tolist() == [3, 4]


def test_a_measured_loss_pauses_it_for_longer_each_time(budget):
    """Whatever is predicted: the steps with its drafts took longer than history alone would have."""
    gain, ran = gain_of([0.6, 0.4, 0.3, 0.2], 0.002), []
    for _ in range(6000):
        rows, alone = gain.choose(budget, *without())
        ran.append(len(rows) > 0)
        if len(rows):
            gain.observe(BATCH, alone, 1.1 * BATCH / alone)
    assert sum(ran[:100]) >= HeadPause.WINDOW
    assert sum(ran[3000:]) < 60


def test_a_measured_gain_keeps_it(budget):
    gain = gain_of([0.6, 0.4, 0.3, 0.2], 0.002)
    for _ in range(300):
        rows, alone = gain.choose(budget, *without())
        assert len(rows) == BATCH
        gain.observe(BATCH, alone, BATCH / alone / (LEAST + 0.1))


def test_the_calibration_learns_by_lead_and_depth():
    calibration, maker = Calibration(DEPTH), np.random.default_rng(0)
    for _ in range(300):
        leads = np.where(np.arange(BATCH)[:, None] % 2, 5.0, 0.1) * np.ones(DEPTH)
        right = np.where(np.arange(BATCH) % 2, (maker.random((BATCH, DEPTH)) < 0.9).cumprod(1).sum(1), 0)
        cells = calibration.cells(leads.astype(np.float32))
        calibration.observe(cells, np.full(BATCH, DEPTH, np.int32), right.astype(np.int32))
    survival = calibration.survival(calibration.cells(np.array([[0.1] * DEPTH, [5.0] * DEPTH], np.float32)))
    assert survival[0, 0] < 0.05
    assert survival[1].tolist() == pytest.approx([0.9**depth for depth in range(1, DEPTH + 1)], abs=0.05)


def test_a_head_of_which_nothing_is_measured_is_tried(budget):
    assert len(HeadGain((0.6, 0.3, 0.2, 0.1)).choose(budget, *without())[0]) == BATCH
    assert len(HeadGain((0.01, 0, 0, 0)).choose(budget, *without())[0]) == 0
