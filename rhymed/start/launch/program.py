"""The program that a run belongs to: `rhymed.train` and `Run.evaluate` start `rhymed run` with `VARIABLE`.

The variable names a file, which says what became of the run; what people see goes to standard output, as always. The
program holds the other end of our standard input: when that closes, the program is gone, and the run is stopped as by
SIGTERM and can be resumed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

from rhymed.core.errors import RhymedError
from rhymed.core.service.stdio import ignore_output_errors

VARIABLE = "RHYMED_PROGRAM"

log = logging.getLogger(__name__)


class Program:
    """What it is told becomes the file's JSON. `file`: None: the run belongs to no program."""

    def __init__(self, file: Path | None) -> None:
        self._file, self._told = file, dict[str, str]()

    def begun(self, folder: Path) -> None:
        """The run was not refused, and has its folder."""
        self._tell(folder=str(folder))

    def failed(self, error: str, text: str) -> None:
        """`error`: a class in rhymed.core.errors."""
        self._tell(error=error, text=text)

    def _tell(self, **facts: str) -> None:
        self._told |= facts
        if self._file is not None:
            self._file.write_text(json.dumps(self._told))


@contextlib.contextmanager
def shown() -> Iterator[Program]:
    """Within the block a run is shown, and the loss of its screen does not end it."""
    file = os.environ.pop(VARIABLE, "")  # processes of the run are not the program's
    program = Program(Path(file) if file else None)
    if file:
        Thread(target=_end_with_it, name="rhymed-program", daemon=True).start()
    with ignore_output_errors():
        try:
            yield program
        except RhymedError as error:
            program.failed(type(error).__name__, str(error))
            raise


def _end_with_it() -> None:
    while os.read(0, 1):
        pass
    log.warning("the program that started this run is gone: the run ends")
    os.kill(os.getpid(), signal.SIGTERM)
