"""A whole `rhymed run` as a child process of a benchmark."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rhymed.core.errors import RhymedError
from rhymed.core.service.children import last_lines

LOOK_EVERY_S = 2.0


def train(folder: Path, config: Path, settings: Sequence[str], look: Callable[[int], None] | None = None) -> None:
    """A run in this folder, or the rest of one that was interrupted. Its output goes to a file next to it.

    `settings`: `section.key=value`. `look`: called every two seconds with the run's process id. Raises `RhymedError`
    if the run fails.
    """
    own = [f"run.name={folder.name}", f"run.folder={folder.parent.resolve()}"]
    command = [sys.executable, "-m", "rhymed", "run", str(config), "--plain"]
    if (folder / "config.json").is_file():
        command = [sys.executable, "-m", "rhymed", "run", "--resume", str(folder), "--plain"]
    else:
        command += [word for setting in [*own, *settings] for word in ("-o", setting)]
    log = folder.parent / f"{folder.name}.log"
    with log.open("a") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            while process.poll() is None:
                if look is not None:
                    look(process.pid)
                time.sleep(LOOK_EVERY_S)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise RhymedError("\n".join([f"{folder.name} failed; its output is in {log}", *last_lines(log)]))
