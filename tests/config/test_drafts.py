"""Settings of drafts that contradict each other, and names of drafters that rhymed has not."""

from __future__ import annotations

from typing import Any

import pytest

from rhymed.config.load import load_config
from rhymed.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drafts.method": "history+eagle3"}, "history\\+eagle3 is not supported: .*history\\+head"),
        ({"drafts.method": "history+mtp"}, "an engine of vLLM has one drafter"),
        ({"drafts.head": "one"}, "drafts.head has no effect: set drafts.method = 'history\\+head'"),
        ({"drafts.refit": "epoch"}, "drafts.refit has no effect"),
        ({"drafts.method": "history+head", "drafts.budget": "aimd"}, "needs drafts.budget = 'rate', not 'aimd'"),
    ],
)
def test_a_mistake_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, (), {}, settings)


def test_a_head_beside_history() -> None:
    drafts = load_config(None, (), {}, {"drafts.method": "history+head", "drafts.refit": "epoch"}).drafts
    assert drafts.headed
    assert not load_config(None).drafts.headed
