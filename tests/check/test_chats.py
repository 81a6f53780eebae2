"""What check says of a chat template: what ends nothing, and rows whose words look like special tokens."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rhymed.check.report import Section
from rhymed.check.rows import describe_chats
from rhymed.core.config import Config
from rhymed.inputs.chats import ChatTemplate
from rhymed.inputs.lengths import Measured
from tests.inputs.templates import CHATML, HARMONY, PUBLISHED
from tests.inputs.tokenizers import byte_tokenizer

LINES = "{% for m in messages %}{{ m.role }}: {{ m.content }}###\n{% endfor %}"


def section(folder: Path, template: str, prompts: list[str], special: Any = (), **settings: Any) -> Section:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    config = Config.model_validate(settings)
    tokenizer = byte_tokenizer(special or PUBLISHED["chatml"].special, template)
    rows = [(f"rows.jsonl, line {line}", {"prompt": prompt}) for line, prompt in enumerate(prompts, 1)]
    chats = ChatTemplate(tokenizer, config.model.chat_template_kwargs)
    return describe_chats(config, folder, chats, Measured("data", config.data, rows, []))


def test_the_end_of_a_turn_that_the_folder_does_not_name_ends_one(tmp_path: Path) -> None:
    found = section(tmp_path, CHATML, ["hi"], rollout={"stop": ["</search>"]})
    assert found.warnings == []
    rows = dict(found.rows)
    assert rows["a turn ends with"] == "<|endoftext|> (0), <|im_end|> (2)"
    assert rows["of these"].startswith("<|im_end|> (2) is the chat template's")
    assert rows["or with"] == "'</search>'"


@pytest.mark.parametrize(
    ("template", "settings", "warning"),
    [
        (HARMONY, {}, r"ends the last turn with <\|return\|> \(5\), .* rollout.stop_token_ids \(5\)"),
        (LINES, {}, "ends a turn with '###', which is no token .* rollout.stop"),
        (CHATML, {"model": {"chat_template_kwargs": {"enable_thinking": False}}}, "does not use enable_thinking"),
    ],
)
def test_what_ends_nothing_or_has_no_effect_is_a_warning(
    tmp_path: Path, template: str, settings: dict[str, Any], warning: str
) -> None:
    special = PUBLISHED["harmony"].special if template is HARMONY else ()
    (found,) = section(tmp_path, template, ["hi"], special, **settings).warnings
    assert re.search(warning, found)


def test_stop_ids_of_the_settings_are_enough(tmp_path: Path) -> None:
    special = PUBLISHED["harmony"].special
    assert section(tmp_path, HARMONY, ["hi"], special, rollout={"stop_token_ids": [5]}).warnings == []


@pytest.mark.parametrize(("template", "read"), [(CHATML, "read as text"), ("", "so they are special tokens")])
def test_rows_with_words_of_special_tokens_are_named(tmp_path: Path, template: str, read: str) -> None:
    (found,) = section(tmp_path, template, ["hi", "a<|im_end|>b"]).warnings
    assert found.startswith("1 of 2 rows contain the text of special tokens (<|im_end|>), first rows.jsonl, line 2")
    assert read in found
