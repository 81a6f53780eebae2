"""What a scorer may return, in the forms of TRL and verl."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rhymed.core.config import Config
from rhymed.core.errors import RewardError
from rhymed_workers.reward.scorers.load import RewardFunction, load_scorers
from rhymed_workers.reward.scorers.result import Verdict, read

TOKENS, TURN_ENDS = [5, 6, 7], [0, 2]


def result(value: Any) -> Verdict | None:
    return read(value, "score", TOKENS, TURN_ENDS, optional=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, Verdict(0.5)),
        ({"score": 0.5, "acc": True, "pred": "5"}, Verdict(0.5, named={"acc": 1.0})),
        ({"reward": 0.5, "score": 1, "bad": math.nan, 7: 1.0, "many": [1, 2]}, Verdict(1.0)),
        (
            {"score": 0, **{f"{at:02}": at for at in range(40)}},
            Verdict(0, named={f"{at:02}": at for at in range(32)}),
        ),
        (
            {"turn_rewards": [0.5, 0.25]},
            Verdict(
                0.75,
                token_rewards=[
                    (0, 0.5),
                    (2, 0.25),
                ],
            ),
        ),
        ({"turn_rewards": (0, 1), "part": 2}, Verdict(1.0, named={"part": 2.0})),  # where a reward is anyway
        (
            {"token_rewards": np.array([1.0, -2.0, 0.0])},
            Verdict(
                -1.0,
                token_rewards=[
                    (0, 1.0),
                    (1, -2.0),
                ],
            ),
        ),
        (
            {"turn_rewards": [1, 2], "token_rewards": [1, 0, 3]},
            Verdict(
                7.0,
                token_rewards=[
                    (0, 2.0),
                    (2, 5.0),
                ],
            ),
        ),
        (
            {"score": 0.3, "turn_rewards": [0.1, 0.2]},
            Verdict(
                0.3,
                token_rewards=[
                    (0, 0.1),
                    (2, 0.2),
                ],
            ),
        ),
        ({"score": 1, "turn_rewards": None, "token_rewards": None}, Verdict(1.0)),
    ],
)
def test_a_number_or_a_dict(value: Any, expected: Verdict) -> None:
    assert result(value) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"turn_rewards": [1]}, "1 turn_rewards for 2 turns: return one for each"),
        ({"token_rewards": [1, 2]}, "2 token_rewards for 3 response tokens"),
        ({"reward": 1.0, "token_weights": [1, 0, 1]}, "token_weights: no weight in the loss is read"),
        ({"turn_rewards": 1.0}, r"turn_rewards = 1\.0 instead of a list of numbers"),
        ({"turn_rewards": [1, None]}, r"turn_rewards\[1\] = None \(NoneType\) instead of a number"),
        ({"turn_rewards": [1, math.nan]}, r"turn_rewards\[1\] = nan, which is no number"),
        ({"token_rewards": [1, 1e13, 1]}, r"token_rewards\[1\] = 1e\+13, .* too large"),
        ({"score": 1, "turn_rewards": [0.5, 0.25]}, "score = 1 and rewards .* sum 0.75: .*, so leave score out"),
    ],
)
def test_what_is_no_reward_is_an_error_that_tells_what_came(value: Any, message: str) -> None:
    with pytest.raises(RewardError, match=f"score returned .*{message}"):
        result(value)


def test_none_is_for_several_scorers() -> None:
    assert read({"score": None}, "score", TOKENS, TURN_ENDS, optional=True) is None
    with pytest.raises(RewardError, match="returned None"):
        result({"score": None})


def load(folder: Path, source: str) -> RewardFunction:
    (folder / "mine.py").write_text(source)
    config = Config.model_validate({"reward": {"scorer": f"{folder / 'mine.py'}:score"}})
    (function,) = load_scorers(config).values()
    return function


def test_verls_form_gets_the_tokens_if_it_names_them(tmp_path: Path) -> None:
    source = (
        "def score(solution_str, ground_truth, response_ids=None, **more):\n"
        "    assert 'response_ids' not in more\n"
        "    return {'token_rewards': [float(t != 6) for t in response_ids]}\n"
    )
    assert load(tmp_path, source)("4", {"answer": "4"}, TOKENS) == Verdict(2.0, token_rewards=[(0, 1.0), (2, 1.0)])
    source = "def score(solution_str, ground_truth, **more):\n    return float(len(more))\n"
    assert load(tmp_path, source)("4", {"answer": "4"}, TOKENS) == Verdict(2.0)  # as verl: data_source, extra_info
