"""What a judge's text is worth, and what cannot be read."""

from typing import Any

import pytest

from rhymed.core.config.reward import Judge
from rhymed_workers.reward.judges import Unreadable, reward_of, text_of

YES = {"yes": 1.0, "no": 0.0}


def judge(**keys: Any) -> Judge:
    return Judge.model_validate({"url": "http://judge/v1", "model": "m", **keys})


def said(text: Any, reason: str = "stop") -> Any:
    return {"choices": [{"message": {"content": text}, "finish_reason": reason}]}


@pytest.mark.parametrize(
    ("keys", "text", "reward"),
    [
        ({}, "It is fine.\nScore: 8", 0.8),
        ({}, "**7.5**\n\n", 0.75),
        ({}, "8/10", 0.8),
        ({}, "8 out of 10", 0.8),
        ({"range": [1, 5]}, "3", 0.5),
        ({"range": [-1, 1]}, "-1", 0.0),
        ({"words": YES}, "Because.\nYes.", 1.0),
        ({"words": YES}, "Verdict: no", 0.0),
        ({"words": {"partly right": 0.5}}, "**Partly right**", 0.5),
        ({"pattern": r"\[\[(\d+)\]\]"}, "[[3]] no, [[6]] so", 0.6),
        ({"pattern": "yes|no", "words": YES}, "yes and no", 0.0),
        ({"pattern": '"score": *([^,}]+)'}, '{"score": 1} then {"score": "4/10", "other": 3}', 0.4),
    ],
)
def test_scores_are_read(keys: dict[str, Any], text: str, reward: float) -> None:
    one = judge(**keys)
    assert reward_of(one, text_of(one, said(text))) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("keys", "answer", "why"),
    [
        ({}, said("Good."), "there is none: 'Good.'"),
        ({}, said("between 3 and 4"), "there are 2"),
        ({}, said("8/100"), "there are 2"),
        ({}, said("11"), r"11, which is not in range = \[0, 10\]"),
        ({}, said("-1"), "not in range"),
        ({}, said("9" * 400), "in place of a finite number"),
        ({}, said(""), r"is empty \(finish_reason: 'stop'\)"),
        ({}, said(None), "is empty"),
        ({}, said(["x"]), "is empty"),
        ({}, said("8", "length"), "cut at the limit of tokens"),
        ({}, {"error": "no"}, "its answer is none of 'chat'"),
        ({}, {"choices": []}, "its answer is none of 'chat'"),
        ({}, [1], "its answer is none of 'chat'"),
        ({"words": YES}, said("perhaps"), "none of the words yes, no"),
        ({"words": YES}, said("yes or no"), "several of the words"),
        ({"pattern": "x(y)?x"}, said("xx"), "there is none"),
        ({"pattern": "zz"}, said("xx"), "does not match pattern"),
        ({"api": "classify"}, {"data": [{"probs": [0.1, 0.9]}]}, "it gave 2 numbers"),
        ({"api": "pooling"}, {"data": [{"data": "AAAA"}]}, "in place of a number"),
        ({"api": "score"}, {"data": [{"score": float("nan")}]}, "in place of a finite number"),
        ({"api": "score"}, {"data": [{"score": 10**400}]}, "in place of a finite number"),
    ],
)
def test_what_cannot_be_read_is_an_error_in_words(keys: dict[str, Any], answer: Any, why: str) -> None:
    one = judge(**keys)
    with pytest.raises(Unreadable, match=why):
        reward_of(one, text_of(one, answer))


@pytest.mark.parametrize(
    ("keys", "answer", "reward"),
    [
        ({"api": "classify"}, {"data": [{"probs": [0.25], "label": "LABEL_0"}]}, 0.25),
        ({"api": "pooling"}, {"data": [{"data": [[-3.5]]}]}, -3.5),
        ({"api": "pooling", "range": [-4, 0]}, {"data": [{"data": [-3]}]}, 0.25),
        ({"api": "score"}, {"data": [{"score": 2}]}, 2.0),
    ],
)
def test_reward_models_give_numbers(keys: dict[str, Any], answer: Any, reward: float) -> None:
    one = judge(**keys)
    assert reward_of(one, text_of(one, answer)) == reward
