"""Sends finished spans to an OTLP/HTTP address, on a thread of its own.

What waits is bounded: when the address is slow or away, spans are dropped and counted, and the run does not notice.
Why is told once, until it works again. OpenTelemetry is imported on the thread, so nobody waits for that either; its
own environment variables hold (OTEL_EXPORTER_OTLP_HEADERS, for one).
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from rhymed_broker.telemetry.spans import Span

log = logging.getLogger(__name__)

WAITING = 16384  # spans
BATCH = 512
LOOK_S = 0.2  # the thread notices its end so late
LINGER_S = 1.0  # others may join a batch, or an address come back
TIMEOUT_S = 10.0

Send = Callable[[list[Span]], bool]
"""Blocking; may raise. Whether they have arrived."""


class Exporter:
    def __init__(self, connect: Callable[[], Send], *, waiting: int = WAITING, linger_s: float = LINGER_S) -> None:
        """`connect` is called on the thread, again after it raised."""
        self.trouble = ""  # why spans do not arrive just now
        self.dropped = 0
        self._slow = False  # some had no room
        self._connect = connect
        self._linger_s = linger_s
        self._send: Send | None = None
        self._waiting: queue.Queue[Span] = queue.Queue(waiting)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def put(self, span: Span) -> None:
        """Never waits."""
        try:
            self._waiting.put_nowait(span)
        except queue.Full:
            self.dropped += 1
            self._slow = True

    def close(self, deadline_s: float) -> None:
        """Blocking: what waits is sent, but for no longer than this; then the thread is left to itself."""
        self._closing.set()
        self._thread.join(deadline_s)

    def _work(self) -> None:
        while not (self._closing.is_set() and self._waiting.empty()):
            if batch := self._batch():
                self._deliver(batch)

    def _batch(self) -> list[Span]:
        """The first that comes, and those that come soon after it; empty: none came."""
        batch: list[Span] = []
        with contextlib.suppress(queue.Empty):
            batch.append(self._waiting.get(timeout=LOOK_S))
            if self._waiting.qsize() < BATCH:
                self._closing.wait(self._linger_s)
            while len(batch) < BATCH:
                batch.append(self._waiting.get_nowait())
        return batch

    def _deliver(self, batch: list[Span]) -> None:
        try:
            if self._send is None:
                self._send = self._connect()
            reason = "" if self._send(batch) else "they were not taken"
        except Exception as error:  # of other people's packages
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self.dropped += len(batch)
            self._tell(f"traces do not arrive, and are dropped, {self.dropped:,} spans by now: {reason}")
            self._closing.wait(self._linger_s)
        elif self._slow:
            self._slow = False
            self._tell(
                f"traces arrive too slowly, and some are dropped, {self.dropped:,} spans by now:"
                " lower metrics.trace_ratio"
            )
        else:
            self.trouble = ""

    def _tell(self, trouble: str) -> None:
        if not self.trouble:
            log.warning(trouble)
        self.trouble = trouble


def otlp(address: str, run: str) -> Callable[[], Send]:
    """To `address`/v1/traces, as protobuf over HTTP. Needs `rhymed[otel]`."""

    def connect() -> Send:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # we tell, once
        return sender(OTLPSpanExporter(endpoint=endpoint(address), timeout=TIMEOUT_S), run)

    return connect


def endpoint(address: str) -> str:
    """Where traces are taken at an OTLP/HTTP address; the path may be there already."""
    address = address.rstrip("/")
    return address if address.endswith("/v1/traces") else f"{address}/v1/traces"


def sender(exporter: Any, run: str) -> Send:
    """Spans through one of OpenTelemetry's exporters; `run` is told as a property of where they come from."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult

    resource = Resource.create({"service.name": "rhymed", "rhymed.run": run})

    def send(batch: list[Span]) -> bool:
        return bool(exporter.export([_readable(span, resource) for span in batch]) is SpanExportResult.SUCCESS)

    return send


def _readable(span: Span, resource: Any) -> Any:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    def context(id: str) -> SpanContext:
        return SpanContext(int(span.trace, 16), int(id, 16), is_remote=False, trace_flags=TraceFlags(1))

    return ReadableSpan(
        name=span.name,
        context=context(span.id),
        parent=context(span.parent) if span.parent else None,
        resource=resource,
        attributes=span.attributes,
        start_time=span.start_ns,
        end_time=span.end_ns,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
    )
