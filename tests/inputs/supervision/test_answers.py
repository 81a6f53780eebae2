from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import DataError
from rhymed.inputs.render import load_renderer, load_tokenizer
from rhymed.inputs.supervision import Answers

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<eos>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def config(tiny_model: Path) -> Config:
    return settings(tiny_model)


def settings(model: Path, chat_template: str = "", answer_column: str = "") -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(model), "chat_template": chat_template},
            "data": {"answer_column": answer_column},
            "rollout": {"max_prompt_length": 64, "max_response_length": 12},
            "trainer": {"algorithm": "sft"},
        }
    )


def text_of(config: Config, tiny_model: Path, tokens: list[int]) -> str:
    return str(load_tokenizer(config.model, tiny_model).decode(tokens))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"answer": "seven"}, "seven"),
        ({"answer": 7, "completion": "not this"}, "7"),
        ({"completion": [{"role": "assistant", "content": "7.5"}]}, "7.5"),
    ],
)
def test_an_answer_is_its_text_and_the_end(
    config: Config, tiny_model: Path, row: dict[str, Any], expected: str
) -> None:
    tokens = Answers.load(config)("row 1", {"prompt": "?", **row})
    assert text_of(config, tiny_model, tokens) == f"{expected}<eos>"


def test_prompt_and_answer_are_the_chat_as_the_template_writes_it(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text(TEMPLATE)
    config = settings(tiny_model, str(template))
    row = {"prompt": "2+2", "answer": "4"}
    tokens = load_renderer(config)("row", row) + Answers.load(config)("row", row)
    assert text_of(config, tiny_model, tokens) == "<|user|>2+2<|assistant|>4<eos>"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"anser": "4"}, r"row 9: no column 'answer' \(data.answer_column\); did you mean 'anser'\?"),
        ({"answer": "  "}, "row 9: column 'answer' .* text, a number, or messages"),
        ({"answer": None}, "row 9: column 'answer' .* is None"),
        ({"answer": [{"role": "user", "content": "x"}]}, "messages that end with the assistant's"),
        ({"answer": "a longer answer"}, "the answer has 16 tokens, rollout.max_response_length is 12"),
    ],
)
def test_rows_without_a_usable_answer_say_what_is_wrong(config: Config, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Answers.load(config)("row 9", {"prompt": "?", **row})


def test_the_column_can_be_named(tiny_model: Path) -> None:
    config = settings(tiny_model, answer_column="solution")
    tokens = Answers.load(config)("row", {"answer": "no", "solution": "yes"})
    assert text_of(config, tiny_model, tokens) == "yes<eos>"
