"""Turn by turn, the policy reads what its chat template would write, and its own tokens are never made again."""

from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.errors import ConfigError, DataError
from rhymed.inputs.chats import TURN, ChatTemplate
from rhymed_workers.sessions.calls import Wanted
from rhymed_workers.sessions.dialogue import Dialogue
from tests.inputs.tokenizers import byte_tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KNOWS_TOOLS = "{% if tools %}<tools>{{ tools | tojson }}</tools>\n{% endif %}" + CHATML
LLAMA = (
    "{% for m in messages %}<h>{{ m.role }}</h>\n\n{{ m.content | trim }}<eot>{% endfor %}"
    "{% if add_generation_prompt %}<h>assistant</h>\n\n{% endif %}"
)
STRIPS = CHATML.replace("{{ m.content }}", "{{ m.content.split('</think>')[-1] | trim }}")
NO_TOOL_ROLE = "{% for m in messages if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endfor %}" + CHATML
NO_TOOLS = "{% if tools %}{{ raise_exception('not mine') }}{% endif %}" + CHATML
NO_NARRATOR = NO_TOOL_ROLE.replace("'tool'", "'narrator'")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
CHAT = [{"role": "user", "content": "What is 1 + 2?"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture
def tokenizer() -> Any:
    return byte_tokenizer(("<pad>", "<eos>"))


def dialogue(tokenizer: Any, template: str, tools: list[Any] | None = None, limit: int = 4096) -> Dialogue:
    tokenizer.chat_template = template
    return Dialogue(ChatTemplate(tokenizer), tools or [], limit)


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False).input_ids)


@pytest.mark.parametrize(("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA, "<eot>"), (KNOWS_TOOLS, "<|im_end|>")])
def test_three_turns_are_what_the_template_writes(tokenizer: Any, template: str, end: str) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": [end]})
    talk = dialogue(tokenizer, template, [TOOL] if template is KNOWS_TOOLS else [])
    tokens, chat = talk.prompt("row", CHAT), list(CHAT)
    for number in range(3):
        turn = f"step {number} {CALL}"
        result = {"role": "tool", "name": "add", "content": str(number)}
        tokens += ids(tokenizer, turn + end)
        tokens += talk.suffix([result], tokens)
        chat += [{"role": "assistant", "content": turn}, result]
    tools = [TOOL] if template is KNOWS_TOOLS else None
    whole = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, tools=tools)
    assert tokenizer.decode(tokens) == whole
    assert talk.problem() == ""


def test_a_prompt_of_no_tokens_is_named_and_not_its_length(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"^row has no tokens: a prompt has at least one$"):
        dialogue(tokenizer, "{% if false %}{% endif %}").prompt("row", CHAT)


def test_the_end_of_a_turn_is_not_written_twice(tokenizer: Any) -> None:
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    talk = dialogue(tokenizer, CHATML)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    result = [{"role": "tool", "name": "add", "content": "3"}]
    assert tokenizer.decode(talk.suffix(result, [end])) == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
    other = ids(tokenizer, "x")[0]
    assert tokenizer.decode(talk.suffix(result, [other])).startswith("<|im_end|>\n<|im_start|>tool")


def test_a_result_with_the_words_of_the_stand_in_is_rendered_whole(tokenizer: Any) -> None:
    talk = dialogue(tokenizer, CHATML)
    result = [{"role": "tool", "name": "add", "content": f"3 {TURN} 4"}]
    assert f"<|im_start|>tool\n3 {TURN} 4<|im_end|>" in tokenizer.decode(talk.suffix(result, [0]))


def test_a_template_that_knows_no_tools_gets_them_as_a_system_message(tokenizer: Any) -> None:
    text = tokenizer.decode(dialogue(tokenizer, CHATML, [TOOL]).prompt("row", CHAT))
    assert text.startswith("<|im_start|>system\n# Tools")
    assert '"name": "add"' in text
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in text
    with_system = [{"role": "system", "content": "Be brief."}, *CHAT]
    text = tokenizer.decode(dialogue(tokenizer, CHATML, [TOOL]).prompt("row", with_system))
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert "# Tools" not in tokenizer.decode(dialogue(tokenizer, KNOWS_TOOLS, [TOOL]).prompt("row", CHAT))
    assert "# Tools" not in tokenizer.decode(dialogue(tokenizer, CHATML).prompt("row", CHAT))


def test_a_template_that_refuses_tools_is_an_error_in_words(tokenizer: Any) -> None:
    with pytest.raises(ConfigError, match=r"the chat template refuses the tools \(TemplateError: not mine\)"):
        dialogue(tokenizer, NO_TOOLS, [TOOL])
    assert dialogue(tokenizer, NO_TOOLS).prompt("row", CHAT)


def test_a_template_without_a_role_for_results_gets_them_as_the_users(tokenizer: Any) -> None:
    talk = dialogue(tokenizer, NO_TOOL_ROLE)
    text = tokenizer.decode(talk.suffix([{"role": "tool", "name": "add", "content": "3"}], [0]))
    assert "<|im_start|>user\n<tool_response>\n3\n</tool_response>" in text
    assert talk.problem() == ""
    whole = [*CHAT, {"role": "assistant", "content": CALL}, {"role": "tool", "name": "add", "content": "3"}]
    assert text.partition("<|im_end|>")[2] in tokenizer.decode(talk.prompt("row", whole))


def test_a_template_that_rewrites_earlier_turns_is_reported(tokenizer: Any) -> None:
    assert "rewrites earlier turns" in dialogue(tokenizer, STRIPS).problem()


def test_what_cannot_be_rendered_is_an_error_that_names_the_row(tokenizer: Any) -> None:
    with pytest.raises(DataError, match=r"row 7 has \d+ tokens, its environment and tools included"):
        dialogue(tokenizer, CHATML, limit=5).prompt("row 7", CHAT)
    with pytest.raises(DataError, match="row 7: the chat template refuses it"):
        dialogue(tokenizer, NO_NARRATOR).prompt("row 7", [{"role": "narrator", "content": "3"}])
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=r"model\.chat_template"):
        Dialogue(ChatTemplate(tokenizer), [], 100)


