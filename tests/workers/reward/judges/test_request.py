"""What a judge is asked."""

import json
from typing import Any

import pytest

from rhymed.core.config.reward import Judge
from rhymed.core.errors import RowUnsuitable
from rhymed_workers.reward.judge_client import address_of, body_of, filled

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]


def judge(**keys: Any) -> Judge:
    return Judge.model_validate({"url": "http://judge:8000/v1/", "model": "m", **keys})


def test_a_rubric_is_filled_once_and_json_in_it_stays() -> None:
    rubric = 'Like {"score": 1}: {prompt} | {response} | {ground_truth} | {level} | { }'
    text = filled(rubric, "2+2?", "{ground_truth} {prompt}", {"answer": 4, "level": {"a": [1]}})
    assert text == 'Like {"score": 1}: 2+2? | {ground_truth} {prompt} | 4 | {"a": [1]} | { }'


def test_a_column_that_is_missing_is_named() -> None:
    with pytest.raises(RowUnsuitable, match=r"names \{levle\}, the row has the columns answer, level"):
        filled("{response} {levle}", "p", "r", {"level": 1, "answer": 2})


def test_a_judge_reads_the_chat_as_text_and_a_reward_model_as_messages() -> None:
    asked = json.loads(body_of(judge(system="You judge.", rubric="{prompt}|{response}"), CHAT, "4", {}))
    assert asked == {
        "model": "m",
        "temperature": 0.0,
        "messages": [
            {"role": "system", "content": "You judge."},
            {"role": "user", "content": "system: Be brief.\n\nuser: 2+2?|4"},
        ],
    }
    assert json.loads(body_of(judge(api="classify"), CHAT, "4", {})) == {
        "model": "m",
        "messages": [*CHAT, {"role": "assistant", "content": "4"}],
    }
    options = {"use_activation": False}
    assert json.loads(body_of(judge(api="score", options=options), CHAT[1:], "4", {})) == {
        "model": "m",
        "text_1": "2+2?",
        "text_2": "4",
        "use_activation": False,
    }


def test_thoughts_can_be_left_out() -> None:
    shown = json.loads(body_of(judge(thinking=False, rubric="{response}"), CHAT, "<think>x</think>\n\n4", {}))
    assert shown["messages"][0]["content"] == "4"


def test_reward_models_are_beside_v1() -> None:
    assert address_of(judge()) == "http://judge:8000/v1/chat/completions"
    assert address_of(judge(api="pooling")) == "http://judge:8000/pooling"
