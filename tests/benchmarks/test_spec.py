"""Arguments of `rhymed bench spec` are checked before an engine starts."""

from __future__ import annotations

from typing import Any

import pytest

from rhymed.core.errors import ConfigError
from rhymed.start.bench.spec import run


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"epochs": [0]}, "--epochs 0: there are 1, 2"),
        ({"epochs": [1, 3]}, "--epochs 3: there are 1, 2"),
        ({"batches": [5]}, "--batches 5: there are 1, 4, 16, 64, 256"),
        ({"methods": ["histoy"]}, "--methods histoy: there are none, keyed"),
        ({"methods": ["none", "ngram"]}, "add keyed or history"),
        ({"methods": ["history"]}, "add one of stock, none, keyed"),
        ({"rounds": 0}, "at least one round"),
        ({"temperatures": [-1.0]}, "temperatures from 0 on"),
    ],
)
def test_mistakes_are_found_before_an_engine_starts(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        run(True, **options)
