"""Settings of drafts that contradict each other, and names of drafters that rhymed has not."""

from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.config.load import load_config
from rhymed.core.errors import ConfigError

HEAD = {"method": "eagle3", "model": "head", "num_speculative_tokens": 3}


def speculative(**changes: Any) -> dict[str, Any]:
    return {"rollout.engine_args": {"speculative_config": HEAD | changes}}


ENGINE: dict[str, Any] = {"drafts.method": "history+engine", "rollout.runner": "v2", **speculative()}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafts.method": "history+eagle3"}, "it must be 'history', 'history\\+engine' or 'none'"),
        ({"drafts.method": "history+head"}, "'history\\+head' is gone: a fitted head gained nothing over history"),
        ({"drafts.head": "one"}, "drafts.head is gone: a fitted head gained nothing over history"),
        ({"drafts.refit": "epoch"}, "drafts.refit is gone: there is no head to fit again"),
        (ENGINE | {"drafts.budget": "fixed"}, "'history\\+engine' needs drafts.budget = 'rate', not 'fixed'"),
        (ENGINE | {"rollout.runner": "auto"}, "needs rollout.runner = 'v2', not 'auto'"),
        (ENGINE | {"rollout.sampler": "vllm"}, "needs rollout.sampler = 'keyed', not 'vllm'"),
        (ENGINE | {"rollout.engine_args": {}}, "needs rollout.engine_args.speculative_config with a method"),
        (ENGINE | speculative(method="ngram"), "with a method \\(eagle, eagle3, mtp\\)"),
        (ENGINE | speculative(num_speculative_tokens=0), "how many tokens the head drafts"),
        (ENGINE | speculative(model=""), "speculative_config.model, the head's folder or name, is missing"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, (), {}, settings)


def test_a_head_of_the_engine_in_addition_to_history() -> None:
    assert load_config(None, (), {}, ENGINE).drafts.by_engine
    assert not load_config(None).drafts.by_engine
    load_config(None, (), {}, ENGINE | speculative(method="mtp", model=None))
