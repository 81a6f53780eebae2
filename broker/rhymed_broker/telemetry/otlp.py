"""Sends finished spans to an OTLP/HTTP address through OpenTelemetry's `BatchSpanProcessor`, on that one's thread.

Invariant: the run does not notice a slow or unreachable address. The queue is bounded; spans that do not fit or do
not arrive are dropped and counted, and the reason is logged once until sending works again. OpenTelemetry's
environment variables apply (for example OTEL_EXPORTER_OTLP_HEADERS).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rhymed_broker.telemetry.spans import Span

log = logging.getLogger(__name__)

QUEUE_SPANS = 16384
BATCH_SPANS = 512
LINGER_S = 1.0  # more spans may join a batch
TIMEOUT_S = 10.0

Send = Callable[[Sequence[Any]], bool]
"""Blocking; may raise. Takes OpenTelemetry's `ReadableSpan`s; whether they have arrived."""


class Exporter:
    """A `SpanExporter` and the processor that calls it: `put` is for the event loop, `export` for the thread."""

    def __init__(
        self, connect: Callable[[], Send], run: str, *, queue_spans: int = QUEUE_SPANS, linger_s: float = LINGER_S
    ) -> None:
        """`connect` is called on the thread, again after it raised."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # failures are logged here, once
        self.trouble = ""  # why spans do not arrive now
        self._connect = connect
        self._send: Send | None = None
        self._queue_spans = queue_spans
        self._put = self._taken = self._overflowed = self._failed = 0  # spans
        self._reported = 0  # of those that overflowed
        self._closing: threading.Thread | None = None
        self._resource = Resource.create({"service.name": "rhymed", "rhymed.run": run})
        self._processor: Any = BatchSpanProcessor(
            self,  # type: ignore[arg-type,unused-ignore]
            max_queue_size=queue_spans,
            schedule_delay_millis=1000 * linger_s,
            max_export_batch_size=min(BATCH_SPANS, queue_spans),
        )

    @property
    def dropped(self) -> int:
        """Spans that did not arrive."""
        return self._overflowed + self._failed

    def put(self, span: Span) -> None:
        """Never waits. When the queue is full, the processor drops its oldest span."""
        if self._put - self._taken - self._overflowed >= self._queue_spans:
            self._overflowed += 1
        self._put += 1
        self._processor.on_end(readable(span, self._resource))

    def close(self, deadline_s: float) -> None:
        """Blocking: sends what is queued, for at most this long; after that the thread is left behind."""
        if self._closing is None:
            self._closing = threading.Thread(target=self._processor.shutdown, name="traces", daemon=True)
            self._closing.start()
        self._closing.join(deadline_s)

    def export(self, batch: Sequence[Any]) -> None:
        """Called by the processor, on its thread."""
        self._taken += len(batch)
        try:
            if self._send is None:
                self._send = self._connect()
            reason = "" if self._send(batch) else "they were not accepted"
        except Exception as error:  # of third-party packages
            reason = f"{type(error).__name__}: {error}"
        if reason:
            self._failed += len(batch)
            self._report(f"traces do not arrive, {self.dropped:,} spans dropped so far: {reason}")
        elif self._overflowed > self._reported:
            self._reported = self._overflowed
            self._report(
                f"traces arrive too slowly, {self.dropped:,} spans dropped so far: lower metrics.trace_ratio"
            )
        else:
            self.trouble = ""

    def shutdown(self) -> None:
        """Part of `SpanExporter`: there is nothing to close."""

    def _report(self, trouble: str) -> None:
        if not self.trouble:
            log.warning(trouble)
        self.trouble = trouble


def otlp(address: str) -> Callable[[], Send]:
    """To `address`/v1/traces, as protobuf over HTTP. Needs `rhymed[otel]`."""

    def connect() -> Send:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return sender(OTLPSpanExporter(endpoint=endpoint(address), timeout=TIMEOUT_S))

    return connect


def endpoint(address: str) -> str:
    """The URL for traces of an OTLP/HTTP address, which may include the path already."""
    address = address.rstrip("/")
    return address if address.endswith("/v1/traces") else f"{address}/v1/traces"


def sender(exporter: Any) -> Send:
    """Through one of OpenTelemetry's `SpanExporter`s."""
    from opentelemetry.sdk.trace.export import SpanExportResult

    return lambda batch: exporter.export(batch) is SpanExportResult.SUCCESS


def readable(span: Span, resource: Any) -> Any:
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
