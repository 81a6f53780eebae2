"""Settings on their way into a jail, as plain values: their classes would take most of the time of its start.

What went in as a section of the configuration comes out as an object with the same attributes, but without the
section's properties. Imports the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any


def packed(sections: Mapping[str, Any], **plain: Any) -> bytes:
    """`sections`: name -> a section of the configuration, or several; `plain`: what JSON has."""
    return json.dumps([sections, plain], default=lambda section: section.model_dump(mode="json")).encode()


def unpacked(body: bytes) -> dict[str, Any]:
    """All of them by their names. Tables in a section stay tables."""
    sections, plain = json.loads(body)
    return {name: _section(tree) for name, tree in sections.items()} | plain


def _section(tree: Any) -> Any:
    return [SimpleNamespace(**each) for each in tree] if isinstance(tree, list) else SimpleNamespace(**tree)
