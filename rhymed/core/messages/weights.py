"""To the trainer's weights address and to relays, and their answers."""

from __future__ import annotations

from rhymed.core.messages.base import Message, Part
from rhymed.core.messages.fields import Amount, Count, Exact, Line, Token, Version, Word, Worded, WorkerName


class GetManifest(Message, frozen=True, kw_only=True, tag="get_manifest"):
    """Rollout worker -> trainer: location of this version's file. Answered by Manifest."""

    version: Version


class FailedSlice(Part, Worded, frozen=True, kw_only=True):
    """A slice that a relay did not deliver, or delivered damaged."""

    index: Count
    source: Line  # the relay's address


class NextSlices(Message, Worded, frozen=True, kw_only=True, tag="next_slices"):
    """Rollout worker on another host -> trainer: what was stored since the last request, and a request for sources of
    further slices. Answered by SliceSources."""

    edition: Token  # of the file, see Manifest
    worker: WorkerName
    begin: bool = False  # nothing of this edition is stored yet
    relay: Line = ""  # address at which the worker serves the slices that it has stored; empty: it serves none
    stored: list[Count] = []  # verified slices, since the last request
    failed: list[FailedSlice] = []  # since the last request
    want: Count = 0  # slices, at most
    wait_s: Amount = 0.0  # how long the trainer may wait until there is a source


class GetSlice(Message, frozen=True, kw_only=True, tag="get_slice"):
    """Rollout worker on another host -> trainer or relay: one slice. Answered by Slice + one frame."""

    edition: Token
    index: Count


ToWeights = GetManifest | NextSlices | GetSlice


class Manifest(Message, Worded, frozen=True, kw_only=True, tag="manifest"):
    """One safetensors file per version. Workers on `host` read `path`; others fetch it in slices of equal size."""

    version: Version
    edition: Token  # random id of this file: after a rollback, version numbers repeat
    host: Word  # identity of the machine (its boot id), not a name to connect to
    path: Exact
    size: Count  # bytes
    slice_bytes: Count  # of all slices but the last, which is what remains


class SliceSource(Part, Worded, frozen=True, kw_only=True):
    """Where a worker gets one slice."""

    index: Count
    digest: Token  # SHA-256 of the slice, in hex
    source: Line = ""  # address of a relay; empty: the trainer


class SliceSources(Message, frozen=True, kw_only=True, tag="slice_sources"):
    """Answer to NextSlices. Empty: nothing to fetch now; other workers are receiving what is missing."""

    slices: list[SliceSource] = []


class Slice(Message, frozen=True, kw_only=True, tag="slice"):
    """Answer to GetSlice. The frame is the slice."""
