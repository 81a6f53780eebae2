from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rhymed.core.config import Data
from rhymed.core.errors import DataError
from rhymed.inputs.columns import Columns
from rhymed.inputs.rows import Row
from tests.inputs.datafiles import lines

TRL = {"prompt": "2 + 2?", "answer": "4"}
GSM8K = {"question": "Two and two?", "answer": "Two plus two is four.\n#### 4"}


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("[1]", r"rows\.jsonl, line 2: \[1\] is not a JSON object"),
        ("{'prompt': 1}", r"line 2: not JSON \(Expecting property name"),
        ('{"prompt": "q"', r"line 2: not JSON"),
        ('{"prompts": "q"}', r"line 2: no column 'prompt', nor .*; did you mean 'prompts'\?"),
        (
            '{"text": "q"}',
            r"line 2: no column 'prompt', nor one of .*; columns: text: name the one .* data\.prompt_column",
        ),
        ('{"prompt": 4}', r"line 2: prompt is 4; it must be a string or a list"),
        ('{"prompt": []}', r"line 2: prompt is \[\]"),
        ('{"prompt": " "}', r"line 2: the prompt is empty"),
        ('{"prompt": ["q"]}', r"line 2: prompt\[0\] is 'q'; it must be \{role, content\}"),
        ('{"prompt": [{"role": "user"}]}', r"line 2: prompt\[0\] is"),
        ('{"prompt": "q", "x": NaN}', r"line 2: NaN is not JSON"),
        ('{"prompt": "q", "x": "\\ud800"}', r"line 2: column 'x' holds half a surrogate pair"),
        ('{"prompt": "q", "x": ' + "[" * 100_000 + "}", r"line 2: nested too deeply"),
    ],
)
def test_a_bad_line_is_named(read: Callable[..., list[Row]], second: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(lines(TRL) + "\n" + second + "\n")


def given(row: Row, **data: Any) -> Row:
    return Columns(Data.model_validate({"path": "x.jsonl", **data})).row("x.jsonl, line 1", row)


def test_gsm8k_as_it_is_published() -> None:
    assert given(GSM8K) == {"prompt": "Two and two?", **GSM8K}
    assert given(GSM8K, template="{question} End with ####.")["prompt"] == "Two and two?"


@pytest.mark.parametrize("column", ["question", "problem", "instruction", "input", "query"])
def test_usual_names_of_a_prompt(column: str) -> None:
    assert given({"zzz": 1, column: "q"}) == {"prompt": "q", "zzz": 1, column: "q"}


def test_the_first_usual_name_that_holds_text() -> None:
    assert given({"input": "i", "problem": "p", "question": {"text": "q"}})["prompt"] == "p"


def test_a_prompt_column_that_is_chosen_wins() -> None:
    assert given({"prompt": "p", "goal": "g"}, prompt_column="goal") == {"prompt": "g", "goal": "g"}
    chat = [{"role": "user", "content": "hi"}]
    assert given({"messages": chat}, prompt_column="messages")["prompt"] == chat
    with pytest.raises(DataError, match=r"line 1: no column 'gaol' \(data.prompt_column\); did you mean 'goal'\?"):
        given({"prompt": "p", "goal": "g"}, prompt_column="gaol")


def test_generated_rows_do_not_care_for_an_inherited_prompt_column() -> None:
    assert Columns(Data(prompt_column="question")).row("entry 0", TRL) == TRL
