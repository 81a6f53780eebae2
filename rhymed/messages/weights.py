"""To the trainer's weights address, and its answers."""

from __future__ import annotations

from rhymed.messages.base import Message


class GetManifest(Message, frozen=True, kw_only=True, tag="get_manifest"):
    """Rollout worker -> trainer: where is this version? Answered by Manifest."""

    version: int
    host: str = ""  # the asker's machine, see rhymed.service.host; on the trainer's own it needs no digest


class GetWeights(Message, frozen=True, kw_only=True, tag="get_weights"):
    """Rollout worker on another host -> trainer: a slice of the version's file. Answered by Done + one frame."""

    version: int
    offset: int  # bytes
    length: int  # bytes


ToWeights = GetManifest | GetWeights


class Manifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """One safetensors file a version. `path` serves a reader on `host`; others fetch `size` bytes by slices."""

    version: int
    host: str  # identity of the machine (its boot id), not a name to connect to
    path: str
    size: int  # bytes
    digest: str  # blake2b-128 of the file, hex; empty for a reader on `host`: it would cost more than publishing
