"""The gRPC port among strangers: tokens, limits, sizes, halves of messages, pings, calls of an address; and its end."""

import asyncio
import json
import resource
import socket
import ssl
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import quote

import grpc
import grpc.aio
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from hpack import Encoder

from seaweedq.access.tokens import draw
from seaweedq.api.connections.connections import Connections
from seaweedq.api.grpc import queue_pb2 as pb
from seaweedq.api.grpc import relay, server
from seaweedq.api.grpc.bounds import Calls as CallCounts
from seaweedq.api.grpc.relay import WINDOW_BYTES, Arriving, Client, Frames, Inner
from seaweedq.api.grpc.sending import Sending
from seaweedq.api.problems import Refusals
from seaweedq.cli.server import http_server
from seaweedq.cli.server.http_server import grpc_port_of
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.errors import InvalidRequest, Overloaded, Unavailable
from tests.support.grpc_door import Calls, Door, Flood, call_head, door, frame, half_call, ping, refused, until_ended
from tests.support.http.certificates import Authority
from tests.support.processes.broker_process import free_port

pytestmark = pytest.mark.default
PUBLISH = "/seaweedq.v1.QueueService/Publish"
ONE: dict[str, Any] = {"topic": "t", "messages": [pb.NewMessage(value=b"1")]}


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Door]:
    async with door(tmp_path, max_request_bytes=65_536, max_message_bytes=4096) as found:
        yield found


