"""Programs with the real client of OpenAI, in processes of their own: what they read, and which sample is made."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest
from msgspec.structs import replace

from rhymed.core.errors import AddressRefused, EnvironmentFailed, EnvironmentUnusable
from rhymed.core.messages import Fork, SampleId, Session
from rhymed.core.run import edited, provenance
from rhymed.inputs.rows import prompt_id
from rhymed.inputs.tokenizer import read_tokenizer
from rhymed_store.client import StoreClient
from rhymed_store.sessions import StoredSession, get_session
from rhymed_workers.reward.worker import last_turn
from rhymed_workers.sessions.programs import Programs
from rhymed_workers.sessions.session import Program
from rhymed_workers.sessions.speech import Speech
from tests.workers.sessions.policies import BARE, ID, Loop, config_of, echo, finished

pytest.importorskip("openai")


CHAT = """
messages = [say(row["prompt"])]
for number in range(3):
    message = ask(messages).choices[0].message
    messages += [message, say(f"{number}")]
assert row["answer"] == 3 and os.environ["RHYMED_SESSION"]
"""


async def test_a_conversation_is_one_row_of_exact_tokens(store: StoreClient, tmp_path: Path) -> None:
    (sample,) = await finished(config_of(tmp_path, CHAT), store)
    prompt = list(b"What is 1 + 2?")
    expected = list(prompt)
    for number in range(3):
        expected += echo(expected, 0)
        expected += list(f"\n\n{number}\n\n".encode()) if number < 2 else []
    assert sample.prompt_tokens is not None
    assert [*sample.prompt_tokens.tolist(), *sample.tokens.tolist()] == expected
    assert (sample.info.turns, sample.info.forks) == ([3, 5, 3, 5, 3], [])


BRANCH = """
first = ask([say("a"), say("b")]).choices[0].message
again = ask([say("a"), say("b")]).choices[0].message
assert first.content != again.content, "the same question again has other noise"
ask([say("a"), say("b"), first, say("c")])
ask([say("a"), say("c")])
"""


async def test_branches_are_rows_that_share_what_they_have_in_common(store: StoreClient, tmp_path: Path) -> None:
    (sample,) = await finished(config_of(tmp_path, BRANCH), store)
    info = sample.info
    start = info.turns[0] + info.turns[1] + info.turns[2]
    assert info.forks == [Fork(start=start, row=0, shared=3), Fork(start=start + 4, row=0, shared=3)]
    assert info.learned == 4 * 3
    assert sample.tokens[start:].tolist() == [*b"b", 1004, (97 + 98 + 20) % 1000, 2001, *b"c", 1004, 216, 2000]


TOOLS = """
tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
messages = [say(row["prompt"])]
answer = ask(messages, tools=tools)
choice = answer.choices[0]
assert choice.finish_reason == "tool_calls", choice
call = choice.message.tool_calls[0]
assert (choice.message.content, call.function.name) == ("Let me see.", "add")
assert json.loads(call.function.arguments) == {"a": 1}
messages += [choice.message.model_dump(exclude_none=True)]  # other keys than those that were sent
messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"}]
stream = ask(messages, tools=tools, stream=True, stream_options={"include_usage": True})
text, reasons, calls, used = "", [], [], None
for chunk in stream:
    used = chunk.usage or used
    for part in chunk.choices:
        text += part.delta.content or ""
        calls += part.delta.tool_calls or []
        reasons += [part.finish_reason] if part.finish_reason else []
