"""The envelope, and the answers that every receiver may give."""

from __future__ import annotations

from typing import Literal

import msgspec

PROTOCOL = 7
"""Version of these messages. A peer of another version is turned away when it joins."""


class Message(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Base of all bodies."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what stands inside a body."""


class Envelope(Part, frozen=True, kw_only=True):
    """First frame of every message."""

    kind: Literal["request", "reply", "event"]
    id: int = 0  # pairs a reply with its request; 0 in an event
    deadline_s: float = 0.0  # how long the asker will wait; the answerer may give up after it


class Done(Message, frozen=True, tag="done"):
    """Answer: it happened (for the store: it is durable as configured)."""


class Failure(Message, frozen=True, kw_only=True, tag="failure"):
    """Answer: it did not happen, and why."""

    error: str  # class name in rhymed.errors
    message: str
