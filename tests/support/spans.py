"""Spans that a test keeps in memory, and a collector that keeps what OTLP brings it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from seaweedq.traces import Traces

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
OUTER = "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{OUTER}-01"
UNSAMPLED = f"00-{TRACE}-{OUTER}-00"


def of_context(context: SpanContext | None) -> str | None:
    """A context as the header."""
    return context and f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags & 1:02x}"


class Kept(Traces):
    """Spans in memory, in the order of their ends."""

    def __init__(self) -> None:
        self.exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        super().__init__(provider.get_tracer("test"))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        """All spans that have ended."""
        return self.exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        """The names of all spans that have ended."""
        return [span.name for span in self.spans]

    def one(self, name: str) -> ReadableSpan:
        """The only span of a name."""
        (found,) = (span for span in self.spans if span.name == name)
        return found


class Collector:
    """What a receiver at `url` was sent: the names of spans."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Any] = []

    @property
    def names(self) -> list[str]:
        """The names of all spans."""
        return [span.name for span in self.spans]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of the loopback address."""

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
            collector.spans += [span for each in sent.resource_spans for one in each.scope_spans for span in one.spans]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    collector = Collector(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
