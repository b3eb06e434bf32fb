"""One trace of a message, from `send()` over the broker's commit and flush to the handler of `work()`.

    python examples/traces.py

A small receiver stands in for an OpenTelemetry collector: it appends what the broker and this program send to a file,
as a collector's file exporter does.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from seaweedq import Client


class Receiver(BaseHTTPRequestHandler):
    """Appends each request to FILE."""

    def do_POST(self) -> None:
        sent = ExportTraceServiceRequest.FromString(self.rfile.read(int(self.headers["content-length"])))
        with FILE.open("a") as file:
            file.write(json.dumps(MessageToDict(sent)) + "\n")
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Prints nothing."""


def show(spans: list[dict[str, Any]], parent: str = "", depth: int = 0) -> None:
    """Prints spans as a tree, in the order in which they began."""
    for span in (one for one in spans if one.get("parentSpanId", "") == parent):
        print(f"{'  ' * depth}{span['name']} ({span['service']})")
        show(spans, span["spanId"], depth + 1)


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
COLLECTOR = f"http://127.0.0.1:{server.server_port}"
provider = TracerProvider(resource=Resource({"service.name": "shop"}))
provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{COLLECTOR}/v1/traces")))
trace.set_tracer_provider(provider)
with TemporaryDirectory() as folder:
    FILE = Path(folder, "traces.jsonl")
    options = ["--data-dir", f"{folder}/data", "--port", "0", "--otel-endpoint", COLLECTOR]
    broker = subprocess.Popen([sys.executable, "-m", "seaweedq", "serve", *options], stdout=subprocess.PIPE, text=True)
    url = str(broker.stdout and broker.stdout.readline()).split()[3].rstrip(",")  # seaweedq {broker} at {url}, ...
    with Client(url) as client:
        with provider.get_tracer("shop").start_as_current_span("checkout"), client.producer("orders") as producer:
            producer.send({"order": 1})
        client.flush("orders")
        client.work("orders", "billing", lambda one: print("billed", one.value), start="earliest", idle_timeout_s=1)
    broker.terminate()
    broker.wait()  # it sends its last spans before it ends
    found = [each for line in FILE.read_text().splitlines() for each in json.loads(line)["resourceSpans"]]
    spans = [
        {**one, "service": attribute["value"]["stringValue"]}
        for each in found
        for attribute in each["resource"]["attributes"]
        for one in each["scopeSpans"][0]["spans"]
        if attribute["key"] == "service.name"
    ]
    (checkout,) = (one for one in spans if one["name"] == "checkout")
    show(sorted((s for s in spans if s["traceId"] == checkout["traceId"]), key=lambda s: int(s["startTimeUnixNano"])))
