"""An agent framework from the package index, unchanged: its client asks the policy, its tools run in the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.inputs.tokenizer import read_tokenizer
from rhymed_store.client import StoreClient
from tests.workers.sessions.policies import config_of, finished

pytest.importorskip("agents")
pytest.importorskip("griffe")

AGENTS = """
from agents import Agent, Runner, function_tool, set_default_openai_api, set_tracing_disabled
set_default_openai_api(API)
set_tracing_disabled(True)

@function_tool
def add(a: int, b: int) -> int:
    "Adds."
    return a + b

agent = Agent(name="adder", instructions="Use the tool.", tools=[add], model="policy")
result = Runner.run_sync(agent, row["prompt"])
assert result.final_output == "It is 3.", result.final_output
"""


@pytest.mark.parametrize("api", ["chat_completions", "responses"])
async def test_openai_agents(store: StoreClient, config: Config, tmp_path: Path, tiny_model: Path, api: str) -> None:
    tokenizer = read_tokenizer(tiny_model)
    turns = iter(['<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><eos>', "It is 3.<eos>"])

    def policy(prompt: list[int], repeats: int) -> list[int]:
        return list(tokenizer(next(turns), add_special_tokens=False).input_ids)

    program = f"API = {api!r}\n{AGENTS}"
    (sample,) = await finished(config_of(tmp_path, program, tiny_model, timeout_s=200), store, policy)
    assert (len(sample.info.turns), sample.info.forks) == (3, []), "one row of two turns"
    text = tokenizer.decode(sample.tokens.tolist())
    assert text.endswith("</tool_call><eos>\n[tool] 3<eos>\n[assistant] It is 3.<eos>")
