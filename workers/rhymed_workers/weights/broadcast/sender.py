"""The trainer's side: broadcasts the newest version when all engines wait for it, and to nobody else.

A generation is a set of members. It begins when as many ranks as the settings have engines ask to be members, and
ends with the first version that one of them does not wait for, or whose broadcast breaks off. Then everybody takes
that version's file, and the next version begins another generation. So an engine that joins, leaves, hangs or dies
costs some seconds, and no weights.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rhymed.errors import WireError
from rhymed_workers.weights.broadcast import notice
from rhymed_workers.weights.broadcast.group import Group, count, store
from rhymed_workers.weights.broadcast.notice import GO, Notice
from rhymed_workers.weights.shared.offer import fill

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)

WINDOW_S = 3.0  # from the first member that waits for a version to the last
LOOK_S, IDLE_S = 0.01, 0.05
STORE = "broadcast-"
NOBODY = "no engine waits for it"


class Broadcasts:
    """Of one trainer. At most one version is broadcast at a time."""

    def __init__(self, members: int, *, window_s: float = WINDOW_S) -> None:
        """`members`: ranks of all engines."""
        self._members, self._window_s = members, window_s
        self._keys: Path | None = None  # file of the store
        self._store: Any = None
        self._generation = self._turn = 0
        self._group: Group | None = None
        self._sending: _Sending | None = None

    def offer(self, path: Path, tensors: Sequence[tuple[str, Tensor]], starts: Sequence[int], dtype: str) -> None:
        """As `Offers.offer`. Blocking: a copy on the device."""
        import torch

        self.withdraw()
        if not (size := path.stat().st_size - starts[0] if starts else 0):
            return
        try:
            memory = torch.empty(size, dtype=torch.uint8, device=tensors[0][1].device)
            fill(memory, tensors, [start - starts[0] for start in starts], dtype)
            self._open(path.parent)
            self._sending = _Sending(self, path, self._next(memory), memory)
        except (RuntimeError, OSError) as error:  # no memory, most likely
            log.warning("the weights are not broadcast, engines take %s: %s", path, error)

    def _open(self, folder: Path) -> None:
        """A store in the folder of the weights, which another program may have removed."""
        if self._keys is None or not self._keys.exists():
            self._keys = folder / f"{STORE}{secrets.token_hex(4)}"
            self._keys.touch(0o600)
            self._close()
            self._store = store(self._keys)

    def _next(self, memory: Tensor) -> Notice:
        self._turn += 1
        about = Notice(
            store=str(self._keys),
            generation=self._generation,
            turn=self._turn,
            members=self._members,
            size=len(memory),
            device=memory.device.type,
        )
        if not self._store.check([about.broken]):
            return about
        self._end_generation("a member has left")
        return msgspec.structs.replace(about, generation=self._generation)

    def withdraw(self) -> None:
        """From now on no engine can begin. Waits for a broadcast that is on its way."""
        if self._sending is not None:
            self._sending.end()
            self._sending = None

    def wait_for_all(self, about: Notice, over: threading.Event) -> str:
        """Why this version is not broadcast; empty: all members wait for it."""
        first = 0.0
        while (ready := count(self._store, about.ready)) < about.members:
            now = time.monotonic()
            first = first or (now if ready else 0.0)
            if over.is_set() or (first and now - first > self._window_s):
                return f"only {ready} of {about.members} ranks of engines wait for it" if ready else NOBODY
            time.sleep(LOOK_S if first else IDLE_S)
        return ""

    def send(self, about: Notice, memory: Tensor, why: str) -> None:
        """`why`: not to send it. Raises `WireError`."""
        from torch.distributed import PrefixStore

        self._store.set(about.decision, why.encode() or GO)
        if why:
            raise WireError(why)
        if self._group is None:
            keys = PrefixStore(f"{about.generation}/group", self._store)
            self._group = Group(keys, 0, about.members + 1, memory.device)
        self._group.broadcast(memory)

    def failed(self, path: Path, why: str) -> None:
        if why != NOBODY:  # all members are where they were
            self._end_generation(f"engines take {path}: {why}")

    def _end_generation(self, why: str) -> None:
        log.warning("a broadcast of weights to all engines begins again with the next version: %s", why)
        self._close()
        self._generation += 1

    def _close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


class _Sending:
    """One version: waits for all members on a thread of its own, then sends."""

    def __init__(self, owner: Broadcasts, path: Path, about: Notice, memory: Tensor) -> None:
        self._owner, self._path, self._about = owner, path, about
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(memory,), name="broadcast", daemon=True)
        notice.write(path, about)
        self._thread.start()

    def end(self) -> None:
        notice.remove(self._path)
        self._over.set()
        self._thread.join()

    def _run(self, memory: Tensor) -> None:
        started, owner = time.monotonic(), self._owner
        try:
            why = owner.wait_for_all(self._about, self._over)
            notice.remove(self._path)
            owner.send(self._about, memory, why)
        except (WireError, RuntimeError) as error:
            owner.failed(self._path, str(error))
        else:
            log.info("%s: broadcast in %.2f s", self._path.stem, time.monotonic() - started)
