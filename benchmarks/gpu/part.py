"""One part of `python -m benchmarks gpu`: a process of its own that writes each result as a line of JSON the moment
it is known, so that the results of a part that is killed, or whose process dies, are kept.

`python -m benchmarks.gpu.part` is what `gpu` starts: it calls a function with a `Recorder`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = "results.jsonl"
ERROR = 900  # characters of an error in a line

Row = dict[str, Any]


class Recorder:
    """The arguments of a part, and the destination of its results.

    `device`: `cuda` or `cpu`. `small`: sizes to try the command with, as on processors. `seconds`: after this
    time no further measurement begins. `out`: the folder of the results; None: they are only printed.
    """

    def __init__(
        self, part: str, out: Path | None, device: str = "cuda", seconds: float = float("inf"), *, small: bool = False
    ) -> None:
        self.part, self.device, self.small = part, device, small or device == "cpu"
        self.out = out
        self._began, self._seconds = time.monotonic(), seconds

    @property
    def gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def late(self) -> bool:
        return time.monotonic() - self._began > self._seconds

    def emit(self, what: str, **values: Any) -> None:
        row = {"part": self.part, "what": what, "at": round(time.monotonic() - self._began, 1), **values}
        print(line(row), flush=True)
        if self.out is not None:
            add(self.out, row)

    def check(self, what: str, work: Callable[[], Any]) -> Any:
        """Calls `work` and writes a line with its result, which it returns, or with its failure, and returns None. A
        mapping gives the line's values, of which `ok` may be False. After the part's time the line reports that it
        was left out."""
        if self.late:
            return self.emit(what, skipped="the part's time is over")
        began = time.monotonic()
        try:
            found = work()
        except Exception as error:
            traceback.print_exc()
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(last.filename).name}:{last.lineno}"
            traceback.clear_frames(error.__traceback__)  # which hold a GPU's memory
            self.emit(what, ok=False, error=shown(error), where=where, s=round(time.monotonic() - began, 1))
            return None
        values = found if isinstance(found, dict) else {} if found is None else {"found": found}
        self.emit(what, **{"ok": True, "s": round(time.monotonic() - began, 1), **values})
        return {} if found is None else found


def shown(error: BaseException) -> str:
    """Type of the error and the end of its text, where a traceback of another process has the reason."""
    return f"{type(error).__name__}: {str(error).strip()[-ERROR:]}"


def add(out: Path, row: Row) -> None:
    """Writes the row in one write, which a signal does not cut."""
    descriptor = os.open(out / RESULTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(row) + "\n").encode())
    finally:
        os.close(descriptor)


def line(row: Row) -> str:
    """A row as a line of text, and a line for each of its values that has parts."""
    shown = {key: value for key, value in row.items() if key not in ("part", "what", "ok", "at")}
    parts = {key: value for key, value in shown.items() if isinstance(value, dict)}
    text = f"{row['part']}: {row['what']}: {_values({k: v for k, v in shown.items() if k not in parts})}"
    return "\n".join([text.rstrip(": "), *(f"    {key}: {_values(value)}" for key, value in parts.items())])


def _values(row: Row) -> str:
    return " ".join(f"{key}={_plain(value)}" for key, value in row.items())[:400]


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value, separators=(",", ":")) if isinstance(value, list | dict) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.part", description="A part of a benchmark.")
    parser.add_argument("work", help="module:function")
    parser.add_argument("part")
    parser.add_argument("out", type=Path)
    parser.add_argument("device")
    parser.add_argument("seconds", type=float)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    # SIGTERM ends it as Ctrl-C does, so that the processes it started end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    module, function = given.work.split(":")
    recorder = Recorder(given.part, given.out, given.device, given.seconds, small=given.small)
    getattr(importlib.import_module(module), function)(recorder)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
