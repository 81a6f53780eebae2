"""What a configuration shows to others. Pure."""

from __future__ import annotations

import re
from typing import Any

SECRET = re.compile(r"(^|_)(token|secret|password|passwd|api_?key|credentials?)$", re.IGNORECASE)
USER = re.compile(r"://[^/@\s]+@")  # and password, in a URL
HIDDEN = "…"


def redacted(value: Any, key: str = "") -> Any:
    """For pages and reports: no passwords in addresses, and no values of keys that are called secrets. `value` is a
    configuration, or the part of it under `key`."""
    if isinstance(value, dict):
        return {str(name): redacted(part, str(name)) for name, part in value.items()}
    if isinstance(value, list):
        return [redacted(part, key) for part in value]
    if isinstance(value, str):
        return HIDDEN if value and SECRET.search(key) else USER.sub(f"://{HIDDEN}@", value)
    return value


def without_passwords(value: Any) -> Any:
    """For sinks: `https://me:secret@host` becomes `https://***@host`; everything else is unchanged."""
    if isinstance(value, dict):
        return {key: without_passwords(part) for key, part in value.items()}
    if isinstance(value, list):
        return [without_passwords(part) for part in value]
    return USER.sub("://***@", value) if isinstance(value, str) else value
