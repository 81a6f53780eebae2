"""Every answer that a request may get."""

from __future__ import annotations

from rhymed.core.messages.base import Done, Failure
from rhymed.core.messages.queues import Queues, Welcome
from rhymed.core.messages.store import (
    Begun,
    Journal,
    Kept,
    Lengths,
    Missing,
    Partials,
    Prompts,
    Samples,
    Sessions,
    StoreStats,
)
from rhymed.core.messages.weights import Manifest, Slice, SliceSources

Reply = (
    Done
    | Failure
    | Welcome
    | Queues
    | Prompts
    | Samples
    | Kept
    | Missing
    | Partials
    | Begun
    | Sessions
    | Lengths
    | Journal
    | StoreStats
    | Manifest
    | SliceSources
    | Slice
)
