"""`python -m tests.stress.soak`: a run of the trace engine for an hour or more. Does anything grow that should not?

Every few seconds it records the memory, open files and threads of each process, and times one request to the broker
and one to the store. The rows go to a JSONL file and into a picture. After the warm-up the slope of each curve is
estimated; a process is flat when its memory grows by less than `MOST_MIB` per hour and its files and threads by less
than `MOST_EACH`. Slopes of a soak shorter than `LEAST_S` are not judged. At the end the run is interrupted as a user
would do it, and must print how to resume.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from rhymed.core.errors import RhymedError
from rhymed.core.messages import GetStoreStats
from rhymed.core.run.client import ask
from rhymed.core.wire.sockets import Client
from rhymed.start.cli.options import add_override
from tests.stress import command
from tests.stress.run import LiveRun, Part, Shape

EVERY_S = 5.0
ASK_S = 10.0
START_S = 60.0
WARM = 0.2  # share of the time in which things are loaded and caches filled
MOST_MIB = 8.0  # per hour
MOST_EACH = 6.0  # open files, threads: per hour
LEAST_S = 600.0
MOST_MS = 20.0  # growth of an answer's time per hour
ENDLESS = 100_000_000  # steps
PROMPTS = 500
LIMITS = {"rss_mib": MOST_MIB, "files": MOST_EACH, "threads": MOST_EACH}

Row = dict[str, Any]


def run(
    quick: bool,
    minutes: float | None = None,
    rollout: int = 3,
    reward: int = 2,
    out: Path | None = None,
    override: Sequence[str] = (),
) -> dict[str, Any]:
    """`out`: a folder that keeps the run, `soak.jsonl` and `soak.png`."""
    minutes = minutes or (0.7 if quick else 60.0)
    folder = out or Path(tempfile.mkdtemp(prefix="rhymed-soak-"))
    settings: dict[str, Row] = {"rollout": {"max_response_length": 500}, "store": {"map_gib": 8.0}}
    shape = Shape(ENDLESS, rollout, reward, prompts=PROMPTS, settings=settings, override=override)
    rows: list[Row] = []
    with LiveRun(shape.write(folder, "soak")) as live:
        asyncio.run(_watch(live, minutes * 60, rows, folder / "soak.jsonl"))
        died = live.status
        ended, said = live.interrupt(), live.tail(3)
    result = judge(rows)
    result |= {"minutes": minutes, "folder": str(folder), "resumable": ended == 130 and "--resume" in said}
    result["restarts"] = _restarts(rows)
    if died is not None:
        result["wrong"].append(f"the run ended by itself, with status {died}")
    if not result["resumable"]:
        result["wrong"].append(f"interrupted, it ended with status {ended} and said: {said}")
    result["wrong"] += [
        f"{name} was started again {count} times" for name, count in result["restarts"].items() if count
    ]
    result["good"] = not result["wrong"]
    picture = draw(rows, folder / "soak.png")
    _print(result, picture)
    return result


async def _watch(live: LiveRun, seconds: float, rows: list[Row], file: Path) -> None:
    broker = Client(live.where.broker, peer="broker")
    store = Client(live.where.store, peer="store")
    try:
        await _timed(ask(broker, brief=False, deadline_s=START_S))
        started = time.monotonic()
        with file.open("w") as lines:
            while time.monotonic() - started < seconds and live.status is None:
                row: Row = {"at": time.monotonic() - started}
                row["broker_ms"], queues = await _timed(ask(broker, brief=False, deadline_s=ASK_S))
                row["store_ms"], stats = await _timed(store.request(GetStoreStats(), deadline_s=ASK_S))
                if queues is not None:
                    row |= {"lag_ms": queues.lag_ms, "step": queues.step}
                if stats is not None:
                    row |= {"samples": stats.message.samples, "commit_ms": stats.message.commit_ms}
                row["parts"] = {part.name: seen for part in live.parts() if (seen := _look(part))}
                rows.append(row)
                lines.write(json.dumps(row) + "\n")
                lines.flush()
                await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - started - row["at"])))
    finally:
        broker.close()
        store.close()


async def _timed(question: Awaitable[Any]) -> tuple[float | None, Any]:
    """(milliseconds until the answer, the answer); None if there was none."""
    started = time.perf_counter()
    with contextlib.suppress(RhymedError):
        answer = await question
        return 1000 * (time.perf_counter() - started), answer
    return None, None


def _look(part: Part) -> Row | None:
    """None for a scoring process: these come and go by design."""
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(part.pid)
        if part.role != "scorer":
            memory = process.memory_info()
            return {
                "pid": part.pid,
                "rss_mib": (memory.rss - getattr(memory, "shared", 0)) / 2**20,  # mapped files do not count
                "files": process.num_fds(),
                "threads": process.num_threads(),
            }
    return None


# -- what it comes to -----------------------------------------------------------------------------------------------


def judge(rows: Sequence[Row]) -> dict[str, Any]:
    """Slopes per hour, by process and by request, and what is wrong with them. Pure."""
    parts: dict[str, dict[str, float]] = {}
    wrong: list[str] = []
    long_enough = bool(rows) and rows[-1]["at"] >= LEAST_S
    for name, seen in sorted(_by_part(rows).items()):
        parts[name] = {}
        for key, limit in LIMITS.items():
            growth = slope([(at, one[key]) for at, one in seen], rows)
            parts[name] |= {key: float(seen[-1][1][key]), f"{key}_per_hour": growth}
            if growth > limit and long_enough:
                wrong.append(f"{name}: {key} grows by {growth:.1f} per hour, at most {limit:g} are allowed")
    answers: dict[str, dict[str, float]] = {}
    for key in ("broker_ms", "store_ms", "lag_ms", "commit_ms"):
        values = [(row["at"], row[key]) for row in rows if row.get(key) is not None]
        if values:
            all_ms = np.array([value for _, value in values])
            growth = slope(values, rows)
            answers[key] = {"median": float(np.median(all_ms)), "max": float(all_ms.max()), "per_hour": growth}
            if growth > MOST_MS and long_enough:
                wrong.append(f"{key} grows by {growth:.1f} ms per hour, at most {MOST_MS:g} are allowed")
    return {
        "parts": parts,
        "answers": answers,
        "steps": max((row.get("step", 0) for row in rows), default=0),
        "wrong": wrong,
    }


def slope(values: Sequence[tuple[float, float]], rows: Sequence[Row]) -> float:
    """Slope per hour after the warm-up; times in seconds. The median over distant pairs, so outliers do not count."""
    begin = WARM * rows[-1]["at"]
    late = [value for value in values if value[0] >= begin]
    half = len(late) // 2
    pairs = zip(late[:half], late[len(late) - half :], strict=True)
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs if x2 > x1]
    return 3600 * float(np.median(slopes)) if slopes else 0.0


def _by_part(rows: Sequence[Row]) -> Mapping[str, list[tuple[float, Row]]]:
    found: dict[str, list[tuple[float, Row]]] = defaultdict(list)
    for row in rows:
        for name, seen in row["parts"].items():
            found[name].append((row["at"], seen))
    return found


def _restarts(rows: Sequence[Row]) -> dict[str, int]:
    return {name: len({one["pid"] for _, one in seen}) - 1 for name, seen in sorted(_by_part(rows).items())}


def draw(rows: Sequence[Row], path: Path) -> Path | None:
    """None without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(9, 9), layout="constrained")
    axes = figure.subplots(4, 1, sharex=True)
    for axis, key, label in zip(axes, LIMITS, ("memory, MiB", "open files", "threads"), strict=False):
        for name, seen in sorted(_by_part(rows).items()):
            axis.plot([at / 60 for at, _ in seen], [one[key] for _, one in seen], label=name, linewidth=1)
        axis.set(ylabel=label)
    axes[0].legend(frameon=False, ncols=4, fontsize="small")
    for key in ("broker_ms", "store_ms", "lag_ms"):
        known = [row for row in rows if row.get(key) is not None]
        axes[3].plot([row["at"] / 60 for row in known], [row[key] for row in known], label=key, linewidth=1)
    axes[3].set(ylabel="milliseconds", yscale="log", xlabel="minutes")
    axes[3].legend(frameon=False, ncols=3, fontsize="small")
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return path


