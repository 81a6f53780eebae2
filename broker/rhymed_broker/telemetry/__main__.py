"""The process of one sink: `python -m rhymed_broker.telemetry wandb runs/quickstart/config.json` sends what it has not sent yet.

With `--live`, as the broker starts it, it goes on until its stdin ends; "finished" there means that the run is. A
call into the sink's package that takes too long ends the process: whoever started it may start it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from rhymed.errors import ConfigError
from rhymed_broker.telemetry import PACKAGES, About, open_sink, shareable
from rhymed_broker.telemetry.follow import Bookmark, lines

POLL_S = 0.5
NICE = 10


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m rhymed_broker.telemetry", description="Send a run's metrics elsewhere."
    )
    parser.add_argument("sink", choices=sorted(PACKAGES))
    parser.add_argument("config", type=Path, help="config.json in the run's folder")
    parser.add_argument("--live", action="store_true", help="go on until stdin ends")
    parser.add_argument("--stall-s", type=float, default=300.0, help="end when one call takes longer (default: 300)")
    given = parser.parse_args(arguments)
    config = _read(given.config, whole=given.live)
    if given.live:
        os.nice(NICE)
    Sending(given.sink, config, given.stall_s).run(live=given.live)


def _read(file: Path, *, whole: bool) -> Mapping[str, Any]:
    """`whole`: every key is there, so it need not be checked, which would take the half of a start."""
    try:
        tree: Mapping[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; name the config.json in a run's folder") from None
    if whole:
        return tree
    from rhymed.config import Config

    return Config.model_validate(tree).model_dump(mode="json")


class Sending:
    """One sink, and the lines that it has not taken yet."""

    def __init__(self, name: str, config: Mapping[str, Any], stall_s: float) -> None:
        run = config["run"]
        folder = Path(run["folder"]).expanduser().resolve() / run["name"]
        self._stall_s = stall_s
        self._file = folder / "metrics.jsonl"
        with self._limited():
            self._bookmark = Bookmark(folder / "sinks", name)
            about = About(run["name"], self._bookmark.id, shareable(config), config["metrics"], folder)
            self._sink = open_sink(name, about)

    def run(self, *, live: bool) -> None:
        """All lines; `live`: until stdin ends, and then those that came before its end."""
        finished = not live
        for said in _words() if live else ():
            self._catch_up()
            self._bookmark.works()
            finished = finished or said == b"finished\n"
        while self._catch_up():
            pass
        with self._limited():
            self._sink.close(finished=finished)
        self._bookmark.close()

    def _catch_up(self) -> int:
        """How many lines there were."""
        count = 0
        for line, offset in lines(self._file, self._bookmark.offset):
            count += 1
            if line is not None and line.metrics:
                with self._limited():
                    self._sink.write(line)
            self._bookmark.put(offset)
        return count

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """If what is done inside takes longer than `stall_s`, threads tell where they are, and the process ends."""
        faulthandler.dump_traceback_later(self._stall_s, exit=True)
        try:
            yield
        finally:
            faulthandler.cancel_dump_traceback_later()


def _words() -> Iterator[bytes]:
    """What is said on stdin, until its end; nothing (b"") at once, and after every `POLL_S`."""
    yield b""
    while True:
        ready, _, _ = select.select([0], [], [], POLL_S)
        said = os.read(0, 4096) if ready else b""
        yield said
        if ready and not said:
            return


def _end(status: int) -> NoReturn:
    """At once: what a package has left behind keeps nobody waiting, and has nothing more to say."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        print(error, file=sys.stderr)
        _end(2)
    except Exception as error:
        traceback.print_exc()
        print(
            " ".join(f"{type(error).__name__}: {error}".split()), file=sys.stderr
        )  # the reason, in one line, is last
        _end(1)
    _end(0)
