"""`python -m benchmarks agents`: idle slots, the cost of a turn, that of the endpoint, and drafts on turns.

* `slots`: 256 samples in turns with tools of 50 ms to 5 s, and 64 slots, so that turns wait for slots.
* `turns`: the same with a slot for each: what is between a tool and the engine, and between the engine and a tool.
* `endpoint`: what the endpoint of programs adds to a call, at about 60 calls a second.
* `drafts`: tokens a forward pass, on recorded samples in turns (`--trace`, the folder of a run of several epochs).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.agents import drafts, endpoint, sessions
from rhymed.core import atomic
from rhymed.core.errors import ConfigError
from rhymed.core.output import show

SESSIONS, SLOTS, TURNS = 256, 64, 5


def _slots(quick: bool) -> dict[str, Any]:
    """A forward pass of 32 samples takes 36 ms, a turn 2.3 s."""
    return sessions.run(SESSIONS, SLOTS, 1, 2 if quick else TURNS, mean_length=64, step_s=0.020, token_s=0.0005)


def _turns(quick: bool) -> dict[str, Any]:
    """A forward pass takes 33 ms."""
    return sessions.run(
        SESSIONS, SESSIONS + 64, 1, 2 if quick else TURNS, mean_length=64, step_s=0.020, token_s=0.0001
    )


def _endpoint(quick: bool) -> dict[str, Any]:
    return endpoint.run(32, 5 if quick else 40)


PARTS: dict[str, Callable[[bool], dict[str, Any]]] = {"slots": _slots, "turns": _turns, "endpoint": _endpoint}
RECORDED = ("drafts",)  # parts that read a run's folder


def run(
    quick: bool,
    parts: Sequence[str] | None = None,
    trace: Path | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """`out`: a JSON file, rewritten after each part. Raises `ConfigError`."""
    if unknown := [part for part in parts or () if part not in (*PARTS, *RECORDED)]:
        raise ConfigError(f"--part {','.join(unknown)}: there are {', '.join([*PARTS, *RECORDED])}")
    if trace is None and (needy := [part for part in parts or () if part in RECORDED]):
        raise ConfigError(f"--part {needy[0]} needs --trace FOLDER, of a run in turns with at least two epochs")
    results: dict[str, Any] = {}
    for part in parts or [*PARTS, *(RECORDED if trace else [])]:
        results[part] = drafts.run(trace) if part in RECORDED and trace else PARTS[part](quick)
        for name, value in _flat(results[part]):
            show(f"{part:<10}{name:<42}{value:>12.4g}", flush=True)
        if out:
            atomic.write(out, json.dumps(results, indent=1) + "\n")
    return results


def _flat(result: dict[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for name, value in result.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name} ")
        else:
            yield before + name, value
