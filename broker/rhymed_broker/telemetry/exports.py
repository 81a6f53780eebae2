"""Exports to third-party systems: metrics to sinks; and whether the copy is kept up.

Owns the sinks' processes. Invariant: none delays or ends the run; a missing package is reported before the run
begins.

A process that ends is restarted after a growing pause; the reason is logged once, until it works again. They get
nothing from the broker: they read metrics.jsonl. When the run ends they have `deadline_s` for the rest, then they are
killed; the command in the warning sends later what was not sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

from rhymed.core.config import Config
from rhymed.core.errors import ConfigError
from rhymed.core.run.folder import write_config
from rhymed.core.run.layout import RunLayout
from rhymed.core.run.state import RemoteTrouble
from rhymed.core.service.children import last_lines, restart_pause_s, wait_or_kill
from rhymed_broker.telemetry import missing_packages
from rhymed_broker.telemetry.follow import working_pid

log = logging.getLogger(__name__)


PAUSE_S = 1.0  # before the first restart; doubled each time
LONGEST_PAUSE_S = 300.0
POLL_S = 2.0
STALL_S = 300.0  # for one call into a sink's package
TAIL_BYTES = 4096
REASON = 300  # characters


class Exports:
    def __init__(
        self, config: Config, layout: RunLayout, *, pause_s: float = PAUSE_S, stall_s: float = STALL_S
    ) -> None:
        self._config = config
        self._layout = layout
        self._copy = RemoteTrouble(layout.folder, config.run.remote)
        self._pause_s, self._stall_s = pause_s, stall_s
        self._living: dict[str, Process] = {}
        self._troubles: dict[str, str] = {}  # sink -> why it does not work now
        self._closing = False
        self._config_written = False

    @property
    def trouble(self) -> str:
        """Empty: there is none."""
        return "; ".join(filter(None, (*self._troubles.values(), self._copy.trouble)))

    async def run(self) -> None:
        """Until cancelled. Raises `ConfigError` at once if a package is missing."""
        if problems := missing_packages(self._config.metrics):
            raise ConfigError("\n".join(problems))
        await asyncio.gather(*(self._keep(name) for name in self._config.metrics.sinks))

    async def _keep(self, name: str) -> None:
        failures = 0
        while not self._closing:
            try:
                process = self._living[name] = await self._start(name)
            except OSError as error:  # no memory, or the disk is full
                worked, reason = False, f"it cannot be started: {error}"
            else:
                worked = await self._watch(name, process)
                reason = await asyncio.to_thread(self._reason, name, process.returncode)
            if self._closing:
                return
            self._report(name, reason)
            failures = 1 if worked else failures + 1
            await asyncio.sleep(restart_pause_s(failures, self._pause_s, LONGEST_PAUSE_S))

    async def _watch(self, name: str, process: Process) -> bool:
        """Until it ends. Returns whether it had sent everything at some time."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), POLL_S)
            worked = working_pid(self._folder, name) == process.pid
            if process.returncode is not None:
                return worked
            if worked:
                self._troubles.pop(name, None)

    @property
    def _folder(self) -> Path:
        return self._layout.folder / "sinks"

    @property
    def _file(self) -> Path:
        return self._folder / "config.json"

    def _write_config(self) -> None:
        """Once: the configuration must not change while a sink reads it."""
        if not self._config_written:
            self._folder.mkdir(parents=True, exist_ok=True)
            run = self._config.run.model_copy(update={"folder": str(self._layout.folder.parent)})
            write_config(self._file, self._config.model_copy(update={"run": run}))
            self._config_written = True

    async def _start(self, name: str) -> Process:
        self._write_config()
        log_file = self._layout.log(f"sink-{name}")
        log_file.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-P",  # files in the current folder are not packages
            "-m",
            "rhymed_broker.telemetry",
            name,
            str(self._file),
            "--live",
            f"--stall-s={self._stall_s:g}",
        ]
        with log_file.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=output, stderr=output, start_new_session=True
            )

    def _report(self, name: str, reason: str) -> None:
        before = self._troubles.get(name)
        self._troubles[name] = f"metrics do not reach {name} (they will when it works again): {reason}"
        if before is None:
            log.warning("%s; see %s", self._troubles[name], self._layout.log(f"sink-{name}"))

    def _reason(self, name: str, status: int | None) -> str:
        """The last line of its log."""
        with contextlib.suppress(OSError):
            lines = last_lines(self._layout.log(f"sink-{name}"), most_bytes=TAIL_BYTES)
            if any("Timeout (" in line for line in lines[-200:]):
                return f"it hung for more than {self._stall_s:g} s"
            if lines:
                return lines[-1][:REASON]
        return f"it ended with status {status}"

    async def close(self, *, finished: bool, deadline_s: float) -> None:
        """Lets them send the rest. `finished`: the run is over; otherwise it may be resumed. Idempotent."""
        self._closing = True
        living = {name: process for name, process in self._living.items() if process.returncode is None}
        self._living = {}
        await asyncio.gather(*(self._end(name, process, finished, deadline_s) for name, process in living.items()))

    async def _end(self, name: str, process: Process, finished: bool, deadline_s: float) -> None:
        assert process.stdin is not None, "it was started with one"
        with contextlib.suppress(OSError):
            if finished:
                process.stdin.write(b"finished\n")
            process.stdin.close()
        await wait_or_kill(process, deadline_s, session=True)
        if process.returncode:
            command = f"python -m rhymed_broker.telemetry {name} {self._file}"
            log.warning("%s has not taken all metrics of the run; to send the rest: %s", name, command)