assert (text, reasons) == ("Another.", ["tool_calls"]), (text, reasons)
assert calls[0].function.name == "add" and used.completion_tokens > 0
again = {"id": calls[0].id, "type": "function", "function": {"name": "add", "arguments": '{"a":2}'}}
messages += [{"role": "assistant", "content": "Another. ", "tool_calls": [again]}]
messages += [{"role": "tool", "tool_call_id": calls[0].id, "content": "4"}]
more = {"logprobs": True, "tool_choice": "none", "extra_body": {"return_token_ids": True}}
last = ask(messages, tools=tools, **more).choices[0]
assert last.finish_reason == "stop" and last.message.content.startswith("Third.<tool_call>"), last
assert "".join(one.token for one in last.logprobs.content) == last.message.content + "<eos>"
assert last.message.generation_log_probs == [one.logprob for one in last.logprobs.content]
assert last.message.generation_token_ids == last.token_ids
"""


async def test_tools_are_called_and_streams_are_read(store: StoreClient, tmp_path: Path, tiny_model: Path) -> None:
    tokenizer = read_tokenizer(tiny_model)
    said = iter(["Let me see.", "Another.", "Third."])
    texts: list[str] = []

    def policy(prompt: list[int], repeats: int) -> list[int]:
        texts.append(tokenizer.decode(prompt))
        number = len(texts)
        body = f'<tool_call>\n{{"name": "add", "arguments": {{"a": {number}}}}}\n</tool_call>'
        return list(tokenizer(next(said) + body + "<eos>", add_special_tokens=False).input_ids)

    (sample,) = await finished(config_of(tmp_path, TOOLS, tiny_model), store, policy)
    assert sample.info.forks == [], "calls in another form are the same message"
    assert sample.info.learned == sum(sample.info.turns[::2])
    text = tokenizer.decode([*(sample.prompt_tokens if sample.prompt_tokens is not None else []), *sample.tokens])
    assert text.startswith('<tools>[{"type": "function"')
    call = '<tool_call>\n{"name": "add", "arguments": {"a": %d}}\n</tool_call><eos>\n[tool] %d<eos>\n[assistant] '
    assert f"[assistant] Let me see.{call % (1, 3)}Another.{call % (2, 4)}Third.<tool_call>" in text
    assert text.startswith(texts[2])


ENDED = """
messages = [say(row["prompt"])]
first = ask(messages, max_tokens=2).choices[0].message
assert first.content == "x<", first
messages += [first, say("Go on.")]
second = ask(messages, stop=["</search>"]).choices[0]
assert (second.message.content, second.finish_reason) == ("<search>a", "stop"), second
more = {"stop": "</search>", "include_stop_str_in_output": True}
third = ask([*messages, second.message, say("And?")], extra_body=more).choices[0]
assert third.message.content == "<search>b</search>", third
"""


async def test_turns_that_are_cut_or_stopped_get_the_templates_end(
    store: StoreClient, tmp_path: Path, tiny_model: Path
) -> None:
    tokenizer = read_tokenizer(tiny_model)
    said = iter(["x<y", "<search>a</search>", "<search>b</search>"])

    def policy(prompt: list[int], repeats: int) -> list[int]:
        return list(tokenizer(next(said), add_special_tokens=False).input_ids)

    loop = Loop(store, policy)
    async with Programs(config_of(tmp_path, ENDED, tiny_model), store) as programs:
        await loop.finish(programs, turns=1)
        assert await programs.act(ID) is None
        assert [answer.stop for answer in (await get_session(store, ID)).session.answers] == [[], ["</search>"]]
        await loop.write()
        assert await loop.finish(programs)
    sample = await loop.sample()
    assert sample.info.forks == []
    text = tokenizer.decode(sample.tokens)
    for turn in ("x<", "<search>a</search>"):
        assert f"{turn}<eos>\n[user] " in text
    assert sample.tokens.tolist().count(tokenizer.eos_token_id) == 4, (
        "the template's ends of turns are its own tokens"
    )


async def test_a_program_reports_its_reward(store: StoreClient, tmp_path: Path) -> None:
    program = """
import httpx
base, key = os.environ["OPENAI_BASE_URL"].removesuffix("/v1"), os.environ["OPENAI_API_KEY"]
def post(path, **body):
    return httpx.post(base + path, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=60)
ask([say("a")])
assert post("/reward", reward=0.25).json() == {"reward": 0.25}
assert post("/v1/reward", reward=0.5).status_code == 200
for wrong in ("much", True, None, [1], 10**400, 1e13):
    assert post("/reward", reward=wrong).status_code == 400, wrong
"""
    (sample,) = await finished(config_of(tmp_path, program), store)
    assert sample.info.earned == 0.5


async def test_what_is_scored_is_what_the_policy_wrote_last(store: StoreClient, tmp_path: Path) -> None:
    program = """
