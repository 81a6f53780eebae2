"""`rhymed bench gpu`: runs the parts one after another, and keeps a line of JSON for each command.

A command that has succeeded on the same hardware is not run again, so a time on a GPU may come in pieces. One that
fails is recorded with its last words, and the other parts run. Not tried on a GPU; on processors its parts run small.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from rhymed.bench.gpu import machine
from rhymed.bench.gpu.parts import PARTS, Cell, cells
from rhymed.errors import ConfigError
from rhymed.text import duration, truncated

OUT = Path("runs/bench-gpu")
PATIENCE = 4  # times the planned minutes
STOP_S = 30.0
WORDS = 2000  # characters of a command that failed

Line = dict[str, Any]


def run(
    quick: bool,
    parts: Sequence[str] | None = None,
    dry: bool = False,
    device: str = "cuda",
    model: Path | None = None,
    out: Path | None = None,
) -> dict[str, Any]:
    """`parts`: names in `PARTS`. `dry`: prints the commands only. `quick`: small versions of the benchmarks.

    Raises `ConfigError` for a part that does not exist, or where there is no GPU for `device` = `cuda`.
    """
    if unknown := [name for name in parts or () if name not in PARTS]:
        raise ConfigError(f"--part {', '.join(unknown)}: there is no such part; choose from {', '.join(PARTS)}")
    found = [cell for cell in cells(device, str(model or ""), quick=quick) if not parts or cell.part in parts]
    if dry:
        return _plan(found)
    if device == "cuda" and (why := machine.no_gpu()):
        raise ConfigError(
            f"no GPU to measure on: {why}. --device cpu runs small versions on processors, --dry lists the commands"
        )
    folder, hardware, lines = out or OUT, machine.hardware(device), list[Line]()
    for cell in found:
        if (known := _known(folder, cell, hardware)) is None:
            known = _measure(cell) | {"hardware": hardware, "versions": machine.versions()}
            _add(folder, known)
        else:
            print(f"{cell.part}, {cell.name}: measured before, in {folder / cell.part}.jsonl", flush=True)
        lines.append(known)
    failed = [f"{line['part']}, {line['cell']}" for line in lines if line["status"]]
    print(f"{len(lines) - len(failed)} of {len(lines)} commands have succeeded; results are in {folder}", flush=True)
    return {"folder": str(folder), "failed": failed, "good": not failed}


def _plan(found: Sequence[Cell]) -> dict[str, Any]:
    for part in dict.fromkeys(cell.part for cell in found):
        print(f"{part}: {PARTS[part]}")
        for cell in found:
            if cell.part == part:
                print(f"  {cell.name}, about {cell.minutes:g} min\n    {cell.text}")
    total = sum(cell.minutes for cell in found)
    print(f"about {duration(60 * total)} in all, by plan: no time was measured on a GPU")
    return {"minutes": total, "commands": [cell.text for cell in found]}


def _known(folder: Path, cell: Cell, hardware: Line) -> Line | None:
    """A line of the same command on the same hardware that has succeeded."""
    file = folder / f"{cell.part}.jsonl"
    wanted = (0, cell.text, hardware)
    try:
        lines: list[Line] = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return next((one for one in lines if (one["status"], one["command"], one["hardware"]) == wanted), None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is no file of this benchmark ({error}): choose another folder by --out") from None


def _add(folder: Path, line: Line) -> None:
    file = folder / f"{line['part']}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("a") as stream:
            stream.write(json.dumps(line) + "\n")
    except OSError as error:
        raise ConfigError(f"--out {folder}: {file.name} cannot be written: {error.strerror}") from None


def _measure(cell: Cell) -> Line:
    """Ends the command where this one ends. Its output goes to files: a pipe stays open while any process lives that
    it has left behind."""
    print(f"{cell.part}, {cell.name}, about {cell.minutes:g} min: {cell.text}", flush=True)
    line: Line = {"part": cell.part, "cell": cell.name, "command": cell.text, "started": time.time()}
    begun = time.monotonic()
    with TemporaryFile() as out_file, TemporaryFile() as err_file:
        environment = {**os.environ, **dict(cell.environment)}
        child = subprocess.Popen(cell.command, stdout=out_file, stderr=err_file, env=environment)
        status, late = -1, ""
        try:
            status = child.wait(60 * PATIENCE * cell.minutes)
        except subprocess.TimeoutExpired:
            late = f"\nended after {PATIENCE} times the planned time"
        finally:
            _end(child)
        out, err = _text(out_file), _text(err_file) + late
    line |= {"seconds": round(time.monotonic() - begun, 1), "status": status}
    print(f"  {'failed' if status else 'done'} after {duration(line['seconds'])}", flush=True)
    if status:
        print(f"  {truncated(err.strip()[-WORDS:] or out.strip()[-WORDS:], WORDS)}", flush=True)
        return line | {"error": (err or out)[-WORDS:]}
    return line | {"result": result(out)}


def _end(child: subprocess.Popen[bytes]) -> None:
    """If it runs: asked first, so that what it has started ends, too."""
    child.terminate()
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def result(output: str) -> Any:
    """A benchmark's JSON; of another command the last lines."""
    try:
        return json.loads(output)
    except ValueError:
        return output.strip().splitlines()[-20:]
