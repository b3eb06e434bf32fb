"""A message's trace over the steps of brokers: the header is kept, and each step has its span."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import pyarrow as pa
import pytest
from opentelemetry.trace import SpanKind, StatusCode
from websockets.asyncio.client import connect

from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.broker.imports.reader_process import ReaderProcess
from seaweedq.import_worker import COMMAND as IMPORT_WORKER
from tests.support.brokers.in_process import running
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.serving import served
from tests.support.grpc_door import Calls, door
from tests.support.spans import SAMPLED, UNSAMPLED, Kept, of_context
from tests.support.tiers import later

pytestmark = pytest.mark.default
MESSAGES, SUBSCRIPTION = "/v1/topics/t/messages", "/v1/topics/t/subscriptions/s"
OWN = f"00-{'a' * 32}-{'b' * 16}-01"
ARROW = "application/vnd.apache.arrow.stream"


@dataclass
class Traced:
    """A broker that makes spans, and a client of it."""

    http: httpx.AsyncClient
    traces: Kept

    async def publish(self, traceparent: str | None = SAMPLED, **more: Any) -> httpx.Response:
        """Publishes two messages, of which one has a context of its own."""
        sent = {"traceparent": traceparent} if traceparent is not None else {}
        more = more or {"json": {"messages": [{"value": 1}, {"value": 2, "headers": {"traceparent": OWN}}]}}
        return await self.http.post(MESSAGES, headers={**sent, **more.pop("headers", {})}, **more)

    async def headers(self) -> list[dict[str, str]]:
        """The headers of all messages."""
        found = (await self.http.get("/v1/topics/t/segments/0/messages?offset=0&limit=10000")).json()
        return [one.get("headers") or {} for one in found["messages"]]


@asynccontextmanager
async def traced(folder: Path, is_on: bool = True, **more: Any) -> AsyncIterator[Traced]:
    traces = Kept()
    async with (
        running(folder, traces=traces if is_on else None, **more) as broker,
        served(broker) as server,
        httpx.AsyncClient(base_url=server.url, timeout=30, trust_env=False) as http,
    ):
        await http.put("/v1/topics/t", json={"initial_segments": 1})
        await http.put(SUBSCRIPTION, json={"start": "earliest"})
        yield Traced(http, traces)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


async def test_each_form_of_a_publish_keeps_the_header(tmp_path: Path) -> None:
    lines, arrow = {"content-type": "application/x-ndjson"}, {"content-type": ARROW}
    async with traced(tmp_path) as broker:
        for form in (
            {"json": {"value": 1}},
            {"content": b'{"value": 1}', "headers": lines},
            {"content": b'{"value": 1}\n{"value": 2}', "headers": lines},
            {"content": stream(pa.table({"value": ["1", "2"]})), "headers": arrow},
            {"content": stream(pa.table({"value": ["1"] * 5_000})), "headers": arrow},  # in a thread
        ):
            before = len(await broker.headers())
            assert (await broker.publish(SAMPLED, **form)).status_code == 200
            assert {one.get("traceparent") for one in (await broker.headers())[before:]} == {SAMPLED}, form


async def test_a_messages_own_header_wins_and_a_hostile_one_is_ignored(tmp_path: Path) -> None:
    async with traced(tmp_path) as broker:
        hostile = ["nonsense", f"{SAMPLED}, {SAMPLED}", "00-" + "0" * 52, "x" * 8_000, "é" * 55, f"ff{SAMPLED[2:]}"]
        for one in (SAMPLED, None, UNSAMPLED, *hostile):
            assert (await broker.publish(one and one.encode())).status_code == 200  # type: ignore[arg-type]
        found = await broker.headers()
        assert [one["traceparent"] for one in found[1::2]] == [OWN] * 9
        assert found[::2] == [{"traceparent": SAMPLED}, {}, {"traceparent": UNSAMPLED}, *[{}] * 6]
        assert broker.traces.names.count("publish t") == 1


async def test_each_step_of_a_message_has_a_span_of_its_trace(tmp_path: Path) -> None:
    async with traced(tmp_path) as broker:
        await broker.publish(json={"value": 1})
        await broker.http.post("/v1/topics/t/flush")
        pulled = (await broker.http.post(f"{SUBSCRIPTION}/pull", json={"wait_s": 5})).json()
        answered = await broker.http.post(
            f"{SUBSCRIPTION}/ack", json={"lease": pulled["lease"]}, headers={"traceparent": SAMPLED}
        )
        assert answered.status_code == 200
        assert sorted(broker.traces.names) == ["ack t", "commit", "deliver t", "flush t", "publish t"]
        assert {of_context(span.parent) for span in broker.traces.spans} == {SAMPLED}
        delivered = broker.traces.one("deliver t")
        assert [of_context(link.context) for link in delivered.links] == [SAMPLED]
        assert delivered.attributes
        assert delivered.attributes["messaging.destination.subscription.name"] == "s"
        assert delivered.attributes["messaging.batch.message_count"] == 1
        assert broker.traces.one("ack t").kind is SpanKind.SERVER


async def test_a_stream_delivers_within_a_span_too(tmp_path: Path) -> None:
    async with traced(tmp_path) as broker:
        await broker.publish(json={"value": 1})
        asking = {"seaweedq-client": "test"}
        async with broker.http.stream("GET", f"{SUBSCRIPTION}/stream", headers=asking) as events:
            async for line in events.aiter_lines():
                if line.startswith("data:"):
                    break
        assert broker.traces.names.count("deliver t") == 1


async def test_answers_to_messages_on_streams_have_the_spans_of_requests(tmp_path: Path) -> None:
    """Each has the context of its own message, and the stream's own one is none."""
    async with traced(tmp_path) as broker:
        await broker.publish(json={"messages": [{"value": 1}, {"value": 2}, {"value": 3}]})
        url = f"ws{broker.http.base_url}".replace("wshttp", "ws").rstrip("/")
        headers = {"seaweedq-client": "test", "traceparent": OWN}
        async with connect(f"{url}{SUBSCRIPTION}/stream?credits=10", additional_headers=headers, proxy=None) as socket:
            assert len(json.loads(await socket.recv())["messages"]) == 3
            for said in (
                {"ack": {"ids": ["0-0"]}, "traceparent": SAMPLED},
                {"extend": {"ids": ["0-1"], "ack_deadline_s": 60}, "traceparent": SAMPLED},
                {"nack": {"ids": ["0-1"], "delay_s": 60}, "traceparent": SAMPLED},
                {"ack": {"ids": ["0-2"]}, "traceparent": UNSAMPLED},
                {"ack": {"ids": ["0-2"]}, "traceparent": "x" * 8_000},
                {"credit": {"messages": 1}, "traceparent": SAMPLED},
                {"ack": {"ids": ["0-2"]}},
            ):
                await socket.send(json.dumps(said))
                assert "error" not in json.loads(await socket.recv())
            await socket.send(json.dumps({"ack": {}, "traceparent": SAMPLED}))
            assert "error" in json.loads(await socket.recv())
        answered = [s for s in broker.traces.spans if s.name in ("ack t", "nack t", "extend t", "credit t")]
        assert [s.name for s in answered] == ["ack t", "extend t", "nack t", "ack t"]
        assert [s.status.status_code for s in answered] == [*[StatusCode.UNSET] * 3, StatusCode.ERROR]
        for span in answered:
            assert (of_context(span.parent), span.kind) == (SAMPLED, SpanKind.SERVER)
            assert span.attributes
            assert span.attributes["messaging.destination.subscription.name"] == "s"


