"""Malformed messages: valid ones, drawn from the protocol's own types, changed at random with a seed.

Pure: all chance comes from the seed, so a frame that broke something can be reproduced by its number. Knows no
sockets.
"""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from rhymed.core.messages import Envelope
from rhymed.core.messages.fields import Amount

INTEGERS = (0, 1, 2, 7, -1, 255, 1 << 30, (1 << 31) - 1, 1 << 31, -(1 << 31), (1 << 63) - 1, -(1 << 63))
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e300, -1e300, 5e-324, float("inf"), float("-inf"), float("nan"))
TEXTS = (
    "",
    "a",
    "rollout-0",
    "reward-0",
    "0123456789abcdef",
    "\x00",
    "../../etc/passwd",
    "%s%n",
    "ü" * 50,
    "x" * 4000,
)
JUNK: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    1 << 62,
    1.5,
    float("nan"),
    "",
    "text",
    b"bytes",
    [],
    {},
    [[]],
    {"": 0},
    [None] * 100,
)
LENGTHS = (b"\xdf\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff")
"""MessagePack headers of maps, lists, texts and bytes that announce 4 GiB."""

DEEPEST = 50_000
MOST_FRAMES = 40
REMEMBERED = 256  # messages that may be sent again
SAMPLE_IDS = 3

Frames = list[bytes]

SIMPLE: dict[Any, Sequence[Any]] = {int: INTEGERS, float: FLOATS, str: TEXTS, bool: (False, True)}


