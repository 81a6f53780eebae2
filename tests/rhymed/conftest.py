from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.data import Row
from rhymed.sources import load_rows

sys.path.insert(0, str(Path(__file__).parent))  # `hubserver` and `reading` are imported by the tests beside them

from reading import config


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Row]]:
    """Writes a file and loads it."""

    def load(content: bytes | str, source: str = "jsonl", **data: Any) -> list[Row]:
        file = tmp_path / f"rows.{source}"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_rows(config(source=source, path=str(file), **data))

    return load