async def test_acks_on_streams_of_grpc_have_spans_too(tmp_path: Path) -> None:
    traces = Kept()
    async with door(tmp_path, traces=traces) as opened:
        await Calls(opened.calls.channel, [("traceparent", SAMPLED)]).Publish(
            topic="t", messages=[pb.NewMessage(value=b"1")]
        )
        await opened.calls.CreateSubscription(topic="t", subscription="s", start=pb.Place(end="earliest"))
        stream = opened.calls.Subscribe()
        await stream.write(pb.SubscribeRequest(start=pb.SubscribeStart(topic="t", subscription="s")))
        assert len((await stream.read()).delivery.messages) == 1
        await stream.write(pb.SubscribeRequest(ack=pb.Ack(ids=["0-0"]), traceparent=OWN))
        assert (await stream.read()).acked.acked == 1
        stream.cancel()
        assert of_context(traces.one("ack t").parent) == OWN
        assert [of_context(link.context) for link in traces.one("deliver t").links] == [SAMPLED]


async def test_streams_of_a_topic_share_the_span_of_a_delivery(tmp_path: Path) -> None:
    async with traced(tmp_path) as broker:
        await broker.publish(json={"value": 1})
        for _ in range(2):
            asking = {"seaweedq-client": "test"}
            async with broker.http.stream("GET", "/v1/topics/t/stream?start=earliest", headers=asking) as events:
                async for line in events.aiter_lines():
                    if line.startswith("data:"):
                        break
        delivered = broker.traces.one("deliver t")
        assert [of_context(link.context) for link in delivered.links] == [SAMPLED]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["import", later("write")])
