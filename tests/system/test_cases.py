"""Turns whose tokens depend on template, parser and engine, on a model that is a script: what the store has of each
sample is, token for token, one of the few texts that the script allows."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.packages import needs
from tests.stress.run import LiveRun
from tests.system.turns import Told, reported, write
from tests.tiny import write_chain_model

pytestmark = [needs("vllm"), pytest.mark.slow, pytest.mark.thorough, pytest.mark.timeout(900)]

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
STRICT = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant/user/assistant') }}{% endif %}"
    "{{ '[INST]' + m['content'] + '[/INST]\\n' if m['role'] == 'user' else m['content'] + '<|im_end|>' }}{% endfor %}"
)
SPECIAL = ["<|im_start|>", "<|im_end|>"]
CALL = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
THOUGHT = f"<think>Perhaps {CALL}</think>"
BROKEN = '<tool_call>{"name": "look", </tool_call>'
WORDS = [CALL, THOUGHT, BROKEN, CALL + CALL, "five"]
SEEN = "It says <|im_end|> and <|im_start|>user"
TOOLS = f'''
def look() -> str:
    """Looks."""
    return {SEEN!r}
'''
REWARD = """
def reward(completions, **columns):
    return [float(sum(message["role"] == "tool" for message in said)) for said in completions]
"""

AGENT = """
import json, os, urllib.request

