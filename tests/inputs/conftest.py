from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rhymed.inputs.datasets import load_rows
from rhymed.inputs.rows import Row
from tests.inputs.datafiles import config


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., list[Row]]:
    """Writes a file and loads it."""

    def load(content: bytes | str, source: str = "jsonl", **data: Any) -> list[Row]:
        file = tmp_path / f"rows.{source}"
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return load_rows(config(source=source, path=str(file), **data))

    return load
