"""Types of the texts and numbers in messages. A field without one of them is an error of the tests.

What a peer wrote is either refused by a pattern, or made printable in one line of bounded length as soon as its
message is decoded (`Worded`). `Exact` texts are kept as they are: code that shows one passes it through
`rhymed.core.printable`. A number outside of its range is refused: the code behind can count with those that it gets.
"""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from rhymed.core.printable import LONGEST, line


class Longest(NamedTuple):
    """Marks a text for people; the number of characters that are kept."""

    characters: int = LONGEST


WORKER = r"^[A-Za-z0-9][A-Za-z0-9._@:-]{0,63}\Z"
MOST = 1 << 53  # as a float, it is exact
MOST_NUMBERS = 2000  # metrics, rates … in one message

WorkerName: TypeAlias = Annotated[str, Meta(pattern=WORKER)]
"""Begins with its role, see `rhymed.core.messages.names`."""
PromptId: TypeAlias = Annotated[str, Meta(max_length=64)]
"""16 hex digits. Only the length is checked: there are thousands in a message, and only known ones are kept."""
Token: TypeAlias = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{0,128}\Z")]
"""A random id, a digest, or the name of an algorithm."""
Exact: TypeAlias = Annotated[str, "exact"]
"""Kept as it is."""
Word: TypeAlias = Annotated[str, Longest(120)]
"""The name of a metric, host, phase, state …"""
Line: TypeAlias = Annotated[str, Longest()]
Report: TypeAlias = Annotated[str, Longest(4000)]
"""An error or a reason. In one line, too."""
Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
"""Of tokens, samples, bytes …, or a number from 0."""
Version: TypeAlias = Annotated[int, Meta(ge=-1, le=MOST)]
"""Of the policy; -1: none."""
Step: TypeAlias = Annotated[int, Meta(ge=-MOST, le=MOST)]
"""Of training, from 0. Negative: of an earlier run."""
Amount: TypeAlias = Annotated[float, Meta(ge=0, le=1e18)]
"""Seconds, or another quantity that is finite and not negative."""
Numbers: TypeAlias = Annotated[dict[Word, float], Meta(max_length=MOST_NUMBERS)]


class Worded(msgspec.Struct, frozen=True):
    """Mixed into structs with texts for people: these are printable from the moment that the struct is made."""

    def __post_init__(self) -> None:
        for name, clean in _cleaners(type(self)):
            if value := getattr(self, name):
                cleaned = clean(value)
                if cleaned is not value:
                    msgspec.structs.force_setattr(self, name, cleaned)


@cache
def _cleaners(kind: type) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    hints = typing.get_type_hints(kind, include_extras=True)
    found = ((field.name, cleaner(hints[field.name])) for field in msgspec.structs.fields(kind))
    return tuple((name, clean) for name, clean in found if clean is not None)


def cleaner(kind: Any) -> Callable[[Any], Any] | None:
    """How a field of this type is made printable. None: nothing in it is a text for people."""
    args = typing.get_args(kind)
    longest = next((mark.characters for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Longest)), 0)
    if longest:
        return lambda text: line(text, longest)
    inner = [clean for arg in args if (clean := cleaner(arg))]
    if not inner:
        return None
    clean, origin = inner[0], typing.get_origin(kind)
    if origin is list:
        return lambda texts: list(map(clean, texts))
    if origin is dict and len(inner) == 2:
        return lambda texts: {clean(key): inner[1](value) for key, value in texts.items()}
    if origin is dict:
        return lambda numbers: _keys(numbers, clean)
    return clean  # `Line | None`, or `Numbers`


def _keys(numbers: dict[str, Any], clean: Callable[[str], str]) -> dict[str, Any]:
    if all(clean(key) is key for key in numbers):
        return numbers
    return {clean(key): value for key, value in numbers.items()}
