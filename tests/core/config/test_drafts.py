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
        ({"drafts.method": "history+eagle3"}, "history\\+eagle3 is not supported: 'history\\+engine' has"),
        ({"drafts.method": "history+mtp"}, "'history\\+head' is the learned drafter"),
        ({"drafts.head": "one"}, "drafts.head has no effect: set drafts.method = 'history\\+head'"),
        ({"drafts.refit": "epoch"}, "drafts.refit has no effect"),
        ({"drafts.method": "history+head", "drafts.budget": "aimd"}, "needs drafts.budget = 'rate', not 'aimd'"),
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


def test_a_head_beside_history() -> None:
    drafts = load_config(None, (), {}, {"drafts.method": "history+head", "drafts.refit": "epoch"}).drafts
    assert drafts.headed
    assert not load_config(None).drafts.headed


def test_a_head_of_the_engine_beside_history() -> None:
    drafts = load_config(None, (), {}, ENGINE).drafts
    assert (drafts.by_engine, drafts.headed) == (True, False)
    load_config(None, (), {}, ENGINE | speculative(method="mtp", model=None))
