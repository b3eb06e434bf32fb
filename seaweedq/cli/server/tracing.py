"""The spans of a broker's process: a bounded queue, and a thread that sends them to a collector, as OTLP over HTTP.

A collector that is away or slow costs the memory of MOST_WAITING spans; further spans are dropped, and counted. The end
of the process waits FLUSH_S for the spans that are left. OpenTelemetry's own variables (OTEL_*) set all else: headers
and certificates of the requests to the collector, the service's name, and the sampler of spans without a parent."""

import logging
import threading
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from seaweedq.settings import Settings
from seaweedq.traces import NAME, Traces

MOST_WAITING = 2_048
BATCH = 512
FLUSH_S = 1.0
PATH = "/v1/traces"
logger = logging.getLogger("seaweedq")


class CountingExporter(SpanExporter):
    """Passes spans to an exporter, and tells how many it has sent or given up. Logs when sending begins to fail, and
    when it works again: OpenTelemetry logs each try."""

    def __init__(self, exporter: SpanExporter, url: str, ended: Callable[[str, int], None]) -> None:
        self._exporter, self._url, self._ended = exporter, url, ended
        self._fails = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends a batch."""
        result = SpanExportResult.FAILURE
        try:
            result = self._exporter.export(spans)
        finally:
            fails = result is not SpanExportResult.SUCCESS
            self._ended("dropped" if fails else "exported", len(spans))
        if fails and not self._fails:
            logger.warning("spans cannot be sent to %s, so they are dropped", self._url)
        elif self._fails and not fails:
            logger.info("spans can be sent to %s again", self._url)
        self._fails = fails
        return result

    def shutdown(self) -> None:
        """Ends the exporter."""
        self._exporter.shutdown()


class BoundedProcessor(BatchSpanProcessor):
    """A queue of at most MOST_WAITING spans, those that are being sent included. `counts` are by outcome."""

    def __init__(self, exporter: SpanExporter, url: str) -> None:
        self.counts = {"exported": 0, "dropped": 0}
        self._waiting = 0
        self._lock = threading.Lock()
        super().__init__(CountingExporter(exporter, url, self._end), MOST_WAITING, max_export_batch_size=BATCH)

    def on_end(self, span: ReadableSpan) -> None:
        """Takes a span, unless the queue is full."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            if self._waiting >= MOST_WAITING:
                self.counts["dropped"] += 1
                return
            self._waiting += 1
        super().on_end(span)

    def _end(self, outcome: str, count: int) -> None:
        with self._lock:
            self._waiting -= count
            self.counts[outcome] += count


class ProcessTraces(Traces):
    """The spans of this process. The log's records have the ids of the trace and the span within which they are."""

    def __init__(self, settings: Settings) -> None:
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # the exporter tells of failures
        url = settings.otel_endpoint.rstrip("/") + PATH
        resource = Resource.create({"service.name": NAME, "service.instance.id": settings.name})
        resource = resource.merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        processor = BoundedProcessor(OTLPSpanExporter(url), url)
        self._provider.add_span_processor(processor)
        super().__init__(self._provider.get_tracer(NAME), processor.counts)
        for handler in logging.getLogger().handlers:
            handler.addFilter(self._mark)

    def close(self) -> None:
        """Sends the spans that are left, for at most FLUSH_S."""
        ending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        ending.start()
        ending.join(FLUSH_S)

    def _mark(self, record: logging.LogRecord) -> bool:
        record.traced = self.ids()
        return True
