"""OpenAI's Responses and Anthropic's Messages with their real clients: the same sample as of chat completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rhymed.core.errors import CallRefused
from rhymed.inputs.tokenizer import read_tokenizer
from rhymed_store.client import StoreClient, StoredSample
from rhymed_workers.sessions.chat.anthropic import message_asked
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
assert names[:2] == ["response.created", "response.in_progress"] and names[-1] == "response.completed", names
assert names.count("response.output_item.done") == 2 and "response.output_text.delta" in names, names
call = second.output[1]
assert (second.output_text, json.loads(call.arguments)) == ("Another.", {"a": 2}), second
more = {"previous_response_id": second.id, "include": ["message.output_text.logprobs"]}
third = respond([output(call, "4")], **more)  # a client that sends what is new
(part,) = third.output[0].content
assert (part.text, third.previous_response_id) == ("Third.", second.id), third
assert [one.logprob for one in part.logprobs] == [-1.0 - place for place in range(len(part.logprobs))], part
assert third.usage.output_tokens == len(part.logprobs) and third.usage.input_tokens > second.usage.input_tokens
fourth = respond("More.", previous_response_id=third.id, max_output_tokens=2, store=False)
assert (fourth.status, fourth.incomplete_details.reason) == ("incomplete", "max_output_tokens"), fourth
import openai
for wrong in ("resp_none", fourth.id):
    try:
        respond("?", previous_response_id=wrong)
        raise SystemExit("answered")
    except openai.BadRequestError as error:
        assert error.code == "previous_response_not_found", error
"""

MESSAGES = """
from anthropic import Anthropic
client = Anthropic(max_retries=0)
tools = [{"name": "add", "input_schema": {"type": "object", "properties": {}}}]
given = {"model": "any", "max_tokens": 100, "system": [{"type": "text", "text": "Be short."}], "tools": tools}
def result(call, text):
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": text}]}
messages = [say(row["prompt"])]
first = client.messages.create(messages=messages, **given)
text, call = first.content
assert (text.text, call.name, call.input, first.stop_reason) == ("Let me see.", "add", {"a": 1}, "tool_use"), first
messages += [{"role": "assistant", "content": first.content}, result(call, [{"type": "text", "text": "3"}])]
with client.messages.stream(messages=messages, **given) as stream:
    assert "".join(stream.text_stream) == "Another."
    second = stream.get_final_message()
text, call = second.content
assert (call.input, second.stop_reason) == ({"a": 2}, "tool_use"), second
assert second.usage.input_tokens > first.usage.input_tokens and second.usage.output_tokens > 0, second
thought = {"type": "thinking", "thinking": "?", "signature": "?"}
messages += [{"role": "assistant", "content": [thought, text, call]}, result(call, "4")]
third = client.messages.create(messages=messages, **given)
assert (third.content[0].text, third.stop_reason) == ("Third.", "end_turn"), third
messages += [{"role": "assistant", "content": "Third."}, say("More.")]
fourth = client.messages.create(messages=messages, **(given | {"max_tokens": 2}))
assert (fourth.stop_reason, fourth.usage.output_tokens) == ("max_tokens", 2), fourth
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


@pytest.mark.parametrize("program", [RESPONSES, MESSAGES])
async def test_every_api_makes_the_sample_of_chat_completions(
    store: StoreClient, tmp_path: Path, tiny_model: Path, program: str
) -> None:
    if program == MESSAGES:
        pytest.importorskip("anthropic")
    sample = await sampled(store, tmp_path, tiny_model, program)
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


STOPPED = """
from anthropic import Anthropic
client, messages = Anthropic(max_retries=0), [say(row["prompt"])]
def send(*stops):
    answer = client.messages.create(model="any", max_tokens=100, messages=messages, stop_sequences=stops)
    messages.extend([{"role": "assistant", "content": answer.content}, say("Go on.")])
    return answer.content[0].text, answer.stop_reason, answer.stop_sequence
assert send("</b>", "</a>") == ("<a>1", "stop_sequence", "</a>")
assert send("</b>") == ("2", "end_turn", None)
"""


async def test_a_stop_sequence_is_named(store: StoreClient, tmp_path: Path, tiny_model: Path) -> None:
    pytest.importorskip("anthropic")
    tokenizer, said = read_tokenizer(tiny_model), iter(["<a>1</a>", "2<eos>"])

    def policy(prompt: list[int], repeats: int) -> list[int]:
        return list(tokenizer(next(said), add_special_tokens=False).input_ids)

    (sample,) = await finished(config_of(tmp_path, STOPPED, tiny_model, timeout_s=200), store, policy)
    assert sample.info.forks == []
    assert tokenizer.decode(sample.tokens).startswith("<a>1</a><eos>\n[user] Go on.<eos>\n[assistant] 2")


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
        ({"conversation": "c"}, "use previous_response_id"),
        ({"include": ["file_search_call.results"]}, "there is only message.output_text.logprobs"),
        ({"wonder": 1}, "this endpoint does not support it"),
    ],
)
def test_what_a_response_cannot_be_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(CallRefused, match=why):
        response_asked({"input": "?"} | wrong, lambda name: None)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"messages": []}, "at least one message"),
        (
            {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "I"}]},
            "end with the user's",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "only text can be read"),
        ({"messages": ["?"]}, "needs a role"),
        ({"messages": [{"role": {}, "content": "?"}]}, "needs a role"),
        ({"messages": [{"role": [], "content": [{"type": "text", "text": "?"}]}]}, "needs a role"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "only tools with a schema"),
        ({"tool_choice": {"type": "any"}}, "only 'auto' and 'none'"),
        ({"stop_sequences": [3]}, "stop_sequences"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "without a grammar"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "only clear_thinking"),
        ({"mcp_servers": [{"type": "url"}]}, "the program runs its tools itself"),
    ],
)
def test_what_a_message_cannot_be_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(CallRefused, match=why):
        message_asked({"messages": [{"role": "user", "content": "?"}]} | wrong)


ERRORS = """
import os
import anthropic
def error(**more):
    try:
        anthropic.Anthropic(max_retries=0, **more).messages.create(model="any", max_tokens=9, messages=[], tools=[])
    except anthropic.APIStatusError as failed:
        return type(failed).__name__, failed.body["error"]["type"]
assert error() == ("BadRequestError", "invalid_request_error"), error()
assert error(api_key="wrong") == ("AuthenticationError", "authentication_error")
other = {"Authorization": "Bearer another", "X-Api-Key": os.environ["ANTHROPIC_API_KEY"]}
assert error(default_headers=other)[0] == "BadRequestError", "one key is right"
ask([say("a")])
"""


async def test_errors_are_those_of_the_api(store: StoreClient, tmp_path: Path) -> None:
    pytest.importorskip("anthropic")
    await finished(config_of(tmp_path, ERRORS), store)
