"""Exports to third-party systems: metrics to sinks, the lives of samples as traces; and whether the copy is kept up.

Owns the sinks' processes and the traces' thread. Invariant: neither delays or ends the run; a missing package is
reported before the run begins.
"""

from __future__ import annotations

import asyncio
import time

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.remote.status import RemoteTrouble
from rhymed.run.layout import RunLayout
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.telemetry import missing_packages
from rhymed_broker.telemetry.otlp import Exporter, otlp
from rhymed_broker.telemetry.processes import SinkProcesses
from rhymed_broker.telemetry.spans import Recorder

TRACES_S = 3.0  # at the end, for queued spans


class Exports:
    def __init__(self, config: Config, layout: RunLayout) -> None:
        self._config = config
        self._sinks = SinkProcesses(config, layout)
        self._copy = RemoteTrouble(layout.folder, config.run.remote)
        self._exporter: Exporter | None = None

    async def run(self, samples: Samples) -> None:
        """Until cancelled. Raises `ConfigError` at once if a package is missing."""
        if problems := missing_packages(self._config.metrics):
            raise ConfigError("\n".join(problems))
        run, metrics = self._config.run.name, self._config.metrics
        if metrics.traces:
            self._exporter = Exporter(otlp(metrics.traces), run)
            epoch_ns = time.time_ns() - time.monotonic_ns()
            samples.watcher = Recorder(run, self._exporter.put, ratio=metrics.trace_ratio, epoch_ns=epoch_ns)
        await self._sinks.run()

    @property
    def trouble(self) -> str:
        """Empty: there is none."""
        traces = self._exporter.trouble if self._exporter is not None else ""
        return "; ".join(filter(None, (self._sinks.trouble, traces, self._copy.trouble)))

    async def close(self, *, finished: bool, deadline_s: float) -> None:
        """Sends what is left, within the deadline. Idempotent."""
        exporter, self._exporter = self._exporter, None
        await self._sinks.close(finished=finished, deadline_s=deadline_s)
        if exporter is not None:
            await asyncio.to_thread(exporter.close, min(TRACES_S, deadline_s))
