"""Settings on their way into a jail, as plain values: their classes would take most of the time of its start.

What went in as a section of the configuration comes out as an object with the same attributes, but without the
section's properties. Imports the standard library alone.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

SECTION = "rhymed.core.config.Section"
"""The only key of a JSON object that is a section."""


def packed(**parts: Any) -> bytes:
    """Of sections, and of what JSON has."""
    return json.dumps(parts, default=lambda section: {SECTION: section.model_dump(mode="json")}).encode()


def unpacked(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body, object_hook=_section)
    return found


def _section(tree: dict[str, Any]) -> Any:
    return SimpleNamespace(**tree[SECTION]) if tree.keys() == {SECTION} else tree
