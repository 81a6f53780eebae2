"""Rows and files for tests of datasets."""

from __future__ import annotations

import json
from typing import Any

from rhymed.core.config import Config


def config(**data: Any) -> Config:
    return Config.model_validate({"data": data, "rollout": {"prompts_per_step": 1}})


def lines(*rows: Any) -> str:
    return "\n".join(json.dumps(row) for row in rows)
