"""Messages of programs as tokens: what a template or a model does not have is refused in words."""

from __future__ import annotations

import pytest

from rhymed.core.errors import CallRefused
from rhymed.inputs.chats import ChatTemplate
from rhymed_workers.sessions.dialogue import Dialogue
from rhymed_workers.sessions.messages import Message
from rhymed_workers.sessions.speech import Speech
from tests.inputs.tokenizers import byte_tokenizer
from tests.workers.sessions.test_dialogue import CHATML, NO_TOOLS, TOOL, ids

HELLO = [Message("user", "Hello.")]


async def test_tools_that_the_template_refuses_cost_the_call_alone() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = NO_TOOLS
    speech = Speech(ChatTemplate(tokenizer), "hermes")
    with pytest.raises(CallRefused, match="the chat template refuses the tools") as refused:
        await speech.prompt(HELLO, [TOOL])
    assert (refused.value.param, refused.value.status) == ("tools", 400)
    assert await speech.prompt(HELLO, [])
    speech.close()


async def test_calls_are_read_only_where_tools_were_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|end|>"]})
    tokenizer.chat_template = CHATML
    speech, read = Speech(ChatTemplate(tokenizer), "hermes"), list[int]()
    reads = Dialogue.read
    monkeypatch.setattr(Dialogue, "read", lambda *given: read.append(1) or reads(*given))
    turn = ids(tokenizer, "so: 3<|end|>")
    assert (await speech.message(turn, [], "name")).content == "so: 3"
    assert not read
    assert (await speech.message(turn, [TOOL], "name")).content == "so: 3"
    assert read
    speech.close()
