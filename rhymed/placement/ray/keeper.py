"""The actor that stands for one process of a run on a machine of a Ray cluster. Knows nothing of runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import msgspec

from rhymed.config.load import is_setting
from rhymed.placement.ray.guardian import Event, Order
from rhymed.placement.ray.words import Start

DROPPED = ("RAY_", "OMP_NUM_THREADS")  # what Ray sets for its own workers


class Keeper:
    """Of one start: `run` returns when the process has ended, and dies with the machine. `say` from other threads."""

    def __init__(self) -> None:
        self._guardian: subprocess.Popen[bytes] | None = None
        self._unwanted = False  # it was asked to end before it began
        self._lock = threading.Lock()

    def where(self) -> str:
        """This machine's address."""
        import ray

        return str(ray.util.get_node_ip_address())

    def run(self, start: bytes, head: str, ranks: str) -> tuple[int | None, str]:
        """Exit status and last words of the process; None: why it could not be started, empty: it is lost."""
        wanted = msgspec.json.decode(start, type=Start)
        order = self._order(wanted, head, ranks)
        with self._lock:
            if self._unwanted:
                return -signal.SIGTERM, ""
            guardian = self._guardian = subprocess.Popen(
                [sys.executable, "-m", "rhymed.placement.ray.guardian", wanted.name, str(os.getpid())],  # for `ps`
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            self._write(msgspec.json.encode(order))
        guardian.wait()  # it has left a child of its own
        assert guardian.stdout is not None
        for line in guardian.stdout:
            event = msgspec.json.decode(line, type=Event)
            if event.error:
                return None, event.error
            if event.status is not None:
                return event.status, event.words
        return None, ""

    def say(self, what: str) -> None:
        with self._lock:
            if self._guardian is None:
                self._unwanted = True
            else:
                self._write(what.encode())

    def _write(self, line: bytes) -> None:
        assert self._guardian is not None
        assert self._guardian.stdin is not None
        self._guardian.stdin.write(line + b"\n")
        self._guardian.stdin.flush()

    def _order(self, start: Start, head: str, ranks: str) -> Order:
        filled = {"{host}": self.where(), "{ranks}": ranks, "{port}": str(_free_port())}
        given = {name: _filled(value, filled) for name, value in start.environment.items()}
        return Order(
            argv=[sys.executable, "-m", "rhymed", *start.arguments],
            environment=_inherited(dict(os.environ)) | given,
            files=start.files,
            output=start.output,
            head=head,
            broker=start.broker,
            needs=start.needs,
        )


def actor(**options: Any) -> Any:
    """A keeper that is being placed, as Ray's handle."""
    import ray

    return ray.remote(Keeper).options(max_restarts=0, max_concurrency=4, **options).remote()


def _inherited(environment: dict[str, str]) -> dict[str, str]:
    """Without Ray's own variables, and without settings, which the run's configuration holds already."""
    return {
        name: value for name, value in environment.items() if not name.startswith(DROPPED) and not is_setting(name)
    }


def _filled(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
