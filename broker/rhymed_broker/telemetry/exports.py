"""What of a run goes to other people's systems: metrics to sinks, lives of samples as traces.

Owns the sinks' processes and the traces' thread. Invariant: none of it holds up the run, and none of it ends it; what
is missing is told before the run begins.
"""

from __future__ import annotations

import asyncio
import time

from rhymed.config import Config
from rhymed.errors import ConfigError
from rhymed.run.layout import RunLayout
from rhymed_broker.ledger.samples import Samples
from rhymed_broker.telemetry import missing
from rhymed_broker.telemetry.otlp import Exporter, otlp
from rhymed_broker.telemetry.processes import Keeper
from rhymed_broker.telemetry.spans import Recorder

TRACES_S = 3.0  # at the end, for spans that wait


class Abroad:
    def __init__(self, config: Config, where: RunLayout) -> None:
        self._config = config
        self._sinks = Keeper(config, where)
        self._exporter: Exporter | None = None

    async def run(self, samples: Samples) -> None:
        """Until cancelled. Raises `ConfigError` at once if a package is missing."""
        if lacking := missing(self._config):
            raise ConfigError("\n".join(lacking))
        if address := self._config.metrics.traces:
            self._exporter = Exporter(otlp(address, self._config.run.name))
            epoch_ns = time.time_ns() - time.monotonic_ns()
            ratio = self._config.metrics.trace_ratio
            samples.watcher = Recorder(self._config.run.name, self._exporter.put, ratio=ratio, epoch_ns=epoch_ns)
        await self._sinks.run()

    @property
    def trouble(self) -> str:
        """For people; empty: there is none."""
        traces = self._exporter.trouble if self._exporter is not None else ""
        return "; ".join(filter(None, (self._sinks.trouble, traces)))

    async def close(self, *, finished: bool, deadline_s: float) -> None:
        """What is left is sent, as far as the time allows. Again: does nothing."""
        exporter, self._exporter = self._exporter, None
        await self._sinks.close(finished=finished, deadline_s=deadline_s)
        if exporter is not None:
            await asyncio.to_thread(exporter.close, min(TRACES_S, deadline_s))