async def test_tokens_count_as_they_do_over_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    (tmp_path / "token").write_text(admin := draw(SystemIds()))
    async with door(tmp_path / "data", auth="required", admin_token_file=str(tmp_path / "token")) as opened:
        for calls in (opened.calls, opened.bearing(draw(SystemIds())), opened.bearing("else")):
            code, _, details = await refused(calls.Publish(**ONE))
            assert (code, details["ErrorInfo"].reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
        stream = opened.calls.channel.stream_unary(PUBLISH)()  # no message is awaited from a stranger
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await stream
        assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await opened.bearing(admin).Publish(**ONE)
        async with httpx.AsyncClient(
            base_url=opened.served.url, headers={"authorization": f"Bearer {admin}"}, timeout=30
        ) as http:
            grants = [{"actions": ["publish"], "topics": ["t"]}]
            limits = {"requests": 0.1}
            answer = await http.put("/v1/principals/app", json={"grants": grants, "limits": limits})
            assert answer.status_code == 201, answer.text
            token = (await http.post("/v1/tokens", json={"principal": "app"})).json()["token"]
        app = opened.bearing(token)
        code, text, details = await refused(app.Publish(topic="u", messages=ONE["messages"]))
        assert (code, details["ErrorInfo"].metadata["action"]) == ("PERMISSION_DENIED", "publish")
        assert "topics/u" not in text
        await opened.bearing(admin).CreateTopic(topic="other")
        no_json = [pb.NewMessage(value=b"no JSON")]  # of which the topic's format would speak
        assert (await refused(app.Publish(topic="other", messages=no_json)))[0] == "PERMISSION_DENIED"
        assert (await refused(app.Fetch(topic="t")))[0] == "PERMISSION_DENIED"
        limited = None
        for _ in range(5):
            with suppress(AssertionError):
                limited = await refused(app.Publish(**ONE))
                break
        assert limited
        assert limited[0] == "RESOURCE_EXHAUSTED"
        assert limited[2]["RetryInfo"].retry_delay.seconds >= 1
        denied = opened.broker.audit.counts["denial"]
        assert denied >= 5
        assert '"path":"/Publish"' in next(text for text in caplog.messages if '"audit":"denial"' in text)


async def test_sizes_are_bounded(opened: Door) -> None:
    calls = opened.calls
    big = Calls(calls.channel, [("x", "y" * 20_000)])
    assert (await refused(big.Publish(**ONE)))[0] == "RESOURCE_EXHAUSTED"
    code, text, _ = await refused(calls.Publish(topic="t", messages=[pb.NewMessage(value=b"1" * 70_000)]))
    assert code == "RESOURCE_EXHAUSTED"
    assert "65536" in text
    squeezed = calls.channel.unary_unary(PUBLISH)(b"\0" * 10_000_000, compression=grpc.Compression.Gzip)
    code, _, _ = await refused(squeezed)
    assert code == "UNIMPLEMENTED"
    code, text, _ = await refused(calls.channel.unary_unary(PUBLISH)(b"\xff\xff"))
    assert (code, text) == ("INVALID_ARGUMENT", "the message is not a seaweedq.v1.PublishRequest")
    await calls.Publish(**ONE)


async def test_many_empty_messages_take_no_memory(tmp_path: Path) -> None:
    largest = 16 * 2**20
    async with door(tmp_path, max_request_bytes=largest, memory_budget_bytes=4 * largest) as opened:
        empty = b"\x0a\x01t" + b"\x12\x00" * (largest // 2 - 100)
        began_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        code, text, _ = await refused(opened.calls.channel.unary_unary(PUBLISH)(empty))
        assert (code, "bytes of memory, more than" in text) == ("INVALID_ARGUMENT", True)
        fewer = empty[: 2 * 300_000 + 3]
        code, text, _ = await refused(opened.calls.channel.unary_unary(PUBLISH)(fewer))
        assert (code, text.startswith("at least 1")) == ("INVALID_ARGUMENT", True), text
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kb < 200 * 1024
        assert (opened.broker.budget.held, opened.broker.budget.decoding) == (0, 0)
        await opened.calls.Publish(**ONE)


async def test_an_answer_that_nobody_reads_counts_until_it_ends(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=0.5) as opened:
        value = json.dumps("x" * 900_000).encode()
        for _ in range(4):
            await opened.calls.Publish(topic="t", messages=[pb.NewMessage(value=value)])
        request = pb.FetchRequest(topic="t").SerializeToString()
        with half_call(opened.target, "/seaweedq.v1.QueueService/Fetch", request):
            async with asyncio.timeout(30):
                while not opened.broker.budget.answers:
                    await asyncio.sleep(0.01)
                assert opened.broker.budget.answers > 3_600_000
                while "unread_answer" not in await refusals_of(opened):
                    await asyncio.sleep(0.01)
                while opened.broker.budget.answers:
                    await asyncio.sleep(0.01)
        found = await opened.calls.Fetch(topic="t", limit=1)
        assert found.messages[0].value == value


async def test_a_client_that_goes_amid_its_answer_is_no_defect(
    opened: Door, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened.calls.CreateTopic(topic="t")
    write, is_gone = Sending.write, asyncio.Event()

    async def late(sending: Sending, content: bytes) -> None:
        task = asyncio.current_task()
        assert task
        call.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(10)
        task.uncancel()
        is_gone.set()
        await write(sending, content)

    monkeypatch.setattr(Sending, "write", late)
    call = opened.calls.PublishStream()
    await call.write(pb.PublishStreamRequest(**ONE))
    counted = 'seaweedq_grpc_calls_total{code="CANCELLED",method="PublishStream"} 1'
    async with asyncio.timeout(15), httpx.AsyncClient(base_url=opened.served.url) as http:
        await is_gone.wait()
        while counted not in (await http.get("/metrics")).text:
            await asyncio.sleep(0.01)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_client_that_goes_before_the_answer_is_no_defect(
    opened: Door, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await opened.calls.CreateTopic(topic="t")
    last = Sending.last

    def late(sending: Sending, content: bytes) -> bytes:
        call.cancel()
        return last(sending, content)

    monkeypatch.setattr(Sending, "last", late)
    for _ in range(20):
        call = opened.calls.GetTopic(topic="t")
        with suppress(asyncio.CancelledError):
            await call
    async with asyncio.timeout(5):
        while any(client.calls for client in opened.served.server.grpc.relay.clients.values()):
            await asyncio.sleep(0.01)
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_a_short_answer_that_nobody_takes_ends_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path, answer_timeout_s=0.3) as opened:
        await opened.calls.CreateTopic(topic="t")
        request = pb.GetTopicRequest(topic="t").SerializeToString()
        with half_call(opened.target, "/seaweedq.v1.AdminService/GetTopic", request, window=0) as wire:
            clients, streams = opened.served.server.grpc.relay.clients, count(3, 2)
            async with asyncio.timeout(10):
                while "unread_answer" not in await refusals_of(opened):
                    with suppress(OSError):  # the heads of other answers, which have no window, keep nothing alive
                        wire.sendall(frame(1, 5, next(streams), call_head(opened.target, "/seaweedq.v1.No/Call")))
                    await asyncio.sleep(0.01)
                while any(client.calls for client in clients.values()):
                    await asyncio.sleep(0.01)
            await until_ended(wire)
        assert (await opened.calls.GetTopic(topic="t")).topic.name == "t"
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


async def test_short_messages_of_streams_that_nobody_takes_count(tmp_path: Path) -> None:
    async with door(tmp_path, answer_timeout_s=0.5) as opened:
        await opened.calls.Publish(topic="t", messages=[pb.NewMessage(value=json.dumps("x" * 9000).encode())])
        request = pb.ReadRequest(topic="t", end="earliest").SerializeToString()
        with half_call(opened.target, "/seaweedq.v1.QueueService/Read", request, window=100):
            async with asyncio.timeout(15):
                while opened.broker.budget.answers < 9000:
                    await asyncio.sleep(0.01)
                while "unread_answer" not in await refusals_of(opened):
                    await asyncio.sleep(0.01)
            assert opened.broker.budget.answers > 9000, "gRPC has it yet"
        async with asyncio.timeout(15):
            while opened.broker.budget.answers:
                await asyncio.sleep(0.01)


async def test_heads_that_grpc_ignores_take_no_memory(opened: Door) -> None:
    with half_call(opened.target, PUBLISH, b"0123456789", 5, stream=2001) as wire:
        wire.sendall(b"".join(frame(1, 5, number, b"\x82") for number in range(1, 2001, 2)) + ping())
        wire.settimeout(10)
        seen = b""
        while frame(6, 1, 0, bytes(8)) not in seen:
            seen += (part := await asyncio.to_thread(wire.recv, 65_536))
            assert part
        (client,) = (one for one in opened.served.server.grpc.relay.clients.values() if one.streams)
        assert list(client.streams) == [2001]


async def test_streams_of_even_numbers_end_the_connection(opened: Door) -> None:
    """gRPC ignores them. The relay would have kept each, and none of a lower number that followed."""
    with half_call(opened.target, PUBLISH, b"0123456789", 5) as wire:
        wire.sendall(frame(1, 5, 2**31 - 2, call_head(opened.target, PUBLISH)))
        await until_ended(wire)
    assert "protocol" in await refusals_of(opened)
    assert not opened.served.server.grpc.relay.clients


@pytest.mark.parametrize(
    "field",
    [(":path", b"/\xff/x"), (":path", b"/\0\xff"), ("traceparent", b"\xc3\x28"), ("\xff", b"x")],
    ids=["path", "binary", "value", "name"],
)
async def test_metadata_that_is_no_text_ends_its_connection_alone(opened: Door, field: tuple[str, bytes]) -> None:
    """Such a path ends the whole port of grpcio 1.84 and later."""
    for huffman in (True, False):
        fields = {":method": "POST", ":scheme": "http", ":path": PUBLISH, ":authority": "x", field[0]: field[1]}
        head = Encoder().encode(fields.items(), huffman=huffman)
        host, port = opened.target.split(":")
        with socket.create_connection((host, int(port))) as wire:
            wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, head))
            await until_ended(wire)
    assert "protocol" in await refusals_of(opened)
    await opened.calls.Publish(**ONE)


async def test_nothing_that_follows_a_refused_piece_reaches_the_library(
    opened: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would take it for the begin of a connection, which nobody has read."""
    with half_call(opened.target, PUBLISH, b"0123456789", 5):
        while not (clients := opened.served.server.grpc.relay.clients):
            await asyncio.sleep(0.01)
        (client,) = clients.values()
        while client.inner is None:
            await asyncio.sleep(0.01)
        reached: list[bytes] = []
        monkeypatch.setattr(client, "inner", SimpleNamespace(write=reached.append, abort=client.inner.abort))
        client.data_received(frame(1, 5, 2, b"\x82"))
        client.data_received(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        assert reached == []


async def test_a_lower_number_behind_one_that_grpc_refused_ends_the_connection(opened: Door) -> None:
    """gRPC forgets the number of a stream that it refuses, and would take the lower one, which nobody counts."""
    with half_call(opened.target, PUBLISH, b"0123456789", 5, stream=2**31 - 1) as wire:
        wire.sendall(frame(1, 4, 3, call_head(opened.target, PUBLISH)))
        await until_ended(wire)
    assert "protocol" in await refusals_of(opened)


@pytest.mark.parametrize(
    "heads",
    [
        frame(1, 0, 1, b"\x82") + frame(9, 0, 1, b"") * 9,
        frame(1, 0, 1, b"\x82") + frame(9, 4, 3, b""),
        frame(9, 4, 1, b"\x82"),
        frame(1, 12, 1, b"\0\x82"),
        frame(1, 4, 1, b"\x7f\xff\xff\xff\xff\x07"),
        b"".join(frame(1 if at == 0 else 9, 0, 1, b"\x82" * 16_384) for at in range(5)),
    ],
    ids=["frames", "another stream", "no begin", "padded", "no index", "bytes"],
)
async def test_wrong_header_blocks_end_the_connection(opened: Door, heads: bytes) -> None:
    host, port = opened.target.split(":")
    with socket.create_connection((host, int(port))) as wire:
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + heads)
        await until_ended(wire)
    assert "protocol" in await refusals_of(opened)


async def test_streams_that_are_reset_again_and_again_end_the_connection(opened: Door) -> None:
    host, port = opened.target.split(":")
    head, numbers = call_head(opened.target, PUBLISH), range(1, 4001, 2)
    with socket.create_connection((host, int(port))) as wire:
        wire.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        with suppress(OSError):
            wire.sendall(b"".join(frame(1, 4, at, head) + frame(3, 0, at, bytes(4)) for at in numbers))
        await until_ended(wire)
    assert "protocol" in await refusals_of(opened)
    await opened.calls.Publish(**ONE)


async def test_a_client_that_measures_with_pings_while_it_reads_goes_on(
    opened: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of Go do: a ping for each piece that they read."""
    monkeypatch.setattr(relay, "CONTROL_BURST", 3)
    monkeypatch.setattr(relay, "CONTROL_PER_S", 0)
    await opened.calls.CreateTopic(topic="t")
    request = pb.ReadRequest(topic="t", end="earliest").SerializeToString()
    with half_call(opened.target, "/seaweedq.v1.QueueService/Read", request) as wire:
        wire.settimeout(30)
        for number in range(12):
            await opened.calls.Publish(
                topic="t", messages=[pb.NewMessage(value=json.dumps(f"message {number}").encode())]
            )
            seen = b""
            while f"message {number}".encode() not in seen:
                seen += (part := await asyncio.to_thread(wire.recv, 65_536))
                assert part
            wire.sendall(ping())
    assert "protocol" not in await refusals_of(opened)


async def test_a_burst_of_calls_loses_none(opened: Door) -> None:
    """gRPC forgets a stream later than its client, and would refuse the one that follows at its bound."""
    await opened.calls.CreateTopic(topic="t")
    channel = grpc.aio.insecure_channel(opened.target, options=[("grpc.use_local_subchannel_pool", 1)])
    async with channel:
        calls = [Calls(channel).GetTopic(topic="t") for _ in range(600)]
        for call in calls[1::3]:
            call.cancel()
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert all(
        isinstance(found[at], asyncio.CancelledError if at % 3 == 1 else pb.GetTopicResponse) for at in range(600)
    )


async def test_calls_whose_message_does_not_come_hold_memory_and_no_place(tmp_path: Path) -> None:
    async with door(tmp_path, max_connections=10, memory_budget_bytes=64 * 2**20) as opened:
        check = "/grpc.health.v1.Health/Check"
        held = [half_call(opened.target, check, b"0123456789", 0) for _ in range(10)]
        async with asyncio.timeout(15):
            while opened.broker.budget.incomplete < 9 * 128 * 1024:
                await asyncio.sleep(0.01)
        async with httpx.AsyncClient(base_url=opened.served.url, timeout=30) as http:
            for _ in range(12):
                assert (await http.get("/v1/topics")).status_code == 200
        assert "quiet_connection" in await refusals_of(opened)
        for wire in held:
            wire.close()


def test_a_piece_of_a_message_counts_the_blocks_that_grpc_keeps_for_it() -> None:
    counted: list[int] = []
    bodies = cast(Any, SimpleNamespace(add=lambda body, size: counted.append(size), release=lambda body: None))
    arriving = Arriving(bodies, lambda: None)
    arriving.take(memoryview(b"\0" + (1).to_bytes(4) + b"x"), 0)  # its first message has come
    arriving.take(memoryview(b"\0" + (10**6).to_bytes(4)), 1000)
    places = (1005, 1100, 8192, 8300, 80_000, 163_839)
    for place in places:
        arriving.take(memoryview(bytes(40)), place)
        arriving.hold()
    assert counted == [8192, 8192, 8192, 16_384]
    arriving.take(memoryview(bytes(16_384)), 163_840 + 8192)
    arriving.hold()
    assert counted[-1] == 16_384


async def test_streams_behind_a_last_goaway_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "AGE_S", 0.1)
    async with door(tmp_path) as opened, asyncio.timeout(30):
        reader, writer = await asyncio.open_connection(*opened.target.split(":"))
        head, at, last = call_head(opened.target, PUBLISH), b"", b""
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, head))
        while at[3:4] != b"\x07" or last[:4] != (1).to_bytes(4):  # GOAWAY, and its last stream
            at = await reader.readexactly(9)
            last = await reader.readexactly(int.from_bytes(at[:3]))
            if at[3:5] == b"\x06\x00":
                writer.write(frame(6, 1, 0, last))
        writer.write(b"".join(frame(1, 5, number, b"") for number in range(3, 1003, 2)))
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        assert "protocol" in await refusals_of(opened)


