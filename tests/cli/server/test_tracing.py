"""The spans of a broker's process: what it sends, what it drops, how it ends, and what it costs if nobody asks."""

import json
import logging
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from seaweedq.cli.server import tracing
from seaweedq.cli.server.serve import JsonLines
from seaweedq.cli.server.tracing import MOST_WAITING, BoundedProcessor, ProcessTraces
from seaweedq.settings import Settings
from tests.support.processes.broker_process import BrokerProcess
from tests.support.spans import SAMPLED, TRACE, collecting


class Held(SpanExporter):
    """An exporter that answers once it may."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.may.wait(60)
        return self.result


def ended(processor: BoundedProcessor, count: int) -> None:
    """Has so many spans end."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    for _ in range(count):
        provider.get_tracer("test").start_span("one").end()


def test_spans_beyond_the_bound_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    exporter = Held()
    processor = BoundedProcessor(exporter, "http://collector/v1/traces")
    ended(processor, MOST_WAITING + 100)
    assert processor.counts == {"exported": 0, "dropped": 100}
    exporter.may.set()
    processor.force_flush()
    assert processor.counts == {"exported": MOST_WAITING, "dropped": 100}
    exporter.result = SpanExportResult.FAILURE
    for _ in range(3):
        ended(processor, 1)
        processor.force_flush()
    assert processor.counts == {"exported": MOST_WAITING, "dropped": 103}
    assert [one.getMessage() for one in caplog.records] == [
        "spans cannot be sent to http://collector/v1/traces, so they are dropped"
    ]
    processor.shutdown()


def traces_to(url: str) -> ProcessTraces:
    return ProcessTraces(Settings(otel_endpoint=url))


def test_a_collector_that_is_silent_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    exporter = Held()
    monkeypatch.setattr(tracing, "OTLPSpanExporter", lambda url: exporter)
    traces = traces_to("http://collector")
    with traces.span("recover"):
        pass
    began_s = time.monotonic()
    traces.close()
    assert time.monotonic() - began_s < tracing.FLUSH_S + 20  # it waits for 60 s
    exporter.may.set()


def test_the_end_sends_what_is_left() -> None:
    with collecting() as collector:
        traces = traces_to(f"{collector.url}/")
        with traces.span("publish", "t", [SAMPLED], "SERVER"):
            pass
        traces.close()
    (span,) = collector.spans
    assert (span.name, span.trace_id.hex()) == ("publish t", TRACE)
    assert traces.counts == {"exported": 1, "dropped": 0}


def test_log_lines_within_a_span_have_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    with collecting() as collector:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        logging.getLogger().addHandler(handler)
        try:
            traces = traces_to(collector.url)
            with traces.span("publish", "t", [SAMPLED], "SERVER") as own:
                logging.getLogger("seaweedq.test").warning("within")
            logging.getLogger("seaweedq.test").warning("outside")
        finally:
            logging.getLogger().removeHandler(handler)
            traces.close()
    within, outside = map(json.loads, capsys.readouterr().err.splitlines())
    assert own
    assert [within["trace_id"], within["span_id"]] == own.split("-")[1:3]
    assert outside.keys() == {"time", "level", "logger", "message"}


@pytest.mark.process
def test_without_the_setting_nothing_of_the_extra_is_imported() -> None:
    code = (
        "import sys, seaweedq.cli.main, seaweedq.client.sync.client, seaweedq.client.aio.client\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "import seaweedq.cli.server.broker_process as process\n"
        "from seaweedq.settings import Settings\n"
        "assert process.traces_of(Settings()) is None\n"  # FastAPI imports the API
        "print(*[name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.split() == []


@pytest.mark.process
def test_a_broker_sends_its_spans_and_stops_without_its_collector(broker_process: Callable[..., BrokerProcess]) -> None:
    def publish() -> None:
        url = f"{broker.url}/v1/topics/t/messages"
        answered = httpx.post(url, json={"value": 1}, headers={"traceparent": SAMPLED}, timeout=30, trust_env=False)
        assert answered.status_code == 200

    def exported() -> float:
        counted = httpx.get(f"{broker.url}/metrics", timeout=30, trust_env=False).text
        return float(re.findall(r'^seaweedq_spans_total{outcome="exported"} (.*)$', counted, re.MULTILINE)[0])

    with collecting() as collector:
        broker = broker_process("--otel-endpoint", collector.url, env={"OTEL_BSP_SCHEDULE_DELAY": "50"})
        publish()
        broker.kill()
        broker.start()  # the journal is recovered
        publish()
        end = time.monotonic() + 20
        while not {"recover", "commit", "publish t"} <= {*collector.names}:
            assert time.monotonic() < end, collector.names
            time.sleep(0.02)
        while exported() < 3:  # a batch is counted behind its answer, and some names may be the first process's
            assert time.monotonic() < end, exported()
            time.sleep(0.02)
    publish()
    broker.terminate()
