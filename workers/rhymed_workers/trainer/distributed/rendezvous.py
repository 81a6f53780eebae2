"""Where the ranks of one trainer meet: a store of keys at rank 0, in which orders, signs of life and errors lie.

A wait for an order is a wait for a key, not an exchange of tensors: it may take as long as a step's samples take. The
store is gone with rank 0, which ends every wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch

from rhymed.core.errors import RhymedError, TrainerError, by_name
from rhymed_workers.trainer.distributed.orders import Order, decode, encode
from rhymed_workers.trainer.distributed.seats import Seat

Gone = torch.distributed.DistError
"""Rank 0, or the exchange with another rank, is lost."""

LOCAL = "127.0.0.1"
LOOPBACK = "lo"
BEAT_S = 1.0
ANSWER_S = 60.0  # for a key that is there
WAIT_S = 600.0  # of one wait for an order; then it waits again


class Rendezvous:
    """One rank's connection. `listener`: of rank 0, which keeps the store."""

    def __init__(self, address: str, listener: socket.socket | None = None) -> None:
        """Raises `TrainerError`."""
        parts = urlsplit(address)
        self._taken = 0  # orders
        descriptor = None if listener is None else listener.detach()
        try:
            self.store = torch.distributed.TCPStore(
                parts.hostname,
                parts.port,
                is_master=descriptor is not None,
                wait_for_workers=False,
                timeout=timedelta(seconds=ANSWER_S),
                master_listen_fd=descriptor,
            )
        except Gone as error:
            raise TrainerError(f"rank 0 of the trainer does not answer at {address}: {error}") from None

    def give(self, order: Order) -> None:
        """From rank 0 to all others."""
        self.store.set(f"order/{self._taken}", encode(order))
        self._taken += 1

    def take(self) -> Order:
        """The next order, whenever it comes. Raises torch's `DistError` when rank 0 is gone."""
        key = f"order/{self._taken}"
        while True:
            try:
                self.store.wait([key], timedelta(seconds=WAIT_S))
                break
            except torch.distributed.DistStoreError:  # it took too long; a lost connection is another error
                continue
        self._taken += 1
        return decode(self.store.get(key))

    def begin(self, generation: str) -> None:
        self.store.set("generation", generation)

    def generation(self) -> str:
        return self.store.get("generation").decode()

    def again(self) -> Rendezvous:
        """Another connection, for another thread."""
        other = Rendezvous.__new__(Rendezvous)
        other._taken, other.store = 0, self.store.clone()
        return other

    def put_digests(self, rank: int, folder: str, digests: Mapping[str, str]) -> None:
        """Of this rank's files in a checkpoint's folder."""
        self.store.set(f"digests/{folder}/{rank}", json.dumps(digests))

    def get_digests(self, ranks: int, folder: str, patience: timedelta) -> dict[str, str]:
        """Of all ranks but the first, once they have written. Raises `TrainerError`."""
        keys, found = [f"digests/{folder}/{rank}" for rank in range(1, ranks)], dict[str, str]()
        try:
            self.store.wait(keys, patience)
        except Gone as error:
            raise TrainerError(f"a rank has not finished its part of a checkpoint: {error}") from None
        for key in keys:
            found |= json.loads(self.store.get(key))
            self.store.delete_key(key)
        return found

    def arrived(self, ranks: int) -> list[int]:
        return [rank for rank in range(ranks) if self.store.check([f"here/{rank}"])]

    def arrive(self, rank: int) -> None:
        self.store.set(f"here/{rank}", "")

    def fail(self, rank: int, error: BaseException) -> None:
        with contextlib.suppress(Gone):
            self.store.set(f"error/{rank}", f"{type(error).__name__}\n{error}")
            self.store.check([f"error/{rank}"])  # `set` does not wait for the store, and this process ends now

    def error_of(self, rank: int) -> RhymedError | None:
        """What a rank has written before it ended."""
        if not self.store.check([f"error/{rank}"]):
            return None
        name, _, text = self.store.get(f"error/{rank}").decode().partition("\n")
        kind = by_name(name)
        return kind(text) if kind.__name__ == name else TrainerError(f"rank {rank} of the trainer: {name}: {text}")

    def beat_for(self, rank: int) -> None:
        """Signs of life, on a connection of their own. When rank 0 is gone, they end the process: its main thread may
        wait for an exchange that never comes."""
        store = self.store.clone()

        def beat() -> None:
            try:
                while True:
                    store.add(f"beat/{rank}", 1)
                    time.sleep(BEAT_S)
            finally:  # whatever the error is
                os._exit(1)

        threading.Thread(target=beat, name="beat", daemon=True).start()

    def beats_of(self, rank: int) -> int:
        return int(self.store.add(f"beat/{rank}", 0))


def listen(address: str, bind: str = "") -> tuple[socket.socket, str]:
    """A socket for rank 0's store, and its address; without `address` on a free port that only this machine reaches.

    `bind`: the host to listen on, if it differs. Raises `TrainerError`.
    """
    parts = urlsplit(address or f"tcp://{LOCAL}:0")
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((bind if address and bind else parts.hostname, parts.port))
        found.listen(1024)
    except OSError as error:
        found.close()
        raise TrainerError(
            f"net.ranks = {address}: cannot be bound: {error.strerror or error}: name an address of this machine and"
            " a free port"
        ) from None
    return found, f"tcp://{parts.hostname}:{found.getsockname()[1]}"


def join(rendezvous: Rendezvous, seat: Seat, device: Any, timeout_s: float) -> Any:
    """Enter the process group; returns the mesh of devices over which weights are sharded."""
    from torch.distributed.device_mesh import init_device_mesh

    if seat.nodes == 1:  # nothing of it is open to the network
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, LOOPBACK)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(seat.local)
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if cuda else "cpu:gloo",
        store=torch.distributed.PrefixStore("group", rendezvous.store),
        rank=seat.rank,
        world_size=seat.size,
        timeout=timedelta(seconds=timeout_s),
    )
    return init_device_mesh(device.type, (seat.size,))
