"""Numbers in requests. All functions raise `MalformedMessage`, which names the parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rhymed.errors import MalformedMessage
from rhymed.messages.fields import MOST


def whole(text: str, name: str) -> int:
    try:
        value = int(text) if len(text) < 20 else None
    except ValueError:
        value = None
    if value is None:
        raise MalformedMessage(f"{name}={text[:40]}: a whole number is expected")
    return value


def integer(query: Mapping[str, str], name: str, default: int, least: int = -MOST) -> int:
    text = query.get(name)
    value = default if text is None else whole(text, name)
    if not least <= value <= MOST:
        raise MalformedMessage(f"{name}={value}: {least} to {MOST} is expected")
    return value


def number(text: str | None, name: str, default: float) -> float:
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e15:
        raise MalformedMessage(f"{name}={str(text)[:40]}: a number is expected")
    return value
