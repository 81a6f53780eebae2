"""The engine's side: one rank's membership in the trainer's broadcasts, from version to version.

A version is received as a whole before the first tensor is given away. Whatever fails before, the caller takes the
file, which always exists.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rhymed.errors import WireError
from rhymed_workers.weights.broadcast import notice
from rhymed_workers.weights.broadcast.group import Group, store
from rhymed_workers.weights.broadcast.notice import GO, Notice
from rhymed_workers.weights.broadcast.sender import WINDOW_S
from rhymed_workers.weights.shared.reader import Layout

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

DECISION_S = WINDOW_S + 10.0  # more than a trainer takes that lives


class Received:
    """A version in memory of this rank, as `Opened`."""

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        self._layout = layout
        self._memory: Tensor | None = memory

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parts of the memory: they must not be used after `close`."""
        assert self._memory is not None, "not after close"
        return self._layout.tensors(self._memory)

    def close(self) -> None:
        self._memory = None


class Member:
    """Of one rank. Kept from version to version: the group stays as long as its generation."""

    def __init__(self) -> None:
        self._about: Notice | None = None  # of the last version
        self._store: Any = None
        self._group: Group | None = None
        self._number = 0  # in the group; 0 is the trainer

    def receive(self, path: Path, device: Any) -> Received:
        """Blocking. Raises `WireError` with the reason if this version is not received."""
        import torch

        about, layout = notice.read(path), Layout(path)
        if about.device != device.type:
            raise WireError(f"the trainer broadcasts to devices of the kind {about.device}, this is {device.type}")
        if about.size != layout.size:
            raise WireError(f"{about.size} bytes are broadcast for a file with {layout.size}")
        try:
            memory = torch.empty(about.size, dtype=torch.uint8, device=device)
        except RuntimeError as error:
            raise WireError(f"no memory for a broadcast: {error}") from error
        try:
            self._join(about)
            self._wait(about)
            self._take(about, memory)
        except WireError:
            self._leave(about)
            raise
        except RuntimeError as error:
            self._leave(about)
            raise WireError(f"the trainer does not answer: {error}") from error
        return Received(layout, memory)

    def _join(self, about: Notice) -> None:
        if not Path(about.store).exists():
            raise WireError("the trainer has removed its broadcast")
        if self._about is None or (self._about.store, self._about.generation) != (about.store, about.generation):
            self._close()
            self._store = store(Path(about.store))
            self._number = self._store.add(about.joined, 1)
        self._about = about
        if self._number > about.members:
            raise WireError(f"the broadcast has {about.members} members already")

    def _wait(self, about: Notice) -> None:
        self._store.add(about.ready, 1)
        self._store.wait([about.decision], timedelta(seconds=DECISION_S))
        if (decision := self._store.get(about.decision)) != GO:
            raise WireError(decision.decode(errors="replace"))

    def _take(self, about: Notice, memory: Tensor) -> None:
        from torch.distributed import PrefixStore

        if self._group is None:
            keys = PrefixStore(f"{about.generation}/group", self._store)
            self._group = Group(keys, self._number, about.members + 1, memory.device)
        self._group.broadcast(memory)

    def _leave(self, about: Notice) -> None:
        """The trainer begins another generation, which this rank may join."""
        if self._store is not None and self._number <= about.members:
            try:
                self._store.set(about.broken, "")
            except RuntimeError as error:
                log.debug("the trainer is gone: %s", error)
        self._close()

    def _close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None
