import numpy as np
import pytest

from rhymed.histospec.drafts.trust import CLASSES, MEMORY, OTHER, OWN, POWER, PROMPT, RECENT, Trust, Votes, class_of
from rhymed.histospec.index.arena import ONE


def votes(*rows):
    """Rows of (token, class)."""
    width = max(map(len, rows))
    tokens, classes = np.full((len(rows), width), -1, np.int32), np.zeros((len(rows), width), np.int16)
    for i, row in enumerate(rows):
        for j, (token, at) in enumerate(row):
            tokens[i, j], classes[i, j] = token, at
    return Votes(tokens, classes, np.array([len(row) for row in rows], np.int32))


def test_every_place_is_of_one_class():
    found = {
        class_of(match, alike, kind)
        for match in range(33)
        for alike in range(0, ONE + 1)
        for kind in (OWN, PROMPT, OTHER, RECENT)
    }
    assert found == set(range(CLASSES))


def test_a_longer_match_and_a_more_alike_text_are_trusted_more_at_first():
    trust = Trust()
    assert trust.right[class_of(12, 600, OTHER)] > trust.right[class_of(2, 600, OTHER)]
    assert trust.right[class_of(4, 900, OTHER)] > trust.right[class_of(4, 100, OTHER)]
    assert ((trust.right > 0) & (trust.right < 1)).all()


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_trust_converges_to_how_often_a_class_is_right(rate):
    random, trust = np.random.default_rng(0), Trust()
    for right in random.random(4000) < rate:
        trust.observe(votes([(5, 3), (9, 4)]), np.array([5 if right else 9], np.int32))
    assert trust.right[3] == pytest.approx(rate, abs=0.03)
    assert trust.right[4] == pytest.approx(1 - rate, abs=0.03)
    assert trust.weight[3] == pytest.approx((trust.right[3] / (1 - trust.right[3])) ** POWER, rel=1e-3)


def test_what_came_is_not_always_known_and_then_teaches_nothing():
    trust = Trust()
    before = trust.right.copy()
    trust.observe(votes([(5, 3)], []), np.array([-1, 7], np.int32))
    assert (trust.right == before).all()


def test_a_policy_that_changes_is_followed():
    trust = Trust()
    for token in (5, 6):  # it is right for long, then never again
        for _ in range(int(1.5 * MEMORY)):
            trust.observe(votes([(5, 3)]), np.array([token], np.int32))
    assert trust.right[3] < 0.35
