"""`rhymed bench hosts`: seconds until the last of several hosts has the weights, against one host.

Publisher, tracker, relays, sockets and files are those of a run; hosts are network namespaces, so all share this
machine's processors and memory. `gbit` gives every host a line of that rate: then the lines decide, as between
machines, as long as the processors keep up. A cell that does not fit into memory is left out, with a sentence.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from rhymed.bench.hosts.network import Hosts, missing_tools
from rhymed.errors import ConfigError
from rhymed.wire.keys import make_keys

PORT = 5552
COUNTS, SIZES_GB = (1, 2, 4, 8), (0.3, 3.0, 15.0)
QUICK_COUNTS, QUICK_SIZES_GB = (1, 2), (0.05,)
ROUNDS = 3
VERSIONS = 2  # whole, then as changes
SPARE = 1 << 30  # bytes that stay free
MEMORY = Path("/dev/shm")


def run(
    quick: bool,
    hosts: Sequence[int] | None = None,
    sizes: Sequence[float] | None = None,
    gbit: float = 0.0,
    rounds: int | None = None,
) -> dict[str, Any]:
    """A row for each number of hosts, size, and kind of link."""
    if why := missing_tools(bool(gbit)):
        raise ConfigError(why)
    counts = sorted({1, *(hosts or (QUICK_COUNTS if quick else COUNTS))})  # one: what the others are compared with
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    for size_gb, locked, count in product(sizes or (QUICK_SIZES_GB if quick else SIZES_GB), (False, True), counts):
        if reason := _does_not_fit(count, size_gb):
            left_out.append(reason)
            print(reason, flush=True)
            continue
        found = [_measure(count, size_gb, locked, gbit) for _ in range(rounds or (1 if quick else ROUNDS))]
        rows.append(_row(count, size_gb, locked, found, rows))
        _print(rows)
    return {"gbit": gbit, "rows": rows, "left_out": sorted(set(left_out))}


def _does_not_fit(count: int, size_gb: float) -> str:
    import psutil

    needed = round(size_gb * 1e9) * (VERSIONS + 1 + VERSIONS * count) + SPARE
    free = min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available)
    if needed <= free:
        return ""
    return f"{size_gb:g} GB to {count} hosts needs {needed / 1e9:.0f} GB of memory; free: {free / 1e9:.0f}: left out"


def _measure(count: int, size_gb: float, locked: bool, gbit: float) -> dict[str, Any]:
    """Seconds and bytes of the first version, which is sent whole, and of the second, which is sent as changes."""
    memory = Path(tempfile.mkdtemp(prefix="rhymed-bench-", dir=MEMORY))
    with tempfile.TemporaryDirectory() as scratch, Hosts(count + 1, gbit, memory) as hosts:
        keys = str(Path(scratch) / "keys") if locked else ""
        if keys:
            make_keys(Path(keys), ("trainer", "rollout"))
        address = f"tcp://{hosts.address(0)}:{PORT}"
        with contextlib.ExitStack() as stack:
            size = round(size_gb * 1e9) // 2 * 2
            trainer = stack.enter_context(_started(hosts, 0, "trainer", address, str(size), scratch, keys))
            workers = [
                stack.enter_context(_started(hosts, number, "worker", address, f"rollout-{number}", "auto", keys))
                for number in range(1, count + 1)
            ]
            for process in (trainer, *workers):
                _ask(process, -1)  # it has started
            return {kind: _once(version, trainer, workers) for version, kind in enumerate(("whole", "changes"), 1)}


def _once(version: int, trainer: subprocess.Popen[str], workers: list[subprocess.Popen[str]]) -> dict[str, Any]:
    published = _ask(trainer, version)
    start_s = time.perf_counter()
    for worker in workers:
        _tell(worker, version)
    answers = [_answer(worker) for worker in workers]
    last_s = time.perf_counter() - start_s
    files = {Path(answer["path"]).stat().st_size for answer in (*answers, published)}
    assert len(files) == 1, f"copies of different sizes: {files}"
    sent = _ask(trainer, -1)["sent"] - published["sent"]
    return {
        "publish_s": published["seconds"],
        "last_s": last_s,
        "first_s": min(answer["seconds"] for answer in answers),
        "sent_by_trainer": sent / files.pop(),
    }


@contextlib.contextmanager
def _started(hosts: Hosts, number: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*hosts.command(number), sys.executable, "-m", "rhymed.bench.hosts.process", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=hosts.environment(number),
    )
    try:
        yield process
    finally:
        assert process.stdin is not None, "a pipe"
        assert process.stdout is not None, "a pipe"
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _tell(process: subprocess.Popen[str], version: int) -> None:
    assert process.stdin is not None, "a pipe"
    process.stdin.write(f"{version}\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None, "a pipe"
    line = process.stdout.readline()
    if not line:
        raise ConfigError(f"a process of the benchmark ended with status {process.wait()}; see its output above")
    found: dict[str, Any] = json.loads(line)
    return found


def _ask(process: subprocess.Popen[str], version: int) -> dict[str, Any]:
    _tell(process, version)
    return _answer(process)


def _row(
    count: int, size_gb: float, locked: bool, found: list[dict[str, Any]], rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Medians; `against_one`: the time until the last host has the weights, in times of a single host."""
    row: dict[str, Any] = {"hosts": count, "gigabytes": size_gb, "keys": locked}
    for kind in ("whole", "changes"):
        middle = {name: statistics.median(one[kind][name] for one in found) for name in found[0][kind]}
        times = [one[kind]["last_s"] for one in found]
        middle |= {"least_s": min(times), "most_s": max(times), "gb_per_s_a_host": size_gb / middle["last_s"]}
        alone = next((r for r in rows if (r["hosts"], r["gigabytes"], r["keys"]) == (1, size_gb, locked)), None)
        middle["against_one"] = middle["last_s"] / alone[kind]["last_s"] if alone else 1.0
        row[kind] = middle
    return row


def _print(rows: list[dict[str, Any]]) -> None:
    if len(rows) == 1:
        print(
            f"{'GB':>6}{'keys':>6}{'hosts':>6}{'last host':>26}{'against one':>13}{'GB/s a host':>13}"
            f"{'trainer sent':>14}{'changes':>10}{'sent':>8}"
        )
    row = rows[-1]
    whole, changes = row["whole"], row["changes"]
    last = f"{whole['last_s']:.2f} s ({whole['least_s']:.2f}-{whole['most_s']:.2f})"
    print(
        f"{row['gigabytes']:>6g}{'yes' if row['keys'] else 'no':>6}{row['hosts']:>6}{last:>26}"
        f"{whole['against_one']:>13.2f}{whole['gb_per_s_a_host']:>13.2f}{whole['sent_by_trainer']:>11.2f} of"
        f"{changes['last_s']:>8.2f} s{changes['sent_by_trainer']:>8.3f}",
        flush=True,
    )
