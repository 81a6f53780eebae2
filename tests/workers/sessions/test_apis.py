"""OpenAI's Responses with the real client: the same sample as of chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import CallRefused
from rhymed.inputs.tokenizer import read_tokenizer
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers.sessions.chat.responses import response_asked
from tests.workers.sessions.policies import config_of, finished

pytest.importorskip("openai")


RESPONSES = """
tools = [{"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}]
def respond(input, **more):
    more = {"instructions": "Be short.", "tools": tools, "model": "any"} | more
    return client.responses.create(input=input, **more)
def output(call, text):
    return {"type": "function_call_output", "call_id": call.call_id, "output": text}
items = [say(row["prompt"])]
first = respond(items)
message, call = first.output
assert (first.status, first.output_text, call.name) == ("completed", "Let me see.", "add"), first
assert json.loads(call.arguments) == {"a": 1} and first.tools[0].name == "add"
thought = {"type": "reasoning", "id": "rs_1", "summary": []}
items += [thought, message, call, output(call, "3")]  # a client that sends everything again
with client.responses.stream(input=items, instructions="Be short.", tools=tools, model="any") as stream:
    names = [event.type for event in stream]
    second = stream.get_final_response()
assert (names[0], names[-1]) == ("response.created", "response.completed"), names
assert names.count("response.output_item.done") == 2 and "response.output_text.delta" in names, names
call = second.output[1]
assert (second.output_text, json.loads(call.arguments)) == ("Another.", {"a": 2}), second
items += [*second.output, output(call, "4")]
third = respond(items, include=["reasoning.encrypted_content"])
assert third.output_text == "Third.", third
assert third.usage.output_tokens > 0 and third.usage.input_tokens > second.usage.input_tokens
items += [*third.output, say("More.")]
fourth = respond(items, max_output_tokens=2, store=False)
assert (fourth.status, fourth.incomplete_details.reason) == ("incomplete", "max_output_tokens"), fourth
"""


async def sampled(store: StoreClient, folder: Path, model: Path, program: str) -> StoredSample:
    tokenizer, said = read_tokenizer(model), iter(["Let me see.", "Another.", "Third.", "Fourth."])
    turns = 0

    def policy(prompt: list[int], repeats: int) -> list[int]:
        nonlocal turns
        turns += 1
        call = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {turns}}}}}\n</tool_call>' if turns < 3 else ""
        return list(tokenizer(next(said) + call + "<eos>", add_special_tokens=False).input_ids)

    (sample,) = await finished(config_of(folder, program, model, timeout_s=200), store, policy)
    return sample


async def test_responses_make_the_sample_of_chat_completions(
    store: StoreClient, tmp_path: Path, tiny_model: Path
) -> None:
    sample = await sampled(store, tmp_path, tiny_model, RESPONSES)
    assert sample.prompt_tokens is not None
    text = read_tokenizer(tiny_model).decode([*sample.prompt_tokens.tolist(), *sample.tokens.tolist()])
    add = '{"name": "add", "parameters": {"type": "object", "properties": {}}}'
    tools = f'<tools>[{{"type": "function", "function": {add}}}]'
    call = '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call><eos>\n[tool] %d<eos>\n[assistant] '
    said = f"Let me see.{call % (1, 3)}Another.{call % (2, 4)}Third.<eos>\n[user] More.<eos>\n[assistant] "
    assert text.startswith(
        f"{tools}</tools>\n[system] Be short.<eos>\n[user] What is 1 + 2?<eos>\n[assistant] {said}"
    )
    assert (sample.info.forks, len(sample.info.turns)) == ([], 7), "one row of four turns"


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"input": []}, "at least one message"),
        ({"input": 3}, "a text or a list of items"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\] is 'item_reference'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "only text can be read",
        ),
        ({"input": [{"type": "function_call", "call_id": "c"}]}, "needs a function with a name"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "[" * 5000}]}, "nested too deeply"),
        ({"input": [{"role": ["user"], "content": "?"}]}, r"input\[0\] needs a role"),
        ({"tools": [{"type": "web_search"}]}, r"tools\[0\] is 'web_search': only functions"),
        ({"tools": {}, "tool_choice": "required"}, "only 'auto' and 'none'"),
        ({"text": {"format": {"type": "json_schema"}}}, "without a grammar"),
        ({"background": True}, "wait for the answer"),
        ({"conversation": "c"}, "send the items again"),
        ({"previous_response_id": "resp_1"}, "send the items again"),
        ({"include": ["message.output_text.logprobs"]}, "only chat completions have log-probs"),
        ({"wonder": 1}, "this endpoint does not support it"),
    ],
)
def test_what_a_response_cannot_be_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(CallRefused, match=why):
        response_asked({"input": "?"} | wrong)