first = ask([say("a")]).choices[0].message
ask([say("another conversation")])
ask([say("a"), first, say("b")])
"""
    (sample,) = await finished(config_of(tmp_path, program), store)
    assert sample.prompt_tokens is not None
    tokens = sample.prompt_tokens.tolist() + sample.tokens[: sample.info.forks[0].start].tolist()
    assert sample.info.last == 2
    assert last_turn(sample).tokens.tolist() == echo(tokens[:-3], 0)


@pytest.mark.parametrize("most", ["2**53", "2**63 - 1", "2**64 - 1", "10**20"])
async def test_any_number_of_tokens_may_be_asked_for(store: StoreClient, tmp_path: Path, most: str) -> None:
    (sample,) = await finished(config_of(tmp_path, f"ask([say('a')], max_tokens={most})"), store)
    assert sample.info.turns == [3]


REFUSED = """
import openai, httpx
def code(*arguments, **more):
    try:
        ask(*arguments, **more)
    except openai.APIStatusError as error:
        return error.status_code, error.code
hello = [say("hello")]
assert code(hello, n=2) == (400, "unsupported_parameter")
assert code(hello, logit_bias={"5": 1}) == (400, "unsupported_parameter")
assert code(hello, response_format={"type": "json_object"}) == (400, "unsupported_parameter")
assert code(hello, extra_body={"wonder": 1}) == (400, "unsupported_parameter")
assert code(hello, top_logprobs=3, logprobs=True) == (400, "unsupported_parameter")
assert code(hello, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="required")[0] == 400
assert code([]) == (400, "invalid_value")
picture = {"type": "image_url", "image_url": {"url": "x"}}
assert code([{"role": "user", "content": [picture]}]) == (400, "invalid_value")
assert code([say("x" * 2000)]) == (400, "context_length_exceeded")
assert code([say("x" * 1600)]) == (400, "context_length_exceeded")
base, key = os.environ["OPENAI_BASE_URL"], {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
assert httpx.get(base + "/models").json()["error"]["code"] == "invalid_api_key"
assert httpx.get(base.replace("-0/", "-1/") + "/models", headers=key).status_code == 401
assert httpx.get(base + "/models", headers={b"Authorization": b"Bearer \\xff"}).status_code == 401
assert httpx.post(base + "/chat/completions", headers=key, content=b"[" * 100_000).status_code == 400
deep = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000}}
assert code([say("a"), {"role": "assistant", "tool_calls": [deep]}, say("b")]) == (400, "invalid_value")
assert httpx.get(base + "/models", headers=key).json()["data"][0]["object"] == "model"
assert httpx.post(base + "/embeddings", headers=key, json={}).json()["error"]["code"] == "unknown_url"
assert httpx.post(base + "/chat/completions", headers=key, content=b"{").status_code == 400
other = OpenAI(base_url=base.removesuffix("/v1")).chat.completions.create(model="m", messages=[
    {"role": "developer", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}],
    temperature=0.3, seed=5, n=1, stop=[], max_completion_tokens=2)
assert (other.choices[0].finish_reason, other.usage.completion_tokens, other.model) == ("length", 2, "m")
assert ask([say("x" * 1599)]).usage.total_tokens == 1602
assert code(hello) == (400, "max_turns_exceeded")
"""


async def test_what_cannot_be_answered_is_refused_in_words_of_openai(store: StoreClient, tmp_path: Path) -> None:
    loop = Loop(store)
    async with Programs(config_of(tmp_path, REFUSED, max_turns=2), store) as programs:
        info = await loop.finish(programs)
        assert (programs.calls, programs.errors) == (5, 3)
    assert info is not None
    assert info.turns[0] == 2


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("ask([say('a')]); print('odd', file=sys.stderr); sys.exit(3)", r"agent.py ended with exit status 3.*: odd$"),
        ("ask([say('a')]); raise ValueError('my mistake')", "ValueError: my mistake"),
        ("pass", "ended without an answered call"),
        ("ask([say('a')]); import time; time.sleep(60)", r"made no call for 1 s \(environment.timeout_s\)"),
        (
            "ask([say('a')])\nwhile True:\n try: ask([say('b')])\n except Exception: pass",
            r"had its 1 turns \(environment.max_turns\) and did not end within 1 s \(environment.timeout_s\)",
        ),
        ("ask([say('a')]); hold = bytearray(3 << 30)", "MemoryError"),
        ("ask([say('a')]); os.kill(os.getpid(), 9)", "signal SIGKILL"),
    ],
)
async def test_a_program_that_fails_is_no_sample(store: StoreClient, tmp_path: Path, program: str, why: str) -> None:
    limits = {"timeout_s": 1.0 if "sleep" in program or "while" in program else 60.0, "memory_gib": 1.5}
    turns = {"max_turns": 1} if "while" in program else {}
    config = config_of(tmp_path, program, client=BARE, **limits, **turns)
    loop = Loop(store)
    async with Programs(config, store) as programs:
        with pytest.raises(EnvironmentFailed, match=why):
            await loop.finish(programs)
        assert programs.open == []
    assert not (await get_session(store, ID)).session.done


async def test_a_program_whose_output_stays_open_is_ended_more_than_once(
    store: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has its output, so its last words never come: each end waits for them, and goes on."""
    monkeypatch.setattr("rhymed_workers.sessions.session.OUTPUT_S", 0.05)
    config = config_of(tmp_path, "time.sleep(1000)")
    program = await Program.start(config, ["sleep", "1000"], "{}", "127.0.0.1", {})
    held = os.open(f"/proc/{program.pid}/fd/1", os.O_WRONLY)  # the pipe that its guard writes to
    try:
        for _ in range(2):
            await program.kill()
    finally:
        os.close(held)
    assert not program.usable
    await asyncio.wait([program._reading], timeout=60.0)
    assert program._reading.cancelled(), "no task reads any more"


