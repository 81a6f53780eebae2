"""To the trainer's weights address, and its answers."""

from __future__ import annotations

from rhymed.messages.base import Message


class GetManifest(Message, frozen=True, kw_only=True, tag="get_manifest"):
    """Rollout worker -> trainer: location of this version's file. Answered by Manifest."""

    version: int
    host: str = ""  # the worker's machine, see rhymed.service.host; no digest is needed on the trainer's own


class GetWeights(Message, frozen=True, kw_only=True, tag="get_weights"):
    """Rollout worker on another host -> trainer: a slice of the version's file. Answered by Done + one frame."""

    version: int
    offset: int  # bytes
    length: int  # bytes


ToWeights = GetManifest | GetWeights


class Manifest(Message, frozen=True, kw_only=True, tag="manifest"):
    """One safetensors file per version. Workers on `host` read `path`; others fetch `size` bytes in slices."""

    version: int
    host: str  # identity of the machine (its boot id), not a name to connect to
    path: str
    size: int  # bytes
    digest: str  # blake2b-128 of the file, hex; empty for a worker on `host`: hashing would cost more than publishing
