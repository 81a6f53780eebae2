"""The configuration of a run as tables: what differs from the defaults, and all of it. Pure.

A key is the path of a setting (`trainer.lr`); entries of a list of tables are named by their `name`, else numbered
from 1 (`eval.datasets[held-out].path`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from rhymed.config.inputs import HeldOut, Share
from rhymed.config.reward import Scorer
from rhymed.report import html

HIDDEN = ("run.name", "run.folder")
ENTRIES: dict[str, type[BaseModel]] = {"data.datasets": Share, "eval.datasets": HeldOut, "reward.scorers": Scorer}
"""List -> what its entries are, for their defaults."""


def tables(config: dict[str, Any], defaults: dict[str, Any]) -> Iterator[str]:
    """Empty without a configuration."""
    flat, usual = dict(_flat(config)), dict(_flat(defaults))
    shown = {key: value for key, value in flat.items() if key not in HIDDEN}
    changed = [(key, _toml(value)) for key, value in shown.items() if _differs(key, value, usual)]
    if flat:
        yield html.paragraph("Settings that differ from the defaults:", "soft") if changed else ""
        yield html.table(("setting", "value"), changed, "settings")
        every = html.table(("setting", "value"), [(k, _toml(v)) for k, v in flat.items()], "settings")
        yield html.folded("All settings", every)


def _flat(tree: dict[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{above}{key}"
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{path}.")
        elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
            for number, entry in enumerate(value, 1):
                name = entry.get("name") or number
                yield from _flat({key: own for key, own in entry.items() if key != "name"}, f"{path}[{name}].")
        else:
            yield path, value


def _differs(key: str, value: Any, usual: dict[str, Any]) -> bool:
    section, bracket, rest = key.partition("[")
    entry = ENTRIES.get(section) if bracket else None
    if entry is None:
        return key not in usual or usual[key] != value
    field = entry.model_fields.get(rest.rpartition("].")[2])
    return field is None or field.is_required() or value != field.get_default(call_default_factory=True)


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
