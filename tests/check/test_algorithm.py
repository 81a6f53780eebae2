from __future__ import annotations

import pytest

from rhymed.check.dryrun import describe_algorithm
from rhymed.core.algorithms import ALGORITHMS, SETTINGS, expand, uses
from rhymed.core.config import Config


def test_the_block_says_source_parts_and_what_was_changed() -> None:
    config = Config.model_validate({"trainer": {"clip_eps_high": 0.28, "off_policy_mask": 0.5}})
    rows = dict(describe_algorithm(config.trainer.recipe).rows)
    assert rows["grpo"] == "defaults: arXiv 2402.03300; TRL loss_type grpo"
    assert rows["settings"].startswith("advantage = group-mean, advantage_scale = group, whiten = false, loss = clip")
    assert "clip_eps_high = 0.28 (default 0.2)" in rows["settings"]
    assert "correction = token-tis, tis_cap = 2, off_policy_mask = 0.5 (default 0)" in rows["settings"]
    assert "cispo_max" not in rows["settings"]


def test_a_critic_has_a_row_where_there_is_one() -> None:
    trainer = Config.model_validate({"trainer": {"algorithm": "ppo", "critic": {"lr": 1e-4}}}).trainer
    reported = "lr = 0.0001, warmup_steps = 0, value_clip = 0.5, model = model.path; it doubles the passes"
    assert dict(describe_algorithm(trainer.recipe, trainer.critic).rows)["critic"] == reported
    assert "critic" not in dict(describe_algorithm(expand("grpo", {}), trainer.critic).rows)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_setting_that_counts_is_reported_once(name: str) -> None:
    recipe = expand(name, {})
    rows = describe_algorithm(recipe).rows
    reported = [setting.partition(" = ")[0] for label, text in rows[1:] for setting in text.split(", ")]
    assert sorted(reported) == sorted(setting for setting in SETTINGS if uses(recipe, setting))
