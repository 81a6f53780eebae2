"""`python -m tests.hostile.fuzz`: do the real servers survive hostile peers, stay small and keep serving?

Broker, store and a weights server run as separate processes. Hostile processes send them a seeded series of malformed
messages (`tests.hostile.malformed`), connect with unknown keys, send bytes that are not ZMTP, and open thousands of
silent connections. Honest clients send requests all the while; none may fail. `locked`: TCP with keys, of which the
hostile peers hold those of rollout, reward and viewer. `open`: loopback TCP without keys, as on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvloop

from rhymed.core import messages
from rhymed.core.config import Config
from rhymed.core.errors import RhymedError
from rhymed.core.run.layout import RunLayout, layout_of
from rhymed.core.wire.keys import ROLES, make_keys
from rhymed.core.wire.limits import raise_file_limit
from rhymed.core.wire.sockets import Client
from rhymed_store.client import NewSample, StoreClient
from tests.ports import free_ports
from tests.stress import command

FRAMES = 1_000_000
QUICK = 20_000
SEED = 0
HALF_OPEN = 10_000
CALM_S = 3.0
PAUSE_S = 0.02  # between two questions of an honest client
DEADLINE_S = 30.0
HOLD_S = 12.0  # half-open connections are held longer than a handshake may take
READY_S = 120.0
LOOK_S = 1.0
TARGETS = ("broker", "store", "weights")

SERVE = """
import sys
from tests.hostile.fuzz import serve
from tests.ports import free_ports
serve(*sys.argv[1:])
"""


def run(
    quick: bool, frames: int | None = None, seed: int = SEED, half_open: int = HALF_OPEN, modes: str = "locked,open"
) -> dict[str, Any]:
    """Measures and prints. Raises `AssertionError` if a server died or an honest client was not served."""
    count = frames or (QUICK if quick else FRAMES)
    chosen = modes.split(",")
    results: dict[str, Any] = {}
    for mode in chosen:
        found = uvloop.run(_attack_servers(mode, count // len(chosen), seed, 1000 if quick else half_open))
        results |= found
        for name, value in found.items():
            print(
                f"{name:<40} {value:>12,.2f}" if isinstance(value, float) else f"{name:<40} {value:>12}", flush=True
            )
    wrong = {name: value for name, value in results.items() if name.endswith(("failed", "died")) and value}
    assert not wrong, f"servers died or did not serve: {wrong}"
    return results


def serve(target: str, config: str) -> None:
    """One of the servers, in a process of its own."""
    from rhymed.core.service.process import serve as start

    made = Config.model_validate_json(config)
    where = layout_of(made)
    if target == "broker":
        from rhymed_broker.service import BrokerService

        start(lambda: BrokerService(made, where), log_file=where.log("broker"))
    if target == "store":
        from rhymed_store.service import StoreService

        start(lambda: StoreService(made.store, where), log_file=where.log("store"))
    from rhymed.core.service.service import Service
    from rhymed_workers.trainer.publish import Publisher
    from rhymed_workers.weights.server import WeightsServer

    class Weights(Service):
        async def open(self) -> None:
            self.publisher = Publisher(where.folder / "weights", "float32")
            self.publisher.publish(0, [("w", np.zeros(1 << 20, np.float32))])
            self.server = WeightsServer(where.weights, self.publisher, keys=where.keys("trainer"))

        async def close(self) -> None:
            self.server.close()
            self.publisher.close()

    start(lambda: Weights("weights"), log_file=where.log("weights"))


async def _attack_servers(mode: str, frames: int, seed: int, half_open: int) -> dict[str, Any]:
    raise_file_limit()
    with tempfile.TemporaryDirectory(prefix="rhymed-fuzz-") as folder:
        config = _config(Path(folder), locked=mode == "locked")
        where = layout_of(config)
        async with _servers(config) as servers, _honest(where) as watch:
            await watch.calm(CALM_S)
            before = {name: _rss(server) for name, server in servers.items()}
            meter = asyncio.create_task(_meter(servers))
            watch.forget()
            started = time.monotonic()
            sent = await _while_alive(servers, _send_frames(config, mode, frames, seed))
            wall_s = time.monotonic() - started
            await _while_alive(servers, _hold_silent_connections(where, half_open))
            held = {name: _rss(server) for name, server in servers.items()}
            await watch.calm(CALM_S)
            meter.cancel()
            highest = await meter
            died = [name for name, server in servers.items() if server.poll() is not None]
            after = {name: _rss(server) for name, server in servers.items()}
        logs = {name: where.log(name).stat().st_size for name in TARGETS}
        result: dict[str, Any] = {f"{mode}/frames": sent, f"{mode}/frames_per_s": sent / wall_s}
        result |= {f"{mode}/died": len(died)}
        for name in TARGETS:
            result |= {
                f"{mode}/{name}/rss_before_mib": before[name],
                f"{mode}/{name}/rss_max_mib": highest[name],
                f"{mode}/{name}/rss_half_open_mib": held[name],
                f"{mode}/{name}/rss_after_mib": after[name],
                f"{mode}/{name}/log_kib": logs[name] / 1024,
            }
        return result | {f"{mode}/{name}": value for name, value in watch.summary().items()}


def _config(folder: Path, *, locked: bool) -> Config:
    addresses = zip(TARGETS, free_ports(len(TARGETS)), strict=True)
    net: dict[str, Any] = {name: f"tcp://127.0.0.1:{port}" for name, port in addresses}
    if locked:
        make_keys(folder / "keys", ROLES)
        net["keys"] = str(folder / "keys")
    rows = folder / "rows.jsonl"
    rows.write_text("".join(f'{{"prompt": "{number}", "answer": ""}}\n' for number in range(64)))
    return Config.model_validate(
        {"run": {"folder": str(folder), "name": "fuzz"}, "data": {"path": str(rows)}, "net": net}
    )


@contextlib.asynccontextmanager
async def _servers(config: Config) -> AsyncIterator[dict[str, subprocess.Popen[bytes]]]:
    text = config.model_dump_json()
    made = {name: _start(name, text) for name in TARGETS}
    try:
        yield made
    finally:
        for process in made.values():
            process.terminate()
        for process in made.values():
            await asyncio.to_thread(process.wait, 60)


async def _while_alive(servers: dict[str, subprocess.Popen[bytes]], attack: Awaitable[Any]) -> Any:
    """What `attack` returns. Raises `AssertionError` when a server ends, for whose answers it would wait for ever."""
    attacking = asyncio.ensure_future(attack)
    try:
        while not (await asyncio.wait([attacking], timeout=LOOK_S))[0]:
            died = {name: server.returncode for name, server in servers.items() if server.poll() is not None}
            assert not died, f"servers died, with these statuses: {died}"
        return attacking.result()
    finally:
        attacking.cancel()
        await asyncio.wait([attacking])


def _start(name: str, config: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", SERVE, name, config])


# Honest clients


@dataclass
class _HonestClients:
    """Answers and failures of the honest clients."""

    asked: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in TARGETS})  # milliseconds
    failed: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in TARGETS})
    news: dict[str, asyncio.Event] = field(default_factory=lambda: {name: asyncio.Event() for name in TARGETS})

    def answered(self, name: str, took_s: float) -> None:
        self.asked[name].append(1000 * took_s)
        self.news[name].set()

    async def calm(self, seconds: float) -> None:
        """Waits until all three have answered, and then for `seconds`."""
        async with asyncio.timeout(READY_S):
            for event in self.news.values():
                event.clear()
            await asyncio.gather(*(event.wait() for event in self.news.values()))
        await asyncio.sleep(seconds)

    def forget(self) -> None:
        for name in TARGETS:
            self.asked[name].clear()
            self.failed[name].clear()

    def summary(self) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, times in self.asked.items():
            ordered = sorted(times) or [float("nan")]
            result[f"{name}/honest_asked"] = len(times)
            result[f"{name}/honest_failed"] = len(self.failed[name])
            for label, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
                result[f"{name}/honest_{label}_ms"] = ordered[int(share * (len(ordered) - 1))]
            for line in self.failed[name][:3]:
                print(f"{name}: an honest client failed: {line}")
        return result


@contextlib.asynccontextmanager
async def _honest(where: RunLayout) -> AsyncIterator[_HonestClients]:
    watch = _HonestClients()
    viewer = Client(where.broker, "honest", peer="broker", keys=where.keys("viewer").to("broker"))
    worker = Client(where.broker, "reward-honest", peer="broker", keys=where.keys("reward").to("broker"))
    rollout = StoreClient(where.store, "honest", where.keys("rollout"))
    reader = Client(where.weights, "honest", peer="weights", keys=where.keys("rollout").to("trainer"))
    join = messages.Join(role="reward", worker="reward-honest", host="h", pid=1)

    async def look() -> None:
        await viewer.request(messages.GetQueues(), deadline_s=DEADLINE_S)
        await worker.request(join, deadline_s=DEADLINE_S)

    async def fetch() -> None:
        manifest = (await reader.request(messages.GetManifest(version=0), deadline_s=DEADLINE_S)).message
        ask = messages.GetSlice(edition=manifest.edition, index=0)
        answer = await reader.request(ask, deadline_s=DEADLINE_S)
        assert len(answer.frames[0]) == manifest.slice_bytes, "a slice of another length"

    questions = {"broker": look, "store": _keeper(rollout), "weights": fetch}
    tasks = [asyncio.create_task(_ask(watch, name, question)) for name, question in questions.items()]
    try:
        yield watch
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in (viewer, worker, rollout, reader):
            link.close()


def _keeper(client: StoreClient) -> Callable[[], Awaitable[None]]:
    """Puts a sample and reads it back as history: acknowledged data must be there."""
    step = 0

    async def keep() -> None:
        nonlocal step
        step += 1
        tokens = np.arange(step, step + 16, dtype=np.uint32)
        info = messages.SampleInfo(
            id=messages.SampleId(step, "00000000feedbeef", 0),
            prompt_length=4,
            length=16,
            finish_reason="stop",
            versions=[(0, 16)],
        )
        await client.put_samples(
            [NewSample(info, tokens[:4], tokens, np.zeros(16, np.float32))], deadline_s=DEADLINE_S
        )
        found = await client.history("00000000feedbeef", before_step=step + 1, limit=1)
        assert (found[0].tokens == tokens).all(), "the store gave another sample"

    return keep


async def _ask(watch: _HonestClients, name: str, question: Callable[[], Awaitable[None]]) -> None:
    while True:
        began = time.perf_counter()
        try:
            await question()
            watch.answered(name, time.perf_counter() - began)
        except (RhymedError, AssertionError) as error:
            watch.failed[name].append(f"{type(error).__name__}: {error}")
        await asyncio.sleep(PAUSE_S)


# Hostile ones


async def _send_frames(config: Config, mode: str, frames: int, seed: int) -> int:
    """Sends frames, unknown keys and garbage from one process per server. Returns the number of frames."""
    from tests.hostile import peers

    text, share = config.model_dump_json(), frames // len(TARGETS)
    program = f"import sys; from {peers.__name__} import main; main(*sys.argv[1:])"
    children = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, target, text, str(share), str(seed + number), stdout=subprocess.PIPE
        )
        for number, target in enumerate(TARGETS)
    ]
    try:
        outputs = await asyncio.gather(*(child.communicate() for child in children))
    finally:
        for child in children:
            if child.returncode is None:
                child.kill()
    assert all(child.returncode == 0 for child in children), f"{mode}: a hostile process failed"
    return sum(int(out) for out, _ in outputs)


async def _hold_silent_connections(where: RunLayout, count: int) -> None:
    """Holds connections that send nothing for longer than a handshake may take."""
    held: list[socket.socket] = []
    try:
        for number in range(count):
            address = getattr(where, TARGETS[number % len(TARGETS)])
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex((host, int(port)))
            held.append(one)
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        await asyncio.sleep(HOLD_S)
    finally:
        for one in held:
            one.close()


def _rss(process: subprocess.Popen[bytes]) -> float:
    """MiB; 0 if it has ended."""
    try:
        return float(psutil.Process(process.pid).memory_info().rss) / 2**20
    except psutil.Error:
        return 0.0


async def _meter(servers: dict[str, subprocess.Popen[bytes]]) -> dict[str, float]:
    """The highest values until cancelled."""
    highest = dict.fromkeys(servers, 0.0)
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            for name, server in servers.items():
                highest[name] = max(highest[name], _rss(server))
            await asyncio.sleep(0.1)
    return highest


def main() -> int:
    parser = command.parser("tests.hostile.fuzz", "send malformed messages to broker, store and weights server")
    parser.add_argument("--frames", type=int, metavar="N", help=f"malformed messages (default: {FRAMES})")
    parser.add_argument("--seed", type=int, metavar="N", help="of the messages")
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