async def test_rows_of_files_have_the_context_of_their_request(tmp_path: Path, kind: str) -> None:
    lines = b'{"value": 1}\n{"value": 2, "headers": {"traceparent": "%b"}}\n' % OWN.encode()
    async with traced(tmp_path, import_reader=partial(ReaderProcess.start, IMPORT_WORKER)) as broker:
        uploads = f"/v1/topics/t/uploads{'?write=w/1' if kind == 'write' else ''}"
        made = (await broker.http.post(uploads, json={"size": len(lines)})).json()
        stored = await broker.http.put(httpx.URL(made["url"]).raw_path.decode(), content=lines)
        assert stored.status_code == 201
        sent = {"traceparent": SAMPLED}
        if kind == "import":
            asked = {"upload_id": made["upload_id"], "format": "ndjson"}
            answer = await broker.http.post("/v1/topics/t/imports", json=asked, headers=sent)
        else:
            asked = {"uploads": [made["upload_id"]], "format": "ndjson"}
            answer = await broker.http.put("/v1/topics/t/writes/w/1", json=asked, headers=sent)
        assert answer.status_code == 200, answer.text
        assert await broker.headers() == [{"traceparent": SAMPLED}, {"traceparent": OWN}]
        async with asyncio.timeout(20):
            while f"{kind} t" not in broker.traces.names:
                await asyncio.sleep(0.02)
        span = broker.traces.one(f"{kind} t")
        assert of_context(span.parent) == SAMPLED
        assert span.attributes
        assert span.attributes["messaging.operation.type"] == "send"
        assert "commit" in broker.traces.names


async def test_without_a_sampled_client_there_is_no_span(tmp_path: Path) -> None:
    async with traced(tmp_path) as broker:
        for one in (None, UNSAMPLED):
            await broker.publish(one, json={"value": 1})
        await broker.http.post("/v1/topics/t/flush")
        await broker.http.post(f"{SUBSCRIPTION}/pull", json={"wait_s": 5})
        assert not broker.traces.names


async def test_a_split_is_a_trace_of_its_own(tmp_path: Path) -> None:
    async with traced(tmp_path) as broker:
        assert (await broker.http.post("/v1/topics/t/segments/0/split")).status_code in (200, 202)
        async with asyncio.timeout(20):
            while "split t" not in broker.traces.names:
                await asyncio.sleep(0.02)
        assert broker.traces.one("split t").parent is None


async def test_a_broker_without_traces_keeps_no_header(tmp_path: Path) -> None:
    async with traced(tmp_path, is_on=False) as broker:
        await broker.publish()
        assert await broker.headers() == [{}, {"traceparent": OWN}]


async def test_a_broker_without_traces_calls_nothing_of_theirs(tmp_path: Path) -> None:
    called: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and Path(frame.f_code.co_filename).name in ("traces.py", "trace_headers.py", "tracing.py"):
            called.add(frame.f_code.co_qualname)

    async with traced(tmp_path, is_on=False) as broker:
        threading.setprofile(note)  # of threads that begin from now on
        sys.setprofile(note)
        try:
            await broker.publish()
            await broker.publish(content=stream(pa.table({"value": ["1"] * 5_000})), headers={"content-type": ARROW})
            await broker.http.post("/v1/topics/t/flush")
            pulled = (await broker.http.post(f"{SUBSCRIPTION}/pull", json={"wait_s": 5})).json()
            sent = {"json": {"lease": pulled["lease"]}, "headers": {"traceparent": SAMPLED}}
            assert (await broker.http.post(f"{SUBSCRIPTION}/ack", **sent)).status_code == 200
            assert len(await broker.headers()) == 5_002
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    assert not called


async def test_calls_of_grpc_take_it_from_their_metadata(tmp_path: Path) -> None:
    traces = Kept()
    async with door(tmp_path, traces=traces) as opened:
        calls = Calls(opened.calls.channel, [("traceparent", SAMPLED)])
        await calls.Publish(topic="t", messages=[pb.NewMessage(value=b"1")])
        (message,) = (await calls.Fetch(topic="t")).messages
        assert dict(message.headers) == {"traceparent": SAMPLED}
        assert sorted(traces.names) == ["commit", "deliver t", "fetch t", "publish t"]
        fetched, delivered = traces.one("fetch t"), traces.one("deliver t")
        assert fetched.kind is SpanKind.SERVER
        assert fetched.attributes
        assert fetched.attributes["messaging.operation.type"] == "receive"
        assert fetched.attributes["messaging.destination.partition.id"] == "0"
        assert of_context(delivered.parent) == of_context(fetched.context)
        assert [of_context(link.context) for link in delivered.links] == [SAMPLED]


@pytest.mark.brokers
async def test_rows_for_another_broker_have_a_span_of_their_way(tmp_path: Path) -> None:
    traces = Kept()
    async with in_loop(tmp_path, publish_timeout_s=60, traces=traces) as together:
        url = {broker.process.url: broker for broker in together.brokers}
        first, second = (
            httpx.AsyncClient(transport=httpx.ASGITransport(together.apps[one]), base_url=one) for one in url
        )
        assert (await first.put("/v1/topics/t", json={"initial_segments": 1})).status_code == 201
        for http in (first, second):
            answered = await http.post(MESSAGES, json={"value": 1}, headers={"traceparent": SAMPLED})
            assert answered.status_code == 200
        assert sorted(traces.names) == ["commit", "commit", "forward t", "publish t", "publish t"]
        forwarded = traces.one("forward t")
        assert forwarded.kind is SpanKind.CLIENT
        assert of_context(forwarded.parent) in [of_context(s.context) for s in traces.spans if s.name == "publish t"]
        await asyncio.gather(first.aclose(), second.aclose())
