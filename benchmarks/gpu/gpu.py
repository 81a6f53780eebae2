"""`python -m benchmarks gpu`: runs its parts one after another, each in a process of its own with a limit of time.

A part writes every result as a line of JSON the moment it is known (`part`). A part that fails or is ended loses only
the results that it has not written. Nothing is downloaded: engines and trainer use the bench policy if it was built,
else random weights of its shape, and larger shapes always have random weights; each line names its weights.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.gpu.part import RESULTS, Row, add, line
from rhymed.core.errors import ConfigError
from rhymed.core.service.children import last_lines
from rhymed.core.text import duration, truncated

OUT = Path("runs/bench-gpu")
LIMIT = 1.6  # times the planned seconds: a part is ended then
STOP_S = 15.0
WORDS = 900  # characters of the log of a part that failed

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    # vLLM's and torch's groups of one process look for a network, which this machine may not have.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}


class Part(NamedTuple):
    about: str
    seconds: float  # planned
    work: str  # module:function


PARTS = {
    "facts": Part("machine and packages, and whether each component works alone", 45, "benchmarks.gpu.facts:facts"),
    "sampler": Part(
        "keyed sampling: kernels, vLLM's sampling; tokens equal to the CPU sampler's",
        40,
        "benchmarks.sampling.gpu:record",
    ),
    "tests": Part("tests that need a GPU, in a checkout", 50, "benchmarks.gpu.facts:tests"),
    "trainer": Part(
        "loss and gradients equal to a CPU's; tokens per second, share of the peak and memory of a step",
        80,
        "benchmarks.gpu.trainer:record",
    ),
    "engines": Part(
        "tokens per second, engines in alternation: vLLM as it is, keyed, with drafts, with right drafts",
        170,
        "benchmarks.gpu.engines:engines",
    ),
    "curve": Part(
        "a step of a 7B model by the number of drafted tokens; HistoSpec with right and wrong history",
        160,
        "benchmarks.gpu.curve:record",
    ),
    "run": Part("whole runs with and without drafts, and their samples", 150, "benchmarks.gpu.whole:record"),
    "weights": Part(
        "from the trainer's parameters to the first token under them, by file and by handle",
        70,
        "benchmarks.weights:record",
    ),
    "exact": Part(
        "tokens with drafts against tokens without, in float32 and with batch-invariant kernels",
        130,
        "benchmarks.gpu.engines:exact",
    ),
}
"""In the order that uses a short time on a GPU best; the plan takes less than fifteen minutes."""


def run(
    quick: bool,
    parts: Sequence[str] | None = None,
    dry: bool = False,
    device: str = "cuda",
    seconds: float | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """`parts`: names in `PARTS`. `dry`: prints the plan only. `quick`: small sizes on a GPU. `seconds`: the limit of
    each part. `out`: a folder; `results.jsonl` in it grows, `logs` has the output of each part.

    Raises `ConfigError` for a part that does not exist, or where there is no GPU for `device` = `cuda`.
    """
    if unknown := [name for name in parts or () if name not in PARTS]:
        raise ConfigError(f"--parts {', '.join(unknown)}: no such part; choose from {', '.join(PARTS)}")
    if seconds is not None and not seconds > 0:
        raise ConfigError(f"--seconds {seconds:g}: each part needs some time")
    chosen = {name: part for name, part in PARTS.items() if not parts or name in parts}
    if seconds is not None:
        chosen = {name: part._replace(seconds=seconds / LIMIT) for name, part in chosen.items()}
    if dry:
        return _plan(chosen)
    from benchmarks.gpu.facts import no_gpu

    if device == "cuda" and (why := no_gpu()):
        raise ConfigError(
            f"no GPU to measure on: {why}. --device cpu runs small versions on processors, --dry prints the plan"
        )
    folder = (out or OUT).resolve()
    try:
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        at = _size(folder)
    except OSError as error:
        raise ConfigError(f"--out {folder}: cannot be written: {error.strerror}") from None
    for name, part in chosen.items():
        _measure(name, part, folder, device, quick=quick)
    rows = _rows(folder, at)
    failed = [f"{row['part']}: {row['what']}" for row in rows if row.get("ok") is False]
    print("\n".join(["", *table(rows), f"results are in {folder}"]), flush=True)
    return {"folder": str(folder), "results": len(rows), "failed": failed, "good": not failed}


def _plan(chosen: dict[str, Part]) -> dict[str, Any]:
    for name, part in chosen.items():
        print(f"{name}: {part.about}: {part.seconds:.0f} s, at most {LIMIT * part.seconds:.0f} s")
    total = sum(part.seconds for part in chosen.values())
    print(f"about {duration(total)} in all, by plan")
    return {"seconds": total, "parts": {name: part.seconds for name, part in chosen.items()}}


def _measure(name: str, part: Part, folder: Path, device: str, *, quick: bool) -> None:
    """Ends the process, and those that it has started, when this one ends or the limit is reached."""
    limit, log = LIMIT * part.seconds, folder / "logs" / f"{name}.log"
    print(f"\n== {name}, at most {limit:.0f} s: {part.about}", flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu.part", part.work, name, str(folder), device, f"{part.seconds}"]
    began, at = time.monotonic(), _size(folder)
    with log.open("w") as output:
        child = subprocess.Popen(
            command + ["--small"] * quick,
            stdout=output,
            stderr=output,
            env={**os.environ, **ENVIRONMENT},
            start_new_session=True,
        )
        status, error = -1, ""
        try:
            status = child.wait(limit)
        except subprocess.TimeoutExpired:
            error = f"ended after its limit of {limit:.0f} s"
        finally:
            _end(child)
    if status and not error:
        error = f"its process ended with {status}: " + "\n".join(last_lines(log))[-WORDS:]
    row: Row = {"part": name, "what": "the part", "ok": not error, "s": round(time.monotonic() - began, 1)}
    add(folder, row | ({"error": error, "log": str(log)} if error else {}))
    print("\n".join(map(line, _rows(folder, at))), flush=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the process if it runs: first by SIGTERM, so that the processes it has started end in order, too."""
    child.terminate()
    with suppress(subprocess.TimeoutExpired):
        child.wait(STOP_S)
    with suppress(ProcessLookupError):  # the rest of its session
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _size(folder: Path) -> int:
    """Size of the results so far in bytes."""
    file = folder / RESULTS
    file.touch()
    return file.stat().st_size


def _rows(folder: Path, at: int) -> list[Row]:
    """The results after the first `at` bytes."""
    with (folder / RESULTS).open("rb") as file:
        file.seek(at)
        return [json.loads(text) for text in file]


def table(rows: Sequence[Row]) -> list[str]:
    """The results as text: failures first, then a line for each result."""
    failed = [row for row in rows if row.get("ok") is False]
    lines = [f"{len(rows)} results, {len(failed)} failed"]
    for row in failed:
        words = " ".join(str(row.get("error", "")).split())
        rest = {key: value for key, value in row.items() if key != "error"}
        lines.append(truncated(f"FAILED {line(rest)} {words[-300:]}", 600))
    found = "\n".join(line(row) for row in rows if row.get("ok") is not False)
    return lines + [truncated(text, 160) for text in found.splitlines()]
