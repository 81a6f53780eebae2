"""The envelope, and the answers that every receiver may send."""

from __future__ import annotations

from typing import Literal

import msgspec

from rhymed.core.messages.fields import Amount, Count, Report, Word, Worded

PROTOCOL = 25
"""Version of these messages. A peer with another version is refused when it joins."""


class Message(msgspec.Struct, frozen=True, tag_field="type", forbid_unknown_fields=True, omit_defaults=True):
    """Base of all bodies."""


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of the structs inside a body."""


class Envelope(Part, frozen=True, kw_only=True):
    """First frame of every message."""

    kind: Literal["request", "reply", "event"]
    id: Count = 0  # pairs a reply with its request; 0 in an event
    deadline_s: Amount = 0.0  # how long the sender waits; the receiver may give up after it


class Done(Message, frozen=True, tag="done"):
    """Answer: the request succeeded (store: the data is durable as configured)."""


class Failure(Message, Worded, frozen=True, kw_only=True, tag="failure"):
    """Answer: the request failed, and why."""

    error: Word  # class name in rhymed.core.errors
    message: Report