@pytest.mark.parametrize("name", ["with space", "per%20cent", "hash#x"])
async def test_the_folder_for_temporary_files_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with TemporaryDirectory() as short:
        (folder := Path(short) / name).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        async with door(tmp_path) as opened:
            await opened.calls.Publish(**ONE)
        (long := folder / ("x" * 90)).mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        with pytest.raises(InvalidRequest, match="set the environment variable TMPDIR to a path of at most"):
            grpc_port_of(opened.broker.process.settings, None)


async def test_a_call_that_is_cut_at_a_stop_gets_a_status(opened: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened.calls.CreateTopic(topic="t")
    cuts: list[Any] = []
    monkeypatch.setattr(CallCounts, "stay", lambda _, call: cuts.append(call.abort))
    waiting = asyncio.ensure_future(opened.calls.Fetch(topic="t", wait_s=30))
    async with asyncio.timeout(15):
        while not cuts:
            await asyncio.sleep(0.01)
        cuts[0]()
        code, text, _ = await refused(waiting)
    assert (code, "because it is stopping" in text) == ("UNAVAILABLE", True)


async def refusals_of(opened: Door) -> set[str]:
    """The reasons for which something was refused."""
    async with httpx.AsyncClient(base_url=opened.served.url, timeout=30) as http:
        lines = (await http.get("/metrics")).text.splitlines()
    counts = [line for line in lines if line.startswith("seaweedq_refusals_total{") and not line.endswith(" 0.0")]
    return {line.partition('reason="')[2].partition('"')[0] for line in counts}


async def test_a_client_that_pings_too_often_is_cut_off(opened: Door) -> None:
    with half_call(opened.target, PUBLISH, b"0123456789", 0) as wire:
        wire.setblocking(False)
        loop, seen = asyncio.get_running_loop(), b""
        async with asyncio.timeout(30):
            with suppress(OSError):
                while True:
                    await loop.sock_sendall(wire, ping())
                    seen += (part := await loop.sock_recv(wire, 65_536))
                    if not part:
                        break
        assert b"too_many_pings" in seen


async def test_connections_are_bounded_as_those_of_http(tmp_path: Path) -> None:
    async with door(tmp_path, max_connections=10) as opened:
        await opened.calls.Publish(**ONE)
        busy = [half_call(opened.target, PUBLISH, b"0123456789", 5) for _ in range(9)]
        async with asyncio.timeout(15):
            while len(opened.served.server.grpc.relay.clients) < 10:
                await asyncio.sleep(0.01)
        more = [socket.create_connection(("127.0.0.1", int(opened.target.split(":")[1]))) for _ in range(5)]
        for wire in more[:-1]:  # each makes room for the next one: it has said nothing
            wire.settimeout(30)
            with suppress(ConnectionResetError):
                assert await asyncio.to_thread(wire.recv, 100) == b""
        assert "quiet_connection" in await refusals_of(opened)
        for wire in (*busy, *more):
            wire.close()
        await opened.calls.Publish(**ONE)


async def test_messages_that_arrive_in_part_hold_a_quarter_of_the_memory(tmp_path: Path) -> None:
    largest = 16 * 2**20
    async with door(tmp_path, max_request_bytes=largest, memory_budget_bytes=4 * largest) as opened:
        await opened.calls.Publish(**ONE)
        began_kb, budget, most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, opened.broker.budget, 0
        wires = [await Flood.open(opened.target, PUBLISH, 50, largest) for _ in range(2)]
        floods = [asyncio.create_task(wire.run()) for wire in wires]  # 100 streams that would send 1.6 GB
        async with asyncio.timeout(30):
            while not all(flood.done() for flood in floods):
                most = max(most, budget.incomplete)
                await asyncio.sleep(0.01)
        assert largest // 2 < most <= largest
        assert "bodies" in await refusals_of(opened)
        assert sum(wire.sent for wire in wires) < 10 * largest
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began_kb < 150 * 1024
        await opened.calls.Publish(**ONE)
        assert budget.incomplete == 0


async def test_a_stream_that_nobody_reads_lets_in_its_window(opened: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Any, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    monkeypatch.setattr(server.Door, "read_one", never)
    flood = await Flood.open(opened.target, PUBLISH, 50, 60_000)
    running = asyncio.create_task(flood.run())
    async with asyncio.timeout(30):
        while flood.sent < 2 * WINDOW_BYTES:
            await asyncio.sleep(0.01)
    await asyncio.wait([running], timeout=0.5)
    assert flood.sent <= 50 * WINDOW_BYTES
    running.cancel()
    await asyncio.wait([running])


async def test_a_call_over_another_socket_is_refused(opened: Door) -> None:
    target = opened.served.server.grpc.relay.target
    async with grpc.aio.insecure_channel(target) as channel:
        assert (await refused(Calls(channel).Publish(**ONE)))[:2] == (
            "UNAVAILABLE",
            "the connection of this gRPC call was closed",
        )


def test_frames_are_split_wherever_their_bytes_come() -> None:
    padded = bytes([3]) + b"content" + b"pad"
    sent = bytes(24) + frame(1, 4, 1, b"head") + frame(0, 8, 1, padded) + frame(0, 1, 1, b"") + frame(6, 0, 0, bytes(8))
    for size in (1, 2, 7, 1000):
        seen: list[tuple[int, int, int, bytes | None]] = []

        def hear(kind: int, flags: int, stream: int, content: memoryview | None) -> None:
            seen.append((kind, flags, stream, None if content is None else bytes(content)))  # noqa: B023

        frames = Frames(hear, 24, frozenset({0}))
        for at in range(0, len(sent), size):
            frames.feed(sent[at : at + size])
        assert b"".join(one[3] for one in seen if one[3]) == b"content"
        ends = [one for one in seen if one[3] is None]
        assert ends == [(1, 4, 1, None), (0, 8, 1, None), (0, 1, 1, None), (6, 0, 0, None)]


async def test_bytes_that_are_no_http2_harm_nobody(opened: Door) -> None:
    host, port = opened.target.split(":")
    for content in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000, b"\x16\x03\x01\x02\x00"):
        with socket.create_connection((host, int(port))) as wire, suppress(OSError):
            wire.sendall(content)
    await opened.calls.Publish(**ONE)


async def test_health_and_reflection(opened: Door) -> None:
    health = health_pb2_grpc.HealthStub(opened.calls.channel)
    for service in ("", "seaweedq.v1.QueueService", "seaweedq.v1.AdminService"):
        found = await health.Check(health_pb2.HealthCheckRequest(service=service))
        assert found.status == health_pb2.HealthCheckResponse.SERVING
    assert (await refused(health.Check(health_pb2.HealthCheckRequest(service="x"))))[0] == "NOT_FOUND"
    watch = health.Watch(health_pb2.HealthCheckRequest())
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
    opened.broker.leave()
    assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    watch.cancel()
    reflection = reflection_pb2_grpc.ServerReflectionStub(opened.calls.channel)
    asked = reflection_pb2.ServerReflectionRequest
    requests = [asked(list_services=""), asked(file_containing_symbol="seaweedq.v1.QueueService")]
    listed, file = [one async for one in reflection.ServerReflectionInfo(iter(requests))]
    assert "seaweedq.v1.QueueService" in {one.name for one in listed.list_services_response.service}
    assert pb.DESCRIPTOR.serialized_pb in file.file_descriptor_response.file_descriptor_proto


async def test_calls_are_counted_by_method_and_code(opened: Door) -> None:
    await opened.calls.Publish(**ONE)
    await refused(opened.calls.GetTopic(topic="none"))
    async with httpx.AsyncClient(base_url=opened.served.url, timeout=30) as http:
        text = (await http.get("/metrics")).text
    assert 'seaweedq_grpc_calls_total{code="OK",method="Publish"} 1' in text.replace(".0", "")
    assert 'seaweedq_grpc_calls_total{code="NOT_FOUND",method="GetTopic"} 1' in text.replace(".0", "")
    assert 'route="/v1/topics/{topic}/messages"' in text


async def test_a_stop_ends_waits_and_the_port(tmp_path: Path) -> None:
    async with door(tmp_path) as opened:
        await opened.calls.CreateTopic(topic="t")
        waiting = asyncio.ensure_future(opened.calls.Fetch(topic="t", wait_s=30))
        await asyncio.sleep(0.2)
        opened.served.stop.ask()
        async with asyncio.timeout(30):
            assert not (await waiting).messages
            await opened.served.ended
        assert (await refused(opened.calls.GetTopic(topic="t")))[0] == "UNAVAILABLE"


async def test_a_watch_of_health_holds_no_stop_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "DRAIN_S", 60.0)  # for so long it may go on
    async with door(tmp_path, shutdown_s=60) as opened:
        watch = health_pb2_grpc.HealthStub(opened.calls.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        opened.served.stop.ask()
        async with asyncio.timeout(15):
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await watch.read() is grpc.aio.EOF
            await opened.served.ended


def test_what_grpc_sent_last_goes_out_behind_a_write_that_failed() -> None:
    here, grpc_end = socket.socketpair()
    here.setblocking(False)
    grpc_end.send(b"the status of a call")
    grpc_end.close()
    told: list[bytes] = []
    client = SimpleNamespace(answer=told.append, close=lambda: told.append(b"the end"))
    Inner(cast(Client, client), here).connection_lost(BrokenPipeError())
    assert told == [b"the status of a call", b"the end"]
    assert here.fileno() == -1


async def test_a_stop_waits_for_calls_from_its_beginning(opened: Door) -> None:
    with half_call(opened.target, PUBLISH, b"0123456789", 5):
        port = opened.served.server.grpc

        def has_calls() -> bool:
            return any(client.calls for client in port.relay.clients.values())

        async with asyncio.timeout(15):
            while not has_calls():
                await asyncio.sleep(0.01)
        port.begin_stop(0.5)
        async with asyncio.timeout(15):
            while has_calls():  # their time is over before the port is told to end
                await asyncio.sleep(0.01)
            await port.stop()


async def test_no_request_outlives_the_port(opened: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[asyncio.Task[Any]] = []

    async def ask(*_: Any) -> None:
        task = asyncio.current_task()
        assert task
        asked.append(task)
        await asyncio.Event().wait()

    monkeypatch.setattr(server.Door, "ask", ask)
    call = opened.calls.Publish(**ONE)
    async with asyncio.timeout(15):
        while not asked:
            await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.1)  # until the broker has heard of it
    assert not asked[0].done()
    assert [client.calls for client in opened.served.server.grpc.relay.clients.values()] == [1], "it counts until then"
    opened.served.stop.ask()
    async with asyncio.timeout(30):
        await opened.served.ended
    assert asked[0].cancelled()


async def test_a_port_that_never_served_is_free_again(opened: Door) -> None:
    settings = opened.broker.process.settings.model_copy(update={"grpc_port": free_port()})
    for _ in range(2):
        port = grpc_port_of(settings, None)
        assert port
        await port.stop()
    with pytest.raises(OSError, match="cannot listen on"):
        grpc_port_of(opened.broker.process.settings, None)


async def test_tls_with_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    authority, other = Authority(), Authority("another")
    files = authority.issue("127.0.0.1").write(tmp_path / "pems")
    async with door(tmp_path / "data", **files) as opened:

        async def asked(by: Authority) -> Any:
            trust = grpc.ssl_channel_credentials(by.pem)
            own = [("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.secure_channel(opened.target, trust, options=own) as channel:
                return await Calls(channel).Publish(**ONE)

        await asked(authority)
        assert (await refused(asked(other)))[0] == "UNAVAILABLE"
        assert (await refused(opened.calls.Publish(**ONE, timeout=2)))[0] in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        other.issue("127.0.0.1").write(tmp_path / "pems")
        certificate = opened.served.certificate
        assert certificate
        certificate.refresh()
        certificate.refresh()
        await asked(other)


async def test_a_certificate_of_a_client_stands_for_its_principal(tmp_path: Path) -> None:
    authority, clients = Authority("servers"), Authority("clients")
    (tmp_path / "token").write_text(admin := draw(SystemIds()))
    (ca := tmp_path / "ca.pem").write_bytes(clients.pem)
    files = authority.issue("127.0.0.1").write(tmp_path / "pems")
    access = {"auth": "required", "admin_token_file": str(tmp_path / "token"), "client_ca_file": str(ca)}
    async with door(tmp_path / "data", **files, **access) as opened:
        own, trust = clients.issue("importer"), ssl.create_default_context(cadata=authority.pem.decode())
        headers = {"authorization": f"Bearer {admin}"}
        async with httpx.AsyncClient(base_url=opened.served.url, headers=headers, verify=trust, timeout=30) as http:
            grants = [{"actions": ["publish"], "topics": ["t"]}]
            answer = await http.put("/v1/principals/importer", json={"grants": grants})
            assert answer.status_code == 201, answer.text
        shown = grpc.ssl_channel_credentials(authority.pem, own.key, own.cert)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(opened.target, shown, options=options) as channel:
            code, _, details = await refused(Calls(channel).Publish(**ONE))
            assert (code, details["ErrorInfo"].metadata.get("action")) == ("PERMISSION_DENIED", "create")
            assert (await refused(Calls(channel).Fetch(topic="t")))[0] == "PERMISSION_DENIED"
            ca.write_bytes(authority.pem)
            assert opened.served.certificate
            opened.served.certificate.refresh()
            opened.served.certificate.refresh()
            assert (await refused(Calls(channel).Publish(**ONE)))[0] == "UNAVAILABLE"
            async with asyncio.timeout(15):
                while opened.served.server.grpc.relay.clients:
                    await asyncio.sleep(0.01)


async def test_reflection_and_watches_are_not_for_strangers(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(draw(SystemIds()))
    largest, auth = 16 * 2**20, {"auth": "required", "admin_token_file": str(tmp_path / "token")}
    async with door(tmp_path / "data", max_request_bytes=largest, memory_budget_bytes=4 * largest, **auth) as opened:
        stub = reflection_pb2_grpc.ServerReflectionStub(opened.calls.channel)
        requests = [reflection_pb2.ServerReflectionRequest(list_services="")]
        assert (await refused(stub.ServerReflectionInfo(iter(requests)).read()))[0] == "UNAUTHENTICATED"
        health = health_pb2_grpc.HealthStub(opened.calls.channel)
        assert (await refused(health.Watch(health_pb2.HealthCheckRequest()).read()))[0] == "UNAUTHENTICATED"
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


def test_the_calls_of_an_address_are_bounded() -> None:
    connections = Connections()
    connections.most_per_address = 2
    refusals = Refusals(SystemClock())
    peers: dict[str, Any] = {}
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.1"), ("c", "::1"), ("d", "10.0.0.2")):
        peers[name] = SimpleNamespace(address=address, account=None, certificate=None, calls=0)
    calls = CallCounts(connections, lambda address: "" if address == "::1" else address, refusals, peers.get)
    first, second = calls.begin("a", "Publish", print), calls.begin("b", "Publish", print)
    with pytest.raises(Overloaded, match="2 calls from"):
        calls.begin("a", "Publish", print)
    others = calls.begin("c", "Publish", print), calls.begin("d", "Publish", print)
    assert [peer.calls for peer in peers.values()] == [1, 1, 1, 1]
    assert second.peer.address == "10.0.0.1"
    with pytest.raises(Unavailable):
        calls.begin("e", "Publish", print)
    for call in (first, *others):
        call.end()
    again = calls.begin("a", "Publish", print)
    for call in (second, again):
        call.end()
    assert [peer.calls for peer in peers.values()] == [0, 0, 0, 0]


def test_details_are_short_enough_for_a_header() -> None:
    from seaweedq.api.grpc.statuses import status_of_error
    from seaweedq.errors import InvalidMessages

    for one in ("x", "字", "\n"):
        errors = [{"index": at, "reason": one * 300} for at in range(1000)]
        more = {f"member{at}": one * 300 for at in range(20)}
        status = status_of_error(InvalidMessages(one * 5000, errors=errors, invalid=1000, **more))
        in_base64 = b64encode(status.SerializeToString())
        assert len(quote(status.message)) + len(in_base64) < 8000
        assert status.message
        assert len(status.details) == 2
        bad = error_details_pb2.BadRequest()
        assert status.details[1].Unpack(bad)
        assert len(bad.field_violations) >= 3