def test_a_turn_is_read(tokenizer: Any) -> None:
    talk = dialogue(tokenizer, CHATML)
    read = talk.read(ids(tokenizer, f"first {CALL}"))
    assert (list(read.calls), read.malformed) == ([Wanted("add", {"a": 1})], "")
    assert read.text.startswith("first ")


@pytest.mark.parametrize(
    ("turn", "begun", "message"),
    [
        (f"a {CALL}<|im_end|>", False, {"content": "a", "tool_calls": 1}),
        (f"<think>\nb\n</think>\n\n{CALL}", False, {"content": "", "reasoning_content": "b", "tool_calls": 1}),
        ("b\n</think>\n\nIt is 3.<|im_end|>", True, {"content": "It is 3.", "reasoning_content": "b"}),
        ("<think>\n\n</think>\n\nIt is 3.", False, {"content": "It is 3."}),
        ("<think>b", False, {"content": "", "reasoning_content": "b"}),
        ("It is 3.<|im_end|>", False, {"content": "It is 3."}),
        ("<think>b</think><tool_call>{", False, {"content": "<think>b</think><tool_call>{"}),
    ],
)
def test_a_turn_as_a_message_has_thoughts_and_calls_apart(turn: str, begun: bool, message: dict[str, Any]) -> None:
    tokenizer = byte_tokenizer(eos="<|endoftext|>")
    talk = dialogue(tokenizer, CHATML)
    read = talk.read(ids(tokenizer, turn), ids(tokenizer, "<think>\n" if begun else "\n"))
    found = talk.message(read)
    assert found.pop("role") == "assistant"
    assert {name: len(value) if name == "tool_calls" else value for name, value in found.items()} == message


def test_without_a_tokenizer_bytes_are_tokens() -> None:
    talk = Dialogue(None, [TOOL], 100)
    assert bytes(talk.prompt("row", CHAT)) == b"What is 1 + 2?"
    assert bytes(talk.suffix([{"role": "tool", "content": "3"}], [0])) == b"\n\n3\n\n"
    assert talk.read([7, 70_000]).text == "7 70000"
    read = talk.read([70_000, *CALL.encode()])
    assert list(read.calls) == [Wanted("add", {"a": 1})]
    assert talk.problem() == ""