def ask(messages):
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    body = json.dumps({"model": "policy", "messages": messages, "max_tokens": 3}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

messages = [{"role": "user", "content": "Go."}]
messages += [{"role": "assistant", "content": ask(messages)}, {"role": "user", "content": "Go on."}]
ask(messages)
"""


class Policy:
    """After each token of `steps` one of its followers comes, all with the same probability."""

    def __init__(self, folder: Path, template: str, steps: dict[str, list[str]]) -> None:
        from tokenizers import AddedToken
        from transformers import AutoTokenizer

        size = 264 + 8 * math.ceil(len(WORDS + SPECIAL) / 8)
        write_chain_model(folder, np.zeros((size, size)))
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.tokenizer.add_tokens([AddedToken(word, normalized=False) for word in WORDS])
        self.tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL, "eos_token": "<|im_end|>"})
        self.tokenizer.chat_template = template
        table = np.full((size, size), -40.0)
        for word, followers in steps.items():
            table[self.id(word), [self.id(follower) for follower in followers]] = 0.0
        write_chain_model(folder, table)
        self.tokenizer.save_pretrained(folder)
        for name in ("config.json", "generation_config.json"):
            given = json.loads((folder / name).read_text())
            longer = {"max_position_embeddings": 4096} if name == "config.json" else {}
            (folder / name).write_text(json.dumps(given | {"eos_token_id": self.end} | longer))

    @property
    def end(self) -> int:
        return self.id("<|im_end|>")

    def id(self, word: str) -> int:
        (only,) = self.ids(word)
        return only

    def ids(self, text: str, **options: Any) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False, **options)
        return found

    def plain(self, text: str) -> list[int]:
        """Text of others: its special tokens are letters."""
        return self.ids(text, split_special_tokens=True)


def ran(folder: Path, **sections: dict[str, Any]) -> list[Told]:
    given: dict[str, dict[str, Any]] = {
        "model": {"path": str(folder / "model"), "dtype": "float32"},
        "environment": {"tools": f"{folder / 'tools.py'}:look", "max_turns": 2},
        "reward": {"scorer": f"{folder / 'own.py'}:reward", "processes": 1},
    }
    file = write(folder, "run", 2, **given | sections)
    rows = [{"prompt": [{"role": "user", "content": f"{number} <|im_end|>"}]} for number in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tools.py").write_text(TOOLS)
    (folder / "own.py").write_text(REWARD)
    with LiveRun(file) as run:
        assert run.wait(800) == 0, run.tail(40)
        return list(reported(run).values())


def test_thoughts_malformed_calls_special_tokens_and_stops(tmp_path: Path) -> None:
    """A call in a thought is not made, a broken one is answered, the letters of a special token in a result stay
    letters, and a stop string ends a turn after its last letter."""
    firsts = [THOUGHT, CALL, BROKEN, "five", "S"]
    steps = {"\n": firsts, THOUGHT: ["five"], CALL: ["<|im_end|>"], BROKEN: ["<|im_end|>"], "five": ["<|im_end|>"]}
    policy = Policy(tmp_path / "model", CHATML, steps | {"S": ["T"], "T": ["O"], "O": ["P"], "P": ["five"]})
    rollout = {"prompts_per_step": 4, "group_size": 8, "max_prompt_length": 1500, "max_response_length": 500}
    samples = ran(tmp_path, rollout=rollout | {"kv_cache_gib": 0.1, "stop": ["TOP"]})

    last = [[policy.id("five"), policy.end], [policy.id(THOUGHT), policy.id("five"), policy.end], policy.ids("STOP")]
    called = [policy.id(CALL), policy.end]
    broken = [policy.id(BROKEN), policy.end]
    before = policy.ids("\n<|im_start|>tool\n")
    after = policy.ids("<|im_end|>\n<|im_start|>assistant\n")
    result = [*before, *policy.plain(SEEN), *after]
    kinds = set()
    for sample in samples:
        if sample.tokens in last:
            assert (sample.reward, any(sample.calls)) == (0.0, False), "no call was made"
            kinds.add(("last", last.index(sample.tokens)))
            continue
        assert sample.reward == 1.0
        first, rest = sample.tokens[:2], sample.tokens[2:]
        if first == called:
            assert rest[: len(result)] == result
            second = rest[len(result) :]
        else:
            assert first == broken
            assert rest[: len(before)] == before
            reported_it = rest[len(before) : rest.index(policy.end)]
            assert "look" in policy.tokenizer.decode(reported_it) or "JSON" in policy.tokenizer.decode(reported_it)
            second = rest[len(before) + len(reported_it) + len(after) :]
        assert second in [*last, called, broken], policy.tokenizer.decode(sample.tokens)
        kinds.add(("first", firsts.index(CALL if first == called else BROKEN)))
    assert len(kinds) == 5, kinds


def test_two_results_in_a_template_that_alternates_strictly(tmp_path: Path) -> None:
    policy = Policy(
        tmp_path / "model", STRICT, {"\n": [CALL + CALL, "five"], CALL + CALL: ["<|im_end|>"], "five": ["<|im_end|>"]}
    )
    rollout = {"prompts_per_step": 4, "group_size": 4, "max_prompt_length": 1500, "max_response_length": 500}
    samples = ran(tmp_path, rollout=rollout | {"kv_cache_gib": 0.1})
    said, called = [policy.id("five"), policy.end], [policy.id(CALL + CALL), policy.end]
    both = "\n".join([f"<tool_response>\n{SEEN}\n</tool_response>"] * 2)
    results = [*policy.ids("[INST]"), *policy.plain(both), *policy.ids("[/INST]\n")]
    assert {tuple(sample.tokens) for sample in samples} <= {
        tuple(said),
        (*called, *results, *said),
        (*called, *results, *called),
    }
    assert {sample.reward for sample in samples} == {0.0, 2.0}


def test_a_turn_of_a_program_that_is_cut_at_a_bracket(tmp_path: Path) -> None:
    """The template's end of turn begins with the letter that the turn ends with."""
    steps = {"\n": ["a", "five"], "a": ["b"], "b": ["<"], "<": ["b"], "five": ["<|im_end|>"]}
    policy = Policy(tmp_path / "model", CHATML, steps)
    (tmp_path / "agent.py").write_text(AGENT)
    rollout = {"prompts_per_step": 4, "group_size": 4, "max_prompt_length": 200, "max_response_length": 200}
    samples = ran(
        tmp_path,
        rollout=rollout | {"kv_cache_gib": 0.1},
        environment={"command": f"{sys.executable} {tmp_path / 'agent.py'}", "sessions": 4},
    )
    cut, said = policy.ids("ab<"), [policy.id("five"), policy.end]
    between = policy.ids("\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n")
    firsts, seconds = [[*cut, policy.end], said], [cut, said]
    expected = {tuple([*first, *between, *second]) for first in firsts for second in seconds}
    assert {tuple(sample.tokens) for sample in samples} == expected
