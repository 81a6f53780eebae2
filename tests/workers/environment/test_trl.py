"""Reward functions of agents get what TRL's own loop of calls gives them (`scripts/freeze_trl_rewards.py`)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rhymed.core.config import Config
from rhymed.inputs.chats import ChatTemplate
from rhymed_workers.environment.actor import conversation
from rhymed_workers.environment.pool import Environments
from rhymed_workers.environment.protocol import Stepped
from rhymed_workers.reward.scorers.load import load_scorers
from rhymed_workers.reward.scorers.result import Verdict
from rhymed_workers.reward.scorers.setting import MESSAGES, Response
from rhymed_workers.sessions.dialogue import Dialogue
from tests.inputs.templates import CHATML
from tests.inputs.tokenizers import byte_tokenizer
from tests.workers.environment import agent

FROZEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/rewards_trl.json").read_text())
CHAT = [{"role": "user", "content": "?"}]
FILE = inspect.getfile(agent)


async def played(pool: Environments, dialogue: Dialogue, name: str, turns: Sequence[str]) -> list[dict[str, Any]]:
    await pool.open(name, {}, CHAT)
    messages: list[dict[str, Any]] = []
    for place, turn in enumerate(turns, 1):
        read = dialogue.read(dialogue.template.tokenizer(turn + "<|im_end|>").input_ids)  # type: ignore[union-attr]
        stepped = Stepped() if place == len(turns) else await pool.step(name, read, last=False)
        messages += conversation(dialogue.message(read), stepped)
    return messages


async def test_an_agents_rewards_are_those_of_trl() -> None:
    samples = FROZEN["samples"]
    assert [{key: each[key] for key in ("answer", "turns")} for each in samples] == agent.SAMPLES
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHATML
    dialogue = Dialogue(ChatTemplate(tokenizer), [], 1000)
    scorers = [{"scorer": f"{FILE}:{each.__name__}"} for each in agent.REWARDS]
    settings = {"environment": {"tools": f"{FILE}:look_up", "processes": 1}, "reward": {"scorers": scorers}}
    config = Config.model_validate(settings)
    async with Environments(config) as pool:
        found = [await played(pool, dialogue, str(n), each["turns"]) for n, each in enumerate(samples)]
    for messages, each in zip(found, samples, strict=True):
        assert [unworded(message) for message in messages] == [unworded(message) for message in each["messages"]]
    for name, function in load_scorers(config).items():
        responses = [
            Response(str(messages[-1]["content"]), {"prompt": CHAT, "answer": each["answer"], MESSAGES: messages})
            for messages, each in zip(found, samples, strict=True)
        ]
        rewards = [one.reward for one in function.score(responses) if isinstance(one, Verdict)]
        assert rewards == pytest.approx([each["rewards"][name] for each in samples]), name


def unworded(message: dict[str, Any]) -> dict[str, Any]:
    """Which tools there are, TRL does not say."""
    return message | {"content": "no tool"} if "search" in str(message.get("name")) else message
