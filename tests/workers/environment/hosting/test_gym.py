"""Environments of the package skyrl-gym, unchanged."""

from __future__ import annotations

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest

from rhymed.core.config import Config
from rhymed.core.errors import EnvironmentFailed
from tests.workers.environment.hosting.hosts import CHAT, hosted

ROW = json.dumps({"prompt": "1 + 1?", "reward_spec": {"method": "rule", "ground_truth": "2"}})

pytestmark = pytest.mark.skipif(not importlib.util.find_spec("skyrl_gym"), reason="needs skyrl-gym")


@pytest.mark.parametrize("factory", ["skyrl_gym.envs.gsm8k.env:GSM8kEnv", "skyrl_gym:gsm8k"])
def test_one_answer(tmp_path: Path, factory: str) -> None:
    with hosted(tmp_path, place=factory) as asked:
        assert asked.open(ROW) == (CHAT, [])
        stepped = asked.step(text="It is #### 2")
        assert (stepped.done, stepped.reward, stepped.messages) == (True, 1.0, [])


def test_several_turns_as_many_as_max_turns(tmp_path: Path) -> None:
    with hosted(tmp_path, place="skyrl_gym:gsm8k_multi_turn", max_turns=2) as asked:
        asked.open(ROW)
        first = asked.step(text="I think #### 3")
        assert (first.done, first.reward) == (False, 0.1)
        assert first.messages[0]["role"] == "user"
        assert "#### ANSWER" in first.messages[0]["content"]
        last = asked.step(text="No, #### 4")
        assert (last.done, last.reward) == (True, 0.1)


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    missing = "has registered no 'chess'; it has: aime, gsm8k"
    with pytest.raises(EnvironmentFailed, match=missing), hosted(tmp_path, place="skyrl_gym:chess"):
        pass
    with hosted(tmp_path, place="skyrl_gym:gsm8k") as asked, pytest.raises(AssertionError, match="reward_spec"):
        asked.open("{}")


def test_the_example_is_one_of_theirs(tmp_path: Path) -> None:
    folder = Path(__file__).parents[4] / "examples/skyrl"
    config = Config.model_validate(tomllib.loads((folder / "config.toml").read_text()))
    for name, count in (("train", 64), ("held_out", 32)):
        lines = (folder / f"{name}.jsonl").read_text().splitlines()
        assert len(lines) == count
        with hosted(tmp_path, place=config.environment.factory, max_turns=config.environment.max_turns) as asked:
            for line in lines:
                asked.open(line)
                right = json.loads(line)["reward_spec"]["ground_truth"]
                assert asked.step(text=f"#### {right}").reward == 1.0
