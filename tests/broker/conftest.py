from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rhymed_broker.ledger import Ledger

sys.path.insert(0, str(Path(__file__).parent))  # `telling` and `actors` are imported by the tests beside them

from telling import Story


@pytest.fixture
def story() -> Story:
    return Story(Ledger())


@pytest.fixture
def pipelined() -> Story:
    return Story(Ledger(max_staleness=1))
