"""Starts a run's processes on the machines of a Ray cluster; those next to the run's disk, on this machine.

The connection to Ray is a process of its own (`placer`). While it is lost, because Ray's head is, every process that
runs continues (`guardian`), and those that end wait for a place until Ray is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from rhymed.core.config import Config
from rhymed.core.run.layout import RunLayout
from rhymed.core.service.children import restart_pause_s, wait_or_kill
from rhymed.core.tasks import watched
from rhymed.placement.local import LocalProcess, LocalStarter, PlaceLost
from rhymed.placement.plan import Command, Seat, seats
from rhymed.placement.ray import cluster
from rhymed.placement.ray.guardian import Ended, Order
from rhymed.placement.ray.placer import Change, Start, Stop, ToPlacer

LONG_S = 10.0  # without a place, people are told of it
LONGEST_PAUSE_S = 30.0
CONFIG, KEYS = "config.json", "keys"


class RayProcess:
    """From the request for its place on."""

    def __init__(self, id: int, send: Callable[[ToPlacer], bool]) -> None:
        self._id, self._send = id, send
        loop = asyncio.get_running_loop()
        self.placed: asyncio.Future[object] = loop.create_future()
        self.end: asyncio.Future[Ended] = loop.create_future()

    @property
    def alive(self) -> bool:
        return not self.end.done()

    async def ended(self) -> int:
        return (await asyncio.shield(self.end)).status

    def terminate(self) -> None:
        self._stop("terminate")

    def kill(self) -> None:
        self._stop("kill")

    def _stop(self, how: str) -> None:
        """Without Ray it cannot be reached: it learns from the broker that the run is over."""
        if self.alive and not self._send(Stop(self._id, how)):
            self.end.set_result(Ended(-signal.SIGTERM, ""))

    def last_words(self) -> str:
        return self.end.result().words if self.end.done() else ""

    def hear(self, change: Change) -> None:
        if change.lost:
            for future in (self.placed, self.end):
                if not future.done():
                    future.set_exception(PlaceLost(f"its place is lost ({change.lost})"))
                    future.exception()  # whoever waits gets it
        elif change.ended is not None:
            for future in (self.placed, self.end):
                if not future.done():
                    future.set_result(change.ended)
        elif not self.placed.done():
            self.placed.set_result(None)


class RayStarter:
    """`report` receives a line per event, for people. `starting` makes one and keeps it connected."""

    def __init__(self, config: Config, layout: RunLayout, report: Callable[[str], None]) -> None:
        self._config, self._layout, self._report = config, layout, report
        self._local = LocalStarter()
        self._placer: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._seats: dict[str, Seat] = {}
        self._processes: dict[int, RayProcess] = {}
        self._next = 0
        self._head = cluster.address_of(config)

    async def start(self, command: Command, output: Path) -> RayProcess | LocalProcess:
        name, _, number = command.name.partition("-")
        await self._ready.wait()
        seat = self._seats.get(name)
        if seat is None or seat.kind == "pinned":  # next to the run's disk
            return await self._local.start(command, output)
        self._next += 1
        id = self._next
        start = order(self._config, self._layout, seat, int(number.removeprefix("node-") or 0), id, output)
        process = self._processes[id] = RayProcess(id, self._send)
        self._send(start)
        try:
            if not (await asyncio.wait([process.placed], timeout=LONG_S))[0]:
                self._report(f"{start.name} waits for a place in Ray's cluster ({cluster.needs(seat)})")
            await process.placed
        except BaseException:
            self._processes.pop(id, None)
            self._send(Stop(id, "kill"))
            raise
        return process

    async def stay_connected(self) -> None:
        failures = 0
        while True:
            try:
                self._placer, ready = await cluster.connect(self._config.run.name, self._head)
            except ConnectionError:
                failures += 1
                await asyncio.sleep(restart_pause_s(failures, 1.0, LONGEST_PAUSE_S))
                continue
            if self._ready.is_set():  # not for the first time
                for id in list(self._processes):
                    self._hear(Change(id, lost="Ray was away"))
                self._report("Ray is back")
            gpus = any(node.gpus for node in ready.nodes)
            self._head, self._seats = ready.head, {seat.name: seat for seat in seats(self._config, gpus=gpus)}
            self._ready.set()
            assert self._placer.stdout is not None
            while line := await self._placer.stdout.readline():
                self._hear(msgspec.json.decode(line, type=Change))
            await self._placer.wait()
            self._report(
                "the connection to Ray is lost: the run continues, and a process that ends waits for Ray to be back"
            )
            failures = 1

    def _hear(self, change: Change) -> None:
        final = change.lost or change.ended is not None
        if process := self._processes.pop(change.id, None) if final else self._processes.get(change.id):
            process.hear(change)

    def _send(self, word: ToPlacer) -> bool:
        """Whether there is a connection to Ray."""
        if self._placer is None or self._placer.returncode is not None or self._placer.stdin is None:
            return False
        self._placer.stdin.write(msgspec.json.encode(word) + b"\n")
        return True

    async def close(self) -> None:
        """Ends the connection to Ray, and with it what is placed there."""
        if self._placer is not None and self._placer.stdin is not None:
            self._placer.stdin.close()
            await wait_or_kill(self._placer, LONG_S, session=False)


@contextlib.asynccontextmanager
async def starting(config: Config, layout: RunLayout, report: Callable[[str], None]) -> AsyncIterator[RayStarter]:
    starter = RayStarter(config, layout, report)
    connected = watched(starter.stay_connected(), lambda error: report(f"Ray: {error}"))
    try:
        yield starter
    finally:
        connected.cancel()
        await asyncio.gather(connected, return_exceptions=True)
        await starter.close()


def order(config: Config, layout: RunLayout, seat: Seat, number: int, id: int, output: Path) -> Start:
    """What a keeper needs to start one process of this seat: with its own role's secret, and no other. Reads keys."""
    files = {CONFIG: layout.config.read_text()}
    environment: dict[str, str] = {}
    if layout.keyfolder is not None:
        files |= {f"{KEYS}/{name}": (layout.keyfolder / name).read_text() for name in seat.secrets}
        environment["RHYMED_NET__KEYS"] = f"{{folder}}/{KEYS}"
    if seat.name == "trainer":
        environment["RHYMED_NET__WEIGHTS"] = "tcp://{host}:{port}"
        if seat.count > 1:
            environment["RHYMED_NET__RANKS"] = f"tcp://{{ranks}}:{seat.ports['ranks']}"
    wanted = Order(
        arguments=seat.command(f"{{folder}}/{CONFIG}", number, ()),
        environment=environment,
        files=files,
        output=str(output),
        broker=layout.broker.removeprefix("tcp://"),
        needs=str(layout.config) if seat.kind == "gang" else "",
    )
    gang = seat.count if seat.kind == "gang" else 1
    return Start(id, seat.process(number), wanted, seat.cpus, seat.gpus, seat.memory_gib, gang, number)