async def test_no_program_is_started_that_was_edited(store: StoreClient, tmp_path: Path) -> None:
    config = config_of(tmp_path, "ask([say('a')])")
    (agent,) = (Path(path) for path in provenance.files(config) if path.endswith("agent.py"))
    edited.start(tmp_path, provenance.now([], config))
    agent.write_text(agent.read_text() + "\n# edited\n")
    async with Programs(config, store, tmp_path) as programs:
        with pytest.raises(EnvironmentUnusable, match=r"agent.py \(environment\) was edited"):
            await Loop(store).finish(programs)


async def test_a_command_that_is_not_there_is_an_error_before_any_sample(store: StoreClient, tmp_path: Path) -> None:
    config = config_of(tmp_path, "", command="no-such-program agent.py")
    with pytest.raises(EnvironmentFailed, match="there is no program 'no-such-program'"):
        async with Programs(config, store):
            pass


async def test_an_address_that_is_taken_closes_what_was_opened(
    store: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, close = list[Speech](), Speech.close

    def closing(self: Speech) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Speech, "close", closing)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = config_of(tmp_path, "", port=taken.getsockname()[1])
        with pytest.raises(AddressRefused):
            async with Programs(config, store):
                pass
    assert len(closed) == 1


PLAIN = """
messages = [say(row["prompt"])]
for number in range(4):
    message = ask(messages).choices[0].message
    messages += [message, say(str(number))]
ask([say("x"), say("y")])
ask([say("x"), say("z")])
ask([say("x"), say("z")])
"""


@pytest.mark.parametrize("turns", [1, 3, 6])
async def test_a_lost_program_is_started_again_and_its_calls_are_answered_as_before(
    store: StoreClient, tmp_path: Path, turns: int
) -> None:
    config = config_of(tmp_path, PLAIN)
    other = SampleId(ID.step, ID.prompt, 1)
    loop = Loop(store)
    async with Programs(config, store) as programs:
        await loop.finish(programs, other)
        assert await loop.finish(programs, turns=turns) is None
        assert programs.open == [ID]
    asked = len(loop.prompts)
    async with Programs(config, store) as programs:
        await loop.finish(programs)
        assert programs.rebuilt == 1
    assert len(loop.prompts) - asked == 7 - turns, "no turn is written twice"
    lost, plain = await loop.sample(ID), await loop.sample(other)
    assert lost.tokens.tolist() == plain.tokens.tolist()
    assert replace(lost.info, id=other) == plain.info
    assert len(plain.info.forks) == 3


