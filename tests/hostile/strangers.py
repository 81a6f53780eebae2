"""`python -m tests.hostile.strangers`: does the dashboard stay usable while strangers hold connections and flood it?

The dashboard is a process of its own, a second one belongs to the strangers, and the owner asks here, over a new
connection each time, which is the worst case. A stranger whose connection is closed opens the next one. `open`: on
loopback, without a token; `token`: the strangers do not have it. All of them have the owner's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import uvloop
from aiohttp import ClientError, ClientSession, ClientTimeout

from rhymed.core.config import Config
from rhymed.core.wire.limits import raise_file_limit
from rhymed.show.dashboard import listen
from rhymed.show.dashboard.auth import TOKEN_VARIABLE
from tests.stress import command

SILENT, POLLS, MALFORMED = 10_000, 500, 64
SECONDS, QUICK_SECONDS = 20.0, 2.0
PAUSE_S = 1.0  # of a stranger before its next connection
ASK_S = 0.1  # between two questions of the owner
GIVE_UP_S = 10.0
READY_S = 120.0
BELOW_S = 1.0
LOG_KIB_PER_S = 2.0
TOKEN = "s" * 32
HEAD = "HTTP/1.1\r\nHost: localhost\r\n"
ATTACKS = {
    "silent": (SILENT, "", PAUSE_S),
    "half_requests": (SILENT, f"GET /api/run {HEAD}X: ", PAUSE_S),
    "polls": (POLLS, f"GET /api/news {HEAD}\r\n", PAUSE_S),
    "malformed": (MALFORMED, "GET /\x1b[31m HTTP/x\r\n\r\n", 0.0),
}
"""Name -> connections, what each sends, seconds until the next one."""

SERVE = "import sys; from tests.hostile.strangers import serve; serve(*sys.argv[1:])"
ATTACK = "import sys; from tests.hostile.strangers import attack; attack(*sys.argv[1:])"


def run(quick: bool, seconds: float | None = None, modes: str = "open,token") -> dict[str, Any]:
    """Measures and prints. `good`: every answer came in less than `BELOW_S`, and the log stayed small."""
    raise_file_limit()
    lasting = seconds or (QUICK_SECONDS if quick else SECONDS)
    results: dict[str, Any] = {}
    for mode in modes.split(","):
        found = uvloop.run(_siege(mode, lasting, 10 if quick else 1))
        results |= {f"{mode}/{name}": value for name, value in found.items()}
        for name, value in found.items():
            print(f"{mode + '/' + name:<40} {value:>12,.2f}", flush=True)
    results["good"] = not any(
        (name.endswith("failed") and value)
        or (name.endswith("max_ms") and value > 1000 * BELOW_S)
        or (name.endswith("log_kib_per_s") and value > LOG_KIB_PER_S)
        for name, value in results.items()
    )
    return results


def serve(folder: str, address: str) -> None:
    """The dashboard, until it is terminated."""
    from rhymed.core.service.logfile import configure
    from rhymed.core.wire.addresses import parse_http
    from rhymed.show.dashboard.server import serving
    from rhymed.show.dashboard.snapshots import LiveRun, never

    async def forever() -> None:
        async with serving(Path(folder), parse_http(address), LiveRun(never)) as bound:
            listen.write(Path(folder), bound)
            await asyncio.Event().wait()

    configure(Path(folder) / "logs" / "dashboard.log", "info")
    uvloop.run(forever())


def attack(port: str, connections: str, text: str, pause_s: str) -> None:
    """Strangers that never end. Writes a line when each of them has had a connection."""
    raise_file_limit()
    late = set(range(int(connections)))

    async def stranger(number: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
                if late:
                    late.discard(number)
                    if not late:
                        print("all are here", flush=True)
                try:
                    writer.write(text.encode().decode("unicode_escape").encode())
                    while await reader.read(1 << 16):
                        pass
                finally:
                    writer.close()
            await asyncio.sleep(float(pause_s))

    async def all_of_them() -> None:
        await asyncio.gather(*(stranger(number) for number in range(int(connections))))

    uvloop.run(all_of_them())


async def _siege(mode: str, seconds: float, part: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="rhymed-strangers-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(Config.model_validate({"run": {"folder": name}}).model_dump_json())
        async with _dashboard(folder, "127.0.0.1:0" if mode == "open" else "0.0.0.0:0") as (process, port):
            found = await _attacks(folder, port, seconds, part)
            found["rss_mib"] = psutil.Process(process.pid).memory_info().rss / (1 << 20)
            return found


async def _attacks(folder: Path, port: int, seconds: float, part: int) -> dict[str, float]:
    found: dict[str, float] = {}
    log = folder / "logs" / "dashboard.log"
    for name, (connections, text, pause_s) in ATTACKS.items():
        before = _size(log)
        quoted = text.encode("unicode_escape").decode()
        strangers = _start(ATTACK, str(port), str(connections // part), quoted, str(pause_s))
        try:
            assert await asyncio.to_thread(strangers.stdout.readline), "the strangers ended"
            took, failed = await _ask(port, seconds)
        finally:
            strangers.kill()
            await asyncio.to_thread(strangers.communicate)
        found |= {f"{name}/asked": len(took) + failed, f"{name}/failed": failed}
        found |= {
            f"{name}/median_ms": took[len(took) // 2] if took else 0.0,
            f"{name}/max_ms": max(took, default=0.0),
        }
        found[f"{name}/log_kib_per_s"] = (_size(log) - before) / 1024 / seconds
    return found


async def _ask(port: int, seconds: float) -> tuple[list[float], int]:
    """Milliseconds of each answer, sorted, and how many did not come."""
    took, failed, until = [], 0, time.monotonic() + seconds
    headers = {"Authorization": f"Bearer {TOKEN}", "Connection": "close"}
    async with ClientSession(timeout=ClientTimeout(GIVE_UP_S), headers=headers) as session:
        while time.monotonic() < until:
            began = time.monotonic()
            try:
                async with session.get(f"http://127.0.0.1:{port}/api/run") as answer:
                    failed += answer.status != 200
                    await answer.read()
                took.append(1000 * (time.monotonic() - began))
            except (ClientError, TimeoutError, OSError):
                failed += 1
            await asyncio.sleep(ASK_S)
    return sorted(took), failed


@contextlib.asynccontextmanager
async def _dashboard(folder: Path, address: str) -> AsyncIterator[tuple[subprocess.Popen[bytes], int]]:
    process = _start(SERVE, str(folder), address, environment={TOKEN_VARIABLE: TOKEN})
    try:
        async with asyncio.timeout(READY_S):
            while (bound := listen.read(folder)) is None:
                assert process.poll() is None, "the dashboard ended"
                await asyncio.sleep(0.05)
        yield process, bound.port
    finally:
        process.terminate()
        await asyncio.to_thread(process.communicate, timeout=READY_S)


def _start(program: str, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def main() -> int:
    about = "Hold connections of the dashboard and flood it, while its owner uses it."
    made = command.parser("tests.hostile.strangers", about)
    made.add_argument(
        "--seconds", type=float, help=f"of each attack (default {SECONDS:.0f}, quick {QUICK_SECONDS:.0f})"
    )
    made.add_argument("--modes", help="default open,token")
    return command.call(run, made)


if __name__ == "__main__":
    sys.exit(main())
