"""Clients of a program that has configured OpenTelemetry: sync and async ones, over a real broker."""

import json
import subprocess
import sys

import pytest

from tests.support.processes.broker_process import BrokerProcess

PROGRAM = '''
import asyncio, json, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from seaweedq import AsyncClient, Client

url, exporter, provider = sys.argv[1], InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
tracer = provider.get_tracer("program")


def handle(message):
    """Makes a span of its own. The second message is refused once."""
    tracer.start_span(f"handle {message.headers['traceparent'][3:35]}").end()
    if message.value == 2 and message.attempt == 1:
        message.nack()


async def handle_async(message):
    handle(message)


def shown():
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    exporter.clear()
    found = ((s, names.get(s.parent and s.parent.span_id)) for s in spans)
    return [(s.name, s.kind.name, f"{s.context.trace_id:032x}", parent) for s, parent in found]


def sync():
    with Client(url) as client:
        with tracer.start_as_current_span("outer"), client.producer("t") as producer:
            producer.send(1)
            producer.send({"large": "x" * 2_000_000})
        own = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
        client.publish("t", [{"value": 2}, {"value": 3, "headers": own}])
        client.work("t", "s", handle, start="earliest", idle_timeout_s=0.5)


async def run_async():
    async with AsyncClient(url) as client:
        async with client.producer("u") as producer:
            with tracer.start_as_current_span("outer"):
                await producer.send(1)
        await client.work("u", "s", handle_async, start="earliest", idle_timeout_s=0.5)


sync()
print(json.dumps(shown()))
asyncio.run(run_async())
print(json.dumps(shown()))
'''


@pytest.mark.process
def test_clients_make_and_continue_the_traces_of_their_programs(real_broker: BrokerProcess) -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, real_broker.url], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    sync, of_async = ([tuple(one) for one in json.loads(line)] for line in ran.stdout.splitlines())
    (outer,) = (trace for name, _, trace, _ in sync if name == "outer")
    (published,) = (trace for name, kind, trace, _ in sync if (name, kind) == ("send t", "PRODUCER"))
    own = "a" * 32
    assert [one for one in sync if one[0] == "create t"] == [("create t", "PRODUCER", outer, "outer")] * 2
    assert {one for one in sync if one[:2] == ("send t", "CLIENT")} == {("send t", "CLIENT", outer, "create t")}
    handled = sorted((trace, parent) for name, kind, trace, parent in sync if name == "process t")
    wanted = [(outer, "create t")] * 2 + [(published, "send t")] * 2 + [(own, None)]
    assert handled == sorted(wanted, key=lambda one: one[0])
    assert {one for one in sync if one[0].startswith("handle")} == {
        (f"handle {one}", "INTERNAL", one, "process t") for one in (outer, published, own)
    }
    assert ("nack t", "CLIENT", published, "process t") in sync
    assert ("ack t", "CLIENT", outer, "process t") in sync
    assert {(name, parent) for name, _, _, parent in of_async} >= {
        ("create u", "outer"),
        ("send u", "create u"),
        ("process u", "create u"),
        ("ack u", "process u"),
    }
