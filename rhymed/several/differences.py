"""In which settings runs differ. Pure: configurations in, the keys that are not equal everywhere out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rhymed.run.redact import redacted

OWN = ("run.name", "run.folder")  # every run has its own

Settings = Mapping[str, Any]


def flat(config: Settings, prefix: str = "") -> dict[str, Any]:
    """Values by dotted key. Lists are values."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differences(configs: Sequence[Settings]) -> dict[str, list[Any]]:
    """Key -> the value in each configuration, None where there is none; without secrets."""
    settings = [flat(redacted(dict(config))) for config in configs]
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: [each.get(key) for each in settings] for key in keys if key not in OWN}
    return {key: row for key, row in values.items() if any(value != row[0] for value in row)}
