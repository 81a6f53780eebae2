"""One round of `python -m benchmarks hosts`: a trainer and its workers as processes on hosts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.hosts.network import Hosts
from benchmarks.hosts.rounds import Cell
from rhymed.core.errors import ConfigError
from rhymed.core.wire.keys import make_keys

PORT = 5552
VERSION = 1
COUNTS = -1  # in place of a version


def measure(cell: Cell, window: int) -> dict[str, Any]:
    """Seconds and bytes of one version. `window`: bytes of each file that take memory; 0: all."""
    with tempfile.TemporaryDirectory() as scratch, Hosts(cell.hosts + 1, cell.gbit) as hosts:
        keys = str(Path(scratch) / "keys") if cell.keys else ""
        if keys:
            make_keys(Path(keys), ("trainer", "rollout"))
        address = f"tcp://{hosts.address(0)}:{PORT}"
        with contextlib.ExitStack() as stack:
            size = round(cell.size_gb * 1e9) // 2 * 2
            serves = ("trainer", address, str(size), str(window), scratch, keys)
            trainer = stack.enter_context(_started(hosts, 0, *serves))
            workers = []
            for number in range(1, cell.hosts + 1):
                fetches = ("worker", address, str(window), f"rollout-{number}", "auto", keys)
                workers.append(stack.enter_context(_started(hosts, number, *fetches)))
            return _once(trainer, workers)


def _once(trainer: subprocess.Popen[str], workers: list[subprocess.Popen[str]]) -> dict[str, Any]:
    published = _ask(trainer, VERSION)
    used_s = published["cpu_s"] + sum(_ask(worker, COUNTS)["cpu_s"] for worker in workers)
    start_s = time.perf_counter()
    for worker in workers:
        _order(worker, VERSION)
    answers = [_answer(worker) for worker in workers]
    last_s = time.perf_counter() - start_s
    after = _ask(trainer, COUNTS)
    sizes = {answer["size"] for answer in (*answers, published)}
    assert len(sizes) == 1, f"copies of different sizes: {sizes}"
    return {
        "publish_s": published["seconds"],
        "last_s": last_s,
        "first_s": min(answer["seconds"] for answer in answers),
        "sent_by_trainer": (after["sent"] - published["sent"]) / sizes.pop(),
        "cpu_s": after["cpu_s"] + sum(answer["cpu_s"] for answer in answers) - used_s,
    }


@contextlib.contextmanager
def _started(hosts: Hosts, number: int, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*hosts.command(number), sys.executable, "-m", "benchmarks.hosts.process", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=hosts.environment(),
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


def _order(process: subprocess.Popen[str], version: int) -> None:
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
    _order(process, version)
    return _answer(process)
