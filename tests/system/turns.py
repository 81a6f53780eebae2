"""Runs of samples in turns whose results follow from the samples, and a model so small that it calls tools at random.

The model's vocabulary has whole calls as tokens, which end a turn as the end of a text does: so a model with random
weights takes several turns, makes calls, and says its last word.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from rhymed.core.config import Config
from rhymed.core.messages import EVAL
from tests.stress.run import LiveRun

CALLS = [{"name": "push", "arguments": {"number": number}} for number in range(24)]
CALLS += [{"name": "total", "arguments": {}}]
STOPS = (1, *range(40, 46))  # the end of a text, and some letters
TEMPLATE = (
    "{{ '!' if tools }}{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = '''
import zlib


def push(number: int) -> str:
    """Pushes a number.

    Args:
        number: Any.
    """
    return f"{zlib.crc32(str(number).encode()) % 97}"


def total() -> str:
    """Says something."""
    return "none"


def look(key: str) -> str:
    """Looks something up.

    Args:
        key: Any.
    """
    return f"{zlib.crc32(key.encode()):08x}"


push.idempotent = total.idempotent = look.idempotent = True


class Box:
    """What it answers depends on everything that it was asked before."""

    def reset(self, prompt, **row):
        self.sum = zlib.crc32(prompt.encode()) % 7
        self.pushed = 0
        return f" It has {self.sum}."

    def push(self, number: int) -> str:
        """Pushes a number.

        Args:
            number: Any.
        """
        self.sum, self.pushed = self.sum * 3 + number, self.pushed + 1
        return f"{self.sum % 1000}"

    def look(self, key: str) -> str:
        """Pushes a text.

        Args:
            key: Any.
        """
        return self.push(zlib.crc32(key.encode()) % 100)

    def total(self) -> str:
        """What is in it."""
        return f"{self.sum % 1000} of {self.pushed}"

    def get_reward(self):
        return (self.sum % 10) / 10 + self.pushed


class First:
    """Only the first of three turns earns something."""

    def init(self, prompt):
        self.turns = 0
        return prompt, {}

    def step(self, action):
        self.turns += 1
        done = self.turns == 3
        said = [] if done else [{"role": "user", "content": f"turn {self.turns}"}]
        return {"observations": said, "reward": float(self.turns == 1), "done": done, "metadata": {}}
'''
REWARD = """
import zlib


def reward(completions, environment_transcript, environment_turns, environment_reward=None, **columns):
    # of everything that was said, and of what the environment gave
    earned = environment_reward or [0.0] * len(completions)
    last = [zlib.crc32(text.encode()) % 11 / 10 + (given or 0.0)
            for text, given in zip(environment_transcript, earned)]
    return [{"turn_rewards": [(zlib.crc32(text.encode()) >> turn) % 3 for turn in range(1, turns)] + [reward]}
            for text, turns, reward in zip(environment_transcript, environment_turns, last)]
"""


class Told(NamedTuple):
    """What the store has of a sample."""

    tokens: list[int]
    turns: list[int]
    calls: list[list[tuple[str, str]]]  # of each answer: tool, error
    earned: float | None
    reward: float | None
    turn_rewards: list[float]
    token_rewards: list[tuple[int, float]]


def write_calling_model(folder: Path) -> None:
    """As a Hugging Face folder. Its weights are so large that it says few things in many words."""
    import torch
    from tokenizers import AddedToken
    from transformers import AutoTokenizer, LlamaForCausalLM

    from tests.tiny import write_tiny_model

    write_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first = len(tokenizer)
    texts = [f"<tool_call>{json.dumps(call)}</tool_call>" for call in CALLS]
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in texts])
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    torch.manual_seed(1)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(12)
    model.config.eos_token_id = [*STOPS, *range(first, len(tokenizer))]
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.save_pretrained(folder)


def write(folder: Path, name: str, steps: int, **sections: dict[str, Any]) -> Path:
    """The configuration of a run; what it needs lies next to it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "words.py").write_text(WORDS)
    (folder / "reward.py").write_text(REWARD)
    rows = [json.dumps({"prompt": f"count to {number}"}) for number in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(rows))
    given: dict[str, dict[str, Any]] = {
        "run": {"name": name, "folder": str(folder)},
        "data": {"path": str(folder / "rows.jsonl"), "source": "jsonl"},
        "rollout": {
            "prompts_per_step": 4,
            "group_size": 4,
            "max_prompt_length": 100,
            "max_response_length": 200,
            "max_concurrency": 12,
        },
        "environment": {"max_turns": 4},
        "reward": {"scorer": f"{folder / 'reward.py'}:reward", "processes": 1},
        "trainer": {"epochs": 1000, "steps": steps, "checkpoint_every": 3, "lr": 1e-3, "threads": 1},
        "schedule": {"heartbeat_s": 0.3, "lost_after_s": 3.0},
        "store": {"map_gib": 0.25},
        "net": {"http": ""},
    }
    for section, settings in sections.items():
        given[section] = {**given.get(section, {}), **settings}
    file = folder / f"{name}.json"
    file.write_text(Config.model_validate(given).model_dump_json(indent=1))
    return file


def reported(run: LiveRun) -> dict[str, Told]:
    """Every sample in the run's store that was trained, by its id."""
    found = {}
    with run.browse() as browse:
        for prompt in browse.ids():
            for one in browse.responses(prompt):
                if one.info.id.step < EVAL:
                    calls = [[(call.name, call.error) for call in answer] for answer in one.calls]
                    found[str(one.info.id)] = Told(
                        one.tokens.tolist(),
                        one.info.turns,
                        calls,
                        one.info.earned,
                        one.info.reward,
                        one.info.turn_rewards,
                        list(one.token_rewards),
                    )
    return found
