"""What `rhymed check` and `rhymed run` say of a critic before anything starts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rhymed.check.inputs import read
from rhymed.check.report import Report
from rhymed.check.size import size_of_model
from rhymed.core.config import Config
from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError
from rhymed.inputs import models
from rhymed.start.cli.eval import evaluating


def config(path: Path, **critic: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"path": str(path), "dtype": "float32"},
            "rollout": {"max_prompt_length": 64, "max_response_length": 64},
            "trainer": {"algorithm": "ppo", "critic": critic},
        }
    )


def copy(source: Path, target: Path, **more: Any) -> Path:
    shutil.copytree(source, target)
    file = target / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    return target


def test_a_critic_starts_from_the_policys_model_or_from_its_own(tiny_model: Path, tmp_path: Path) -> None:
    assert models.find_critic(config(tiny_model)) == tiny_model
    other = copy(tiny_model, tmp_path / "other")
    assert models.find_critic(config(tiny_model, model=str(other))) == other


def test_a_model_that_cannot_be_the_critic_is_named_with_the_reason(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.critic\.model = '/no/such' is neither a folder nor"):
        models.find_critic(config(tiny_model, model="/no/such"))
    small = copy(tiny_model, tmp_path / "small", max_position_embeddings=100)
    with pytest.raises(ConfigError, match=r"has a context of 100 tokens, less than .* = 128"):
        models.find_critic(config(tiny_model, model=str(small)))
    foreign = copy(tiny_model, tmp_path / "foreign")
    tokens = json.loads((foreign / "tokenizer.json").read_text())
    vocabulary = tokens["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (foreign / "tokenizer.json").write_text(json.dumps(tokens))
    with pytest.raises(ConfigError, match=r"trainer\.critic\.model = .* has another tokenizer \(264 tokens"):
        models.find_critic(config(tiny_model, model=str(foreign)))


def test_the_check_reads_the_critics_model(tiny_model: Path) -> None:
    report = Report()
    assert read(config(tiny_model), report).critic == size_of_model(tiny_model)
    assert read(config(tiny_model, model="/no/such"), report).critic is None
    assert "trainer.critic.model = '/no/such'" in "\n".join(report.errors)
    plain = Config.model_validate({"model": {"path": str(tiny_model)}})
    assert read(plain, report).critic is None


def test_settings_of_a_critic_that_nobody_has_are_an_error_at_their_line(tmp_path: Path) -> None:
    file = tmp_path / "my.toml"
    file.write_text("[trainer]\nlr = 1e-5\n[trainer.critic]\nlr = 1e-4\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, (), {})
    assert "my.toml: trainer.critic.lr has no effect: trainer.algorithm = 'grpo' has no critic" in str(caught.value)
    assert "set trainer.algorithm = ppo, or leave" in str(caught.value)


def test_a_warm_up_that_never_ends_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"warmup_steps = 5 leaves no step of trainer\.steps = 5"):
        Config.model_validate({"trainer": {"algorithm": "ppo", "steps": 5, "critic": {"warmup_steps": 5}}})


def test_a_critic_may_be_put_before_another_algorithms_loss() -> None:
    made = Config.model_validate({"trainer": {"algorithm": "cispo", "advantage": "gae", "critic": {"lr": 1e-4}}})
    assert made.trainer.recipe.critic


def test_one_sample_for_each_prompt_is_enough_for_a_critic_only() -> None:
    def config(**trainer: Any) -> Config:
        return Config.model_validate({"rollout": {"group_size": 1}, "trainer": trainer})

    assert config(algorithm="ppo").rollout.group_size == 1
    with pytest.raises(
        ValueError, match=r"group_size = 1 with trainer\.algorithm = 'rloo'.* one is enough for .*ppo"
    ):
        config(algorithm="rloo")
    with pytest.raises(ValueError, match=r"group_size = 1 with trainer\.dynamic_sampling"):
        config(algorithm="ppo", dynamic_sampling={"enabled": True})


def test_an_evaluation_of_such_a_run_has_no_critic(tiny_model: Path, tmp_path: Path) -> None:
    given = config(tiny_model, lr=1e-4).model_dump()
    given["run"] |= {"folder": str(tmp_path)}
    given["eval"] |= {"datasets": [{"name": "a", "path": "a.jsonl"}]}
    given["rollout"] |= {"group_size": 1}
    assert not evaluating(Config.model_validate(given), "").trainer.recipe.critic