class Malformed:
    """An endless series of messages to a receiver of `accepts`; the same for the same seed."""

    def __init__(self, accepts: Any, seed: int) -> None:
        self._draw = random.Random(seed)
        self._types = get_args(accepts)
        self._said: list[Frames] = []
        self.counts: dict[str, int] = {}
        self._ways: list[Callable[[], Frames]] = [
            self._valid,
            self._flipped,
            self._flipped,
            self._cut,
            self._junk_field,
            self._unknown_field,
            self._missing_field,
            self._unknown_tag,
            self._huge_length,
            self._deep,
            self._noise,
            self._frame_count,
            self._unasked_reply,
            self._swapped,
            self._again,
            self._arrays,
        ]

    def next(self) -> Frames:
        way = self._draw.choice(self._ways)
        name = way.__name__.strip("_")
        self.counts[name] = self.counts.get(name, 0) + 1
        made = way()
        if len(self._said) < REMEMBERED:
            self._said.append(made)
        elif self._draw.random() < 0.05:
            self._said[self._draw.randrange(REMEMBERED)] = made
        return made

    # Ways

    def _valid(self) -> Frames:
        return [self._head(), msgspec.msgpack.encode(self._message())]

    def _flipped(self) -> Frames:
        frames = [bytearray(frame) for frame in self._valid()]
        for _ in range(self._draw.randint(1, 8)):
            frame = self._draw.choice(frames)
            frame[self._draw.randrange(len(frame))] ^= 1 << self._draw.randrange(8)
        return [bytes(frame) for frame in frames]

    def _cut(self) -> Frames:
        frames = self._valid()
        which = self._draw.randrange(2)
        frames[which] = frames[which][: self._draw.randrange(len(frames[which]))]
        if self._draw.random() < 0.3:
            frames[which] += self._draw.randbytes(self._draw.randrange(100))
        return frames

    def _junk_field(self) -> Frames:
        def change(body: dict[str, Any]) -> None:
            body[self._draw.choice(list(body))] = self._draw.choice(JUNK)

        return self._changed(change)

    def _unknown_field(self) -> Frames:
        def change(body: dict[str, Any]) -> None:
            body[self._draw.choice(("surprise", "", "__class__", "type "))] = self._draw.choice(JUNK)

        return self._changed(change)

    def _missing_field(self) -> Frames:
        def change(body: dict[str, Any]) -> None:
            del body[self._draw.choice(list(body))]

        return self._changed(change)

    def _unknown_tag(self) -> Frames:
        def change(body: dict[str, Any]) -> None:
            body["type"] = self._draw.choice(("no_such", "", "Join", "__reduce__", 7, None, "finish", "done"))

        return self._changed(change)

    def _huge_length(self) -> Frames:
        head, body = self._valid()
        at = self._draw.randrange(len(body))
        huge = body[:at] + self._draw.choice(LENGTHS) + body[at:]
        return [head, huge] if self._draw.random() < 0.7 else [huge, body]

    def _deep(self) -> Frames:
        head, body = self._valid()
        nest = self._draw.choice((b"\x91", b"\x81\xa1a", b"\xdc\x00\x01")) * self._draw.randrange(1, DEEPEST)
        frames = [[head, nest], [nest, body], [head, body[:-1] + nest]]
        return self._draw.choice(frames)

    def _noise(self) -> Frames:
        return [self._draw.randbytes(self._draw.randrange(200)) for _ in range(self._draw.randrange(1, 5))]

    def _frame_count(self) -> Frames:
        frames = self._valid()
        if self._draw.random() < 0.3:
            return frames[: self._draw.randrange(2)] or [b""]
        return frames + [self._draw.randbytes(self._draw.randrange(50))] * self._draw.randrange(1, MOST_FRAMES)

    def _unasked_reply(self) -> Frames:
        head = Envelope(kind="reply", id=self._draw.choice((0, 1, 2, 3, 100, self._draw.randrange(1 << 62))))
        return [msgspec.msgpack.encode(head), self._valid()[1]]

    def _swapped(self) -> Frames:
        head, body = self._valid()
        return self._draw.choice(([body, head], [head, head], [body, body], [head, b""], [b"", body]))

    def _again(self) -> Frames:
        return self._draw.choice(self._said) if self._said else self._valid()

    def _arrays(self) -> Frames:
        size = self._draw.choice((0, 1, 3, 4, 64, 4096, 100_000))
        return self._valid() + [self._draw.randbytes(size) for _ in range(self._draw.randint(1, 3))]

    # Parts

    def _changed(self, change: Callable[[dict[str, Any]], None]) -> Frames:
        """A valid message with a change to its map or to one inside it."""
        head, body = self._valid()
        tree = msgspec.msgpack.decode(body)
        maps = [tree] + [one for value in tree.values() if isinstance(value, list) for one in value]
        target = self._draw.choice([one for one in maps if isinstance(one, dict) and one] or [tree])
        change(target)
        return [head, msgspec.msgpack.encode(tree)]

    def _head(self) -> bytes:
        kind: Literal["request", "event"] = "event" if self._draw.random() < 0.3 else "request"
        head = Envelope(kind=kind, id=self._draw.randrange(1 << 20), deadline_s=self._value(Amount))
        return msgspec.msgpack.encode(head)

    def _message(self) -> Any:
        return self._value(self._draw.choice(self._types))

    def _value(self, kind: Any) -> Any:
        """A random value of that type."""
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._draw.choice(_allowed(kind)) if arguments[0] in SIMPLE else self._value(arguments[0])
        if origin is Literal:
            return self._draw.choice(arguments)
        if origin in (Union, types.UnionType):
            return self._value(self._draw.choice(arguments))
        if origin is list:
            return [self._value(arguments[0]) for _ in range(self._draw.randint(0, SAMPLE_IDS))]
        if origin is tuple:
            return tuple(self._value(one) for one in arguments)
        if origin is dict:
            return {self._value(arguments[0]): self._value(arguments[1]) for _ in range(self._draw.randint(0, 3))}
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = msgspec.structs.fields(kind)
            return kind(**{field.name: self._value(field.type) for field in fields})
        return self._draw.choice(SIMPLE[kind]) if kind in SIMPLE else None


@cache
def _allowed(kind: Any) -> list[Any]:
    """Texts or numbers of this type."""
    found = []
    for value in SIMPLE[get_args(kind)[0]]:
        with contextlib.suppress(msgspec.ValidationError):
            found.append(msgspec.convert(value, kind))
    return found
