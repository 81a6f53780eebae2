from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.config import Data, Teacher
from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs.render import Renderer
from rhymed.inputs.supervision import UNLIMITED, TeacherRenderer


def chat(row: dict[str, Any], teacher: dict[str, Any], **data: Any) -> list[dict[str, str]]:
    render = Renderer(Data(), UNLIMITED)
    return TeacherRenderer(Data.model_validate(data), Teacher.model_validate(teacher), render).chat("row", row)


def test_a_system_message_takes_the_place_of_the_policys() -> None:
    found = chat({"prompt": "2+2"}, {"system": "Think."}, system="Be short.", template="What is {prompt}?")
    assert found == [{"role": "system", "content": "Think."}, {"role": "user", "content": "What is 2+2?"}]


def test_a_demonstration_is_shown_in_the_last_user_message() -> None:
    row = {
        "prompt": [
            {"role": "user", "content": "1+1"},
            {"role": "assistant", "content": "2"},
            {"role": "user", "content": "2+{2}"},
        ],
        "answer": 4,
        "hint": "add",
    }
    teacher = {"demonstration": "answer", "template": "{hint}: {demonstration} is right for {prompt}"}
    found = chat(row, teacher)
    assert found[:2] == row["prompt"][:2]
    assert found[2]["content"] == "add: 4 is right for 2+{2}"
    assert row["prompt"][2]["content"] == "2+{2}"  # the row is the policy's, too


def test_tokens_are_of_the_same_tokenizer_and_without_the_policys_limit() -> None:
    render = TeacherRenderer(Data(), Teacher(system="Think."), Renderer(Data(), UNLIMITED))
    assert bytes(render("row", {"prompt": "2+2" * 300})).decode() == "Think.\n\n" + "2+2" * 300


@pytest.mark.parametrize(
    ("row", "teacher", "error", "message"),
    [
        ({"prompt": "2+2"}, {"demonstration": "answer"}, DataError, "no column 'answer' .*teacher.demonstration"),
        (
            {"prompt": [{"role": "assistant", "content": "hi"}], "answer": "4"},
            {"demonstration": "answer"},
            DataError,
            "no user message",
        ),
        (
            {"prompt": "2+2", "answer": "4"},
            {"demonstration": "answer", "template": "{demonstration} {nothing}"},
            ConfigError,
            "trainer.teacher.template.*nothing",
        ),
    ],
)
def test_what_cannot_be_shown_is_named(
    row: dict[str, Any], teacher: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        chat(row, teacher)
