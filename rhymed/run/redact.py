"""What a configuration shows to others, and the files that hold one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rhymed import atomic
from rhymed.config import Config

SECRET = re.compile(r"(^|_)(token|secret|password|passwd|api_?key|credentials?)$", re.IGNORECASE)
USER = re.compile(r"://[^/@\s]+@")  # and password, in a URL
QUERY = re.compile(r"(?i)([?&][a-z_-]*(?:token|secret|password|passwd|key|credentials?)=)[^&#\s]+")
HIDDEN = "…"


def write_config(file: Path, config: Config) -> None:
    """Whole or not at all, and durable. Where it has secrets, only its owner may read it. Raises `OSError`."""
    mode = 0o600 if has_secrets(config) else None
    atomic.write(file, config.model_dump_json(indent=2) + "\n", mode=mode, synced=True)


def has_secrets(config: Config) -> bool:
    settings = config.model_dump(mode="json")
    return bool(redacted(settings) != settings)


def redacted(value: Any, key: str = "") -> Any:
    """For pages and reports: no passwords in addresses, and no values of keys that are called secrets. `value` is a
    configuration, or the part of it under `key`."""
    if isinstance(value, dict):
        return {str(name): redacted(part, str(name)) for name, part in value.items()}
    if isinstance(value, list):
        return [redacted(part, key) for part in value]
    if isinstance(value, str):
        return HIDDEN if value and SECRET.search(key) else _without(value, HIDDEN)
    return value


def without_passwords(value: Any) -> Any:
    """For sinks: `https://me:secret@host` becomes `https://***@host`; everything else is unchanged."""
    if isinstance(value, dict):
        return {key: without_passwords(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_passwords(part) for part in value]
    return _without(value, "***") if isinstance(value, str) else value


def _without(text: str, hidden: str) -> str:
    return QUERY.sub(lambda found: found[1] + hidden, USER.sub(f"://{hidden}@", text))
