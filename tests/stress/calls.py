"""Tools that write down every call before they answer, and whether a run's samples agree with what they wrote.

A call has a key of its own (`trace.tools`), so a line too many is a call made twice. Reads the store of a run that
has ended.
"""

from __future__ import annotations

import json
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from rhymed.core.messages import Call
from rhymed_store.browse import Browse, Response
from rhymed_workers.environment.actor import INTERRUPTED
from rhymed_workers.sessions.calls import hermes

TOOLS = '''"""Two tools that write down each call: one says something else each time, one may be called again."""

import json
import os
import secrets
import time
import zlib

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _note(tool, key, result):
    """In one write, so that a kill leaves a whole line or none."""
    file = os.open(os.path.join(FOLDER, f"{tool}.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (json.dumps([key, result]) + "\\n").encode())
    finally:
        os.close(file)


def spend(key: str) -> str:
    """Does what must not be done twice.

    Args:
        key: Of the call.
    """
    result = secrets.token_hex(8)
    time.sleep(zlib.crc32(key.encode()) % 20 / 1000)
    _note("spend", key, result)
    time.sleep(zlib.crc32(result.encode()) % 20 / 1000)
    return result


def look(key: str) -> str:
    """Changes nothing.

    Args:
        key: Of the call.
    """
    time.sleep(zlib.crc32(key.encode()) % 20 / 1000)
    result = f"{zlib.crc32(key.encode()):08x}"
    _note("look", key, result)
    return result


look.idempotent = True
'''
NAMES = ("spend", "look")


def with_tools(folder: Path, workers: int = 3, names: Sequence[str] = NAMES) -> dict[str, dict[str, Any]]:
    """Settings of a run whose synthetic turns call these tools."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder.resolve() / "tools.py"
    file.write_text(TOOLS)
    return {
        "environment": {"tools": f"{file}:{','.join(names)}", "workers": workers, "max_turns": 5},
        "trace": {"tools": list(names), "turns": 3.0, "mean_length": 20, "step_s": 0.002, "token_s": 0.0001},
    }


@dataclass
class Made:
    """What the tools wrote down, and what samples say. `wrong`: one sentence per disagreement."""

    samples: int = 0  # in the store, complete
    turns: int = 0
    calls: Counter[str] = field(default_factory=Counter)  # tool -> calls that samples have results of
    interrupted: int = 0  # calls that had begun when their process ended, and were not made again
    unread: int = 0  # calls that a tool wrote down and no complete sample has the result of
    repeated: int = 0  # calls of the tool that may be called again that were made more than once
    wrong: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        return {**vars(self), "calls": dict(self.calls)}

    def lines(self) -> list[str]:
        return [
            f"{self.samples:,} complete samples of {self.turns:,} turns; results of {self.calls['spend']:,} calls"
            f" that must not be repeated and of {self.calls['look']:,} that may be",
            f"{self.interrupted} calls were interrupted and not made again, {self.repeated} were made again,"
            f" {self.unread} have no complete sample",
        ]


def judge(folder: Path, browse: Browse) -> Made:
    """`folder`: of the tools."""
    found, logs = Made(), {name: _read(folder / f"{name}.log") for name in NAMES}
    for key, results in logs["spend"].items():
        if len(results) > 1:
            found.wrong.append(f"spend was called {len(results)} times for {key}")
    found.repeated = sum(len(results) > 1 for results in logs["look"].values())
    known: set[str] = set()
    for prompt in browse.ids():
        for response in browse.responses(prompt):
            _check(response, logs, found, known)
    found.unread = len(logs["spend"].keys() - known)
    found.wrong += [f"{name} was never called" for name in NAMES if not found.calls[name]]
    return found


def _read(file: Path) -> dict[str, list[str]]:
    """Key -> results, in the order of the calls."""
    made: dict[str, list[str]] = defaultdict(list)
    for line in file.read_text().splitlines() if file.exists() else ():
        key, result = json.loads(line)
        made[key].append(result)
    return made


def _check(response: Response, logs: dict[str, dict[str, list[str]]], found: Made, known: set[str]) -> None:
    found.samples += 1
    id = response.info.id
    turns = list(_turns(response))
    found.turns += len(turns)
    if len(turns) != len(response.calls):
        found.wrong.append(f"sample {id} has {len(turns)} turns and {len(response.calls)} answers")
        return
    for (wanted, shown), made in zip(turns, response.calls, strict=True):
        if made and len(made) != len(wanted):
            found.wrong.append(f"sample {id} asked for {len(wanted)} calls, {len(made)} are recorded")
            continue
        for (tool, key), call, result in zip(wanted, made, shown or [""] * len(made), strict=True):
            found.calls[tool] += 1
            known.add(key)
            fault = _fault(tool, key, call, result, logs[tool].get(key, []))
            found.interrupted += call.error == INTERRUPTED
            if fault:
                found.wrong.append(f"sample {id}: {tool} of {key}: {fault}")


def _fault(tool: str, key: str, call: Call, result: str, logged: Sequence[str]) -> str:
    """What is wrong with a call; empty: nothing. `result`: that the policy read; empty: it read none."""
    if call.name != tool:
        return f"it is recorded as one of {call.name}"
    if call.error == INTERRUPTED:
        return f"it was interrupted, but {result} was read" if result and INTERRUPTED not in result else ""
    if call.error:
        return f"it failed: {call.error}"
    if not logged:
        return f"it has the result {result!r}, but was not made"
    if result and result not in logged:
        return f"{result!r} was read, but it returned {logged}"
    if tool == "look" and result and result != f"{zlib.crc32(key.encode()):08x}":
        return f"{result!r} is not its result"
    return ""


def _turns(response: Response) -> Iterator[tuple[list[tuple[str, str]], list[str]]]:
    """Of each turn: its calls as (tool, key), and the results that the policy read; none where it read none."""
    runs = response.info.turns or [response.info.length]
    ends = list(accumulate(runs))
    parts = [response.tokens[end - size : end] for end, size in zip(ends, runs, strict=True)]
    for turn, answer in zip(parts[::2], [*parts[1::2], None], strict=False):
        text = bytes(int(token) for token in turn if token < 256).decode(errors="replace")
        calls, malformed, _ = hermes(text)
        wanted = [] if malformed else [(call.name, str(call.arguments["key"])) for call in calls]
        read = [] if answer is None else bytes(answer.astype("u1")).decode().strip("\n").split("\n\n")
        yield wanted, read