def _print(result: Row, picture: Path | None) -> None:
    print(f"{'process':12} {'MiB':>8} {'per hour':>8} {'files':>6} {'per hour':>8} {'threads':>8} {'per hour':>8}")
    for name, seen in result["parts"].items():
        print(
            f"{name:12} {seen['rss_mib']:8.1f} {seen['rss_mib_per_hour']:+8.1f} {seen['files']:6.0f}"
            f" {seen['files_per_hour']:+8.1f} {seen['threads']:8.0f} {seen['threads_per_hour']:+8.1f}"
        )
    for name, seen in result["answers"].items():
        print(f"{name}: median {seen['median']:.2f}, longest {seen['max']:.1f}, {seen['per_hour']:+.2f} per hour")
    print(f"{result['steps']} steps in {result['minutes']:g} minutes")
    for fault in result["wrong"]:
        print(f"wrong: {fault}")
    flat = "flat" if result["minutes"] * 60 >= LEAST_S else "nothing wrong, but too short to judge growth"
    print(f"{flat if result['good'] else 'not passed'}; see {picture or result['folder']}")


def main() -> int:
    parser = command.parser("tests.stress.soak", "run for a long time and measure what grows")
    parser.add_argument("--minutes", type=float, metavar="N", help="how long (default: 60)")
    parser.add_argument("--rollout", type=int, metavar="N", help="rollout workers")
    parser.add_argument("--reward", type=int, metavar="N", help="reward workers")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the run, soak.jsonl and soak.png here")
    add_override(parser)
    return command.call(run, parser)


if __name__ == "__main__":
    sys.exit(main())