async def test_a_program_that_asks_otherwise_leaves_its_earlier_turns_out(store: StoreClient, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    program = f"""
again = os.path.exists({str(mark)!r})
open({str(mark)!r}, "w").close()
first = ask([say("a")]).choices[0].message
ask([say("a"), first, say("again" if again else "once")])
ask([say("end")])
"""
    config = config_of(tmp_path, program)
    loop = Loop(store)
    async with Programs(config, store) as programs:
        await loop.finish(programs, turns=2)
    async with Programs(config, store) as programs:
        await loop.finish(programs)
    sample = await loop.sample()
    text = bytes(token for token in sample.tokens.tolist() if token < 256)
    assert b"again" in text
    assert b"once" not in text
    assert (sample.info.learned, len(loop.prompts)) == (9, 4)


async def test_what_is_not_to_be_replayed_is_dropped(store: StoreClient, tmp_path: Path) -> None:
    config = config_of(tmp_path, PLAIN, replay=False)
    loop = Loop(store)
    async with Programs(config, store) as programs:
        await loop.finish(programs, turns=1)
    async with Programs(config, store) as programs:
        with pytest.raises(EnvironmentFailed, match="replay is false"):
            await programs.act(ID)


async def test_of_two_workers_with_the_same_sample_one_goes_on(store: StoreClient, tmp_path: Path) -> None:
    config = config_of(tmp_path, "ask([say(os.environ['OPENAI_BASE_URL'])]); ask([say('b')])")
    loop = Loop(store)
    async with Programs(config, store) as one, Programs(config, store) as two:
        assert await one.act(ID) is None
        await two._begin(ID, StoredSession(Session(id=ID, answers=[], turns=[]), [], []))
        with pytest.raises(EnvironmentFailed, match="went on elsewhere"):
            await two.act(ID)
        await loop.write()
        await loop.finish(two)
        assert (await loop.sample()).info.learned == 6
        with pytest.raises(EnvironmentFailed, match="went on elsewhere"):
            await one.act(ID)
        assert one.open == []


async def test_a_repeated_request_is_the_same_call(store: StoreClient, tmp_path: Path) -> None:
    program = """
import httpx
base, key = os.environ["OPENAI_BASE_URL"], {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
def post(text, timeout=60, **headers):
    body = {"model": "m", "messages": [say(text)]}
    answer = httpx.post(base + "/chat/completions", json=body, headers=key | headers, timeout=timeout)
    return answer.json()["choices"][0]["message"]["content"]
try:
    post("broken", timeout=0.5)
except httpx.TimeoutException:
    open(os.environ["MARK"], "w").close()
first = post("broken")
assert post("broken", **{"x-stainless-retry-count": "1"}) == first
assert post("broken") != first, "asked again, not repeated"
"""
    mark = tmp_path / "mark"
    config = config_of(tmp_path, program.replace('os.environ["MARK"]', repr(str(mark))))
    loop = Loop(store)
    async with Programs(config, store) as programs:
        assert await programs.act(ID) is None
        while not mark.exists():
            await asyncio.sleep(0.05)
        await loop.write()
        await loop.finish(programs)
    assert (await loop.sample()).info.learned == 6


async def test_calls_at_the_same_time_are_answered_one_after_the_other(store: StoreClient, tmp_path: Path) -> None:
    program = """
import asyncio, openai
async def main():
    client = openai.AsyncOpenAI()
    def one(text):
        return client.chat.completions.create(model="m", messages=[say(text)])
    answers = await asyncio.gather(*(one(text) for text in "abcabc"))
    said = [answer.choices[0].message.content for answer in answers]
    assert len(set(said)) == 6, said
asyncio.run(main())
"""
    loop = Loop(store)
    async with Programs(config_of(tmp_path, program), store) as programs:
        info = await loop.finish(programs)
        assert (programs.calls, programs.errors) == (6, 0)
    assert info is not None
    assert (info.learned, len(info.forks)) == (18, 5)


async def test_a_large_row_is_a_file(store: StoreClient, tmp_path: Path) -> None:
    row = {"prompt": "x" * 100_000}
    await store.put_prompts([row])
    program = "ask([say('a')])"
    config = config_of(tmp_path, program)
    file = tmp_path / "agent.py"
    read = 'row = json.loads(os.environ["RHYMED_ROW"])'
    assert read in file.read_text()
    check = 'assert len(json.load(open(os.environ["RHYMED_ROW"]))["prompt"]) == 100_000'
    file.write_text(file.read_text().replace(read, check))
    await finished(config, store, ids=[SampleId(0, prompt_id(row), 0)])


async def test_programs_do_not_see_the_runs_settings(
    store: StoreClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RHYMED_NET__KEYS", "secret")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    program = "ask([say('a')]); assert sorted(n[7:] for n in os.environ if n[:7] == 'RHYMED_') == ['ROW', 'SESSION']"
    await finished(config_of(tmp_path, program), store)
