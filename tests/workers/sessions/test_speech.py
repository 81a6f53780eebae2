"""Messages of programs as tokens: what a template or a model does not have is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.errors import CallRefused
from rhymed.inputs.tokenizer import read_tokenizer
from rhymed_workers.sessions.chat.messages import Message
from rhymed_workers.sessions.speech import Speech
from tests.workers.sessions.test_dialogue import NO_TOOLS, TOOL

HELLO = [Message("user", "Hello.")]


async def test_tools_that_the_template_refuses_cost_the_call_alone(tiny_model: Path) -> None:
    tokenizer = read_tokenizer(tiny_model)
    tokenizer.chat_template = NO_TOOLS
    speech = Speech(tokenizer, "hermes")
    with pytest.raises(CallRefused, match="the chat template refuses the tools") as refused:
        await speech.prompt(HELLO, [TOOL])
    assert (refused.value.param, refused.value.status) == ("tools", 400)
    assert await speech.prompt(HELLO, [])
    speech.close()


def test_ids_are_below_the_size_of_the_vocabulary() -> None:
    speech = Speech(None, "hermes", 10)
    assert speech.checked([0, 9]) == [0, 9]
    with pytest.raises(CallRefused, match="token_ids has 10, and the model's ids are below 10"):
        speech.checked([10, 3])
    speech.close()
