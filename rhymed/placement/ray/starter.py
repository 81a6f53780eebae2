"""Starts a run's processes on the machines of a Ray cluster; those beside the run's disk, on this machine.

The connection to Ray is a process of its own (`placer`). While it is lost, because Ray's head is, every process that
runs continues (`guardian`), and those that end wait for a place until Ray is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from rhymed.config import Config
from rhymed.placement.local import LocalProcess, LocalStarter
from rhymed.placement.plan import Command, Seat, seats
from rhymed.placement.ray import cluster
from rhymed.placement.ray.room import needs
from rhymed.placement.ray.words import (
    Ended,
    Failed,
    FromPlacer,
    Lost,
    Placed,
    Ready,
    Say,
    Start,
    ToPlacer,
)
from rhymed.placement.starter import PlaceLost
from rhymed.run.layout import RunLayout
from rhymed.service.children import restart_pause_s
from rhymed.tasks import watched

LONG_S = 10.0  # without a place, people are told of it
LONGEST_PAUSE_S = 30.0
CONFIG, KEYS = "config.json", "keys"
ENDED = -signal.SIGTERM


class RayProcess:
    """From the request for its place on."""

    def __init__(self, start: Start, say: Callable[[Say], bool]) -> None:
        self.start, self._say = start, say
        loop = asyncio.get_running_loop()
        self.placed: asyncio.Future[str] = loop.create_future()  # its host
        self.end: asyncio.Future[Ended] = loop.create_future()

    @property
    def alive(self) -> bool:
        return not self.end.done()

    async def ended(self) -> int:
        return (await asyncio.shield(self.end)).status

    def terminate(self) -> None:
        self._ask("terminate")

    def kill(self) -> None:
        self._ask("kill")

    def _ask(self, what: str) -> None:
        """Without Ray it cannot be reached: it learns from the broker that the run is over."""
        if self.alive and not self._say(Say(self.start.id, what)):
            self.end.set_result(Ended(self.start.id, ENDED, ""))

    def last_words(self) -> str:
        return self.end.result().words if self.end.done() else ""

    def lose(self, why: str) -> None:
        for future in (self.placed, self.end):
            if not future.done():
                future.set_exception(PlaceLost(why))
                future.exception()  # whoever waits gets it


class RayStarter:
    """`async with RayStarter(…) as starter`. `report` receives a line per event, for people."""

    def __init__(self, config: Config, layout: RunLayout, report: Callable[[str], None]) -> None:
        self._config, self._layout, self._report = config, layout, report
        self._local = LocalStarter()
        self._placer: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._seats: dict[str, Seat] = {}
        self._processes: dict[int, RayProcess] = {}
        self._next = 0
        self._head = cluster.address_of(config)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = watched(self._stay_connected(), lambda error: self._report(f"Ray: {error}"))
        return self

    async def __aexit__(self, *ended: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._placer is not None and self._placer.returncode is None:
            assert self._placer.stdin is not None
            self._placer.stdin.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._placer.wait(), LONG_S)
            if self._placer.returncode is None:
                self._placer.kill()
                await self._placer.wait()

    async def start(self, command: Command, output: Path) -> RayProcess | LocalProcess:
        name, _, number = command.name.partition("-")
        await self._ready.wait()
        seat = self._seats.get(name)
        if seat is None or seat.kind == "pinned":  # beside the run's disk
            return await self._local.start(command, output)
        self._next += 1
        start = order(self._config, self._layout, seat, int(number.removeprefix("node-") or 0), self._next, output)
        process = self._processes[start.id] = RayProcess(start, self._send)
        self._send(start)
        try:
            await self._place(process, seat)
        except BaseException:
            self._processes.pop(start.id, None)
            self._send(Say(start.id, "kill"))
            raise
        return process

    async def _place(self, process: RayProcess, seat: Seat) -> None:
        try:
            await asyncio.wait_for(asyncio.shield(process.placed), LONG_S)
        except TimeoutError:
            self._report(f"{process.start.name} waits for a place in Ray's cluster ({needs(seat)})")
            await process.placed

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            try:
                self._placer, ready = await cluster.connect(self._config, self._head)
            except ConnectionError:
                failures += 1
                await asyncio.sleep(restart_pause_s(failures, 1.0, LONGEST_PAUSE_S))
                continue
            if self._ready.is_set():  # not for the first time
                self._lose_all("Ray was away")
                self._report("Ray is back")
            failures = 0
            self._connected(ready)
            await self._listen(self._placer)
            await self._placer.wait()
            self._report(
                "the connection to Ray is lost: the run continues, and a process that ends waits for Ray to be back"
            )
            failures = 1

    def _connected(self, ready: Ready) -> None:
        gpus = any(node.gpus for node in ready.nodes)
        self._head, self._seats = ready.head, {seat.name: seat for seat in seats(self._config, gpus=gpus)}
        self._ready.set()

    async def _listen(self, placer: asyncio.subprocess.Process) -> None:
        assert placer.stdout is not None
        while line := await placer.stdout.readline():
            self._hear(msgspec.json.decode(line, type=FromPlacer))

    def _hear(self, word: FromPlacer) -> None:
        if isinstance(word, Ready) or (process := self._processes.get(word.id)) is None:
            return
        if isinstance(word, Placed):
            if not process.placed.done():
                process.placed.set_result(word.host)
            return
        del self._processes[word.id]
        if isinstance(word, Lost):
            process.lose(f"its place is lost ({word.why})")
        elif isinstance(word, Ended) and not process.end.done():
            process.end.set_result(word)
        elif isinstance(word, Failed) and not process.end.done():
            process.end.set_result(Ended(word.id, 1, word.why))

    def _lose_all(self, why: str) -> None:
        processes, self._processes = list(self._processes.values()), {}
        for process in processes:
            process.lose(why)

    def _send(self, word: ToPlacer) -> bool:
        """Whether there is a connection to Ray."""
        if self._placer is None or self._placer.returncode is not None or self._placer.stdin is None:
            return False
        self._placer.stdin.write(msgspec.json.encode(word) + b"\n")
        return True


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
    return Start(
        id=id,
        name=seat.process(number),
        arguments=seat.command(f"{{folder}}/{CONFIG}", number, ()),
        environment=environment,
        files=files,
        output=str(output),
        broker=layout.broker.removeprefix("tcp://"),
        needs=str(layout.config) if seat.files == "shared" else "",
        cpus=seat.cpus,
        gpus=seat.gpus,
        memory_gib=seat.memory_gib,
        gang=seat.count if seat.kind == "gang" else 1,
        number=number,
    )
