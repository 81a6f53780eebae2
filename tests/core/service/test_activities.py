from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from rhymed.core.service.stopwatch import ACTIVITIES, HEX, PREFIX, seconds_of, stats_of

SIGHT = {  # linear RGB as the colour-blind see it, Machado et al. 2009
    "usual": np.eye(3),
    "deuteranopia": np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]),
    "protanopia": np.array([[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]),
    "tritanopia": np.array([[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]]),
}
CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
OKLAB = np.array([[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]])
GROUNDS = "#ffffff", "#15181c"


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def apart(one: str, other: str, sight: np.ndarray) -> float:
    """Distance in OKLab; 0.02 is about the smallest visible one."""
    seen = [OKLAB @ np.cbrt(CONES @ np.clip(sight @ linear(colour), 0, 1)) for colour in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("sight", SIGHT)
def test_no_two_activities_of_a_role_look_alike(sight: str) -> None:
    for names in ACTIVITIES.values():
        for one, other in combinations(names, 2):
            assert apart(HEX[one], HEX[other], SIGHT[sight]) > 0.09, (one, other)


def test_every_colour_stands_out_from_white_and_from_near_black() -> None:
    for name, colour in HEX.items():
        for ground in GROUNDS:
            light, dark = sorted([luminance(colour), luminance(ground)], reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 1.95, (name, ground)


def test_all_tables_know_all_activities() -> None:
    names = {name for names in ACTIVITIES.values() for name in names}
    assert names == set(HEX)
    for names in ACTIVITIES.values():
        assert [name in ("idle", "wait") for name in names] == [False] * (len(names) - 1) + [True]


def test_stats_there_and_back() -> None:
    stats = stats_of("reward", {"score": 1.5, "idle": 2.0})
    assert stats == {f"{PREFIX}score": 1.5, f"{PREFIX}idle": 2.0}
    assert seconds_of("reward", {**stats, "reward/scored": 3.0}) == {"score": 1.5, "idle": 2.0}
    assert seconds_of("trainer", stats) == {}
    assert seconds_of("nobody", stats) == {}
