"""The stream of a topic: every message once and in the order of its key, from anywhere, over splits and merges, at any
broker; and nothing is made for a client that does not take it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.api.streams import session
from seaweedq.api.streams.session import CHUNK_BYTES, Chunks
from seaweedq.broker.broker import Broker
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import (
    Row,
    at,
    beside,
    change_all,
    check_all_once_in_order,
    make,
    publishing,
    replace,
)
from tests.support.brokers.serving import served
from tests.support.http.listening import Listener, Parsed, listening
from tests.support.http.serving_protocol import Shifted

TOPIC = "/v1/topics/t"
STREAM = f"{TOPIC}/stream"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Broker]:
    async with running(tmp_path) as found:
        yield found


async def test_what_comes_is_sent_at_once_and_in_order(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    await publish(host, topic, "0")
    async with listening(app, STREAM) as one, listening(app, f"{STREAM}?start=earliest") as all_:
        assert one.status == 200
        assert one.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert one.headers["cache-control"] == "no-store"
        assert one.parsed.retry_ms == 1000
        await publish(host, topic, "1", '{"a": 2}')
        await one.until(2)
        await all_.until(3)
        assert one.values == [1, {"a": 2}]
        assert all_.values == [0, 1, {"a": 2}]
        assert set(one.messages[0]) == {"id", "key", "value", "headers", "timestamp", "segment", "offset"}
        assert one.parsed.last_id == all_.parsed.last_id == f"{topic.record.incarnation}:0-3"
    assert len(inside.watches(host)) == 0


async def test_line_breaks_of_json_do_not_end_an_event(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    texts = ["[1,\n2]", "[1,\r2]", "[1,\r\n\r\n2]", '{"a"\n:\n"b\\nc"}', "3"]
    async with listening(app, STREAM) as one:
        await publish(host, topic, *texts)
        await one.until(5)
        assert one.values == [json.loads(text) for text in texts]


async def test_a_client_goes_on_where_it_was(host: Broker) -> None:
    topic, app = await make_topic(host, segments=3), Application(host)
    async with listening(app, STREAM) as one:
        begun = one.parsed.last_id
        await publish(host, topic, *map(str, range(20)))
        await one.until(20)
        middle = one.parsed.events[9].last_id
    await publish(host, topic, *map(str, range(20, 30)))
    async with listening(app, f"{STREAM}?start=earliest", {"Last-Event-ID": begun}) as again:
        await again.until(30)
        assert sorted(again.values) == list(range(30))
    async with listening(app, STREAM, {"Last-Event-ID": middle}) as later:
        await later.until(20)
        assert set(later.values) >= set(range(20, 30))
        last = later.parsed.last_id
    async with listening(app, f"{STREAM}?start={last}") as at_end:
        await publish(host, topic, '"new"')
        await at_end.until(1)
        assert at_end.values == ["new"]


async def test_from_a_time_on(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    await publish(host, topic, "0")
    async with listening(app, f"{STREAM}?start=earliest") as one:
        await one.until(1)
        moment = one.messages[0]["timestamp"]
    for start, count in ((moment, 1), ("1970-01-01T00:00:00Z", 1), ("2001-01-01T00:00:00Z", 0), ("5m", 0), ("-5m", 0)):
        async with listening(app, f"{STREAM}?start={start}") as found:
            assert found.parsed.first_id.endswith(":0-0" if count else ":0-1")
            await found.until(count)


def problem_of(listener: Listener) -> tuple[int, str]:
    assert listener.headers["content-type"] == "application/problem+json"
    found = json.loads(listener.content)
    return listener.status, found["type"].removeprefix("/problems/")


REFUSED: list[tuple[str, dict[str, str], int, str]] = [
    ("?start=yesterday", {}, 422, "invalid-request"),
    ("?start=2026-01-31T00:00:00", {}, 422, "invalid-request"),
    ("?start=1700000000", {}, 422, "invalid-request"),
    ("?start=0-1,0-2", {}, 422, "invalid-request"),
    ("?start=0-0", {}, 400, "invalid-positions"),
    ("?start=0-0,1-0,7-0", {}, 400, "invalid-positions"),
    ("?start=7:0-0,1-0", {}, 400, "invalid-positions"),
    ("?start=0-5,1-0", {}, 416, "offset-out-of-range"),
    ("", {"Last-Event-ID": "nonsense"}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": "0-" + "1" * 60_000}, 400, "invalid-positions"),
    ("", {"Last-Event-ID": "٠-١"}, 400, "invalid-positions"),
    ("", {"Accept": "application/json"}, 406, "not-acceptable"),
    ("", {"Origin": "http://elsewhere.test"}, 403, "foreign-origin"),
]


async def test_what_cannot_be_is_refused(host: Broker) -> None:
    await make_topic(host, segments=2)
    app = Application(host)
    for asked, headers, status, slug in REFUSED:
        async with listening(app, f"{STREAM}{asked}", headers) as one:
            assert (*problem_of(one), asked, headers) == (status, slug, asked, headers)


async def test_a_topic_that_is_not_there(host: Broker) -> None:
    async with listening(Application(host), "/v1/topics/none/stream") as one:
        assert problem_of(one) == (404, "topic-not-found")


async def test_what_accepts_events(host: Broker) -> None:
    await make_topic(host)
    for accepted in ("text/event-stream", "text/html, */*;q=0.1", "TEXT/*"):
        async with listening(Application(host), STREAM, {"Accept": accepted}) as one:
            assert one.status == 200


async def test_a_sign_of_life(host: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "COMMENT_S", 0.01)
    await make_topic(host)
    async with listening(Application(host), STREAM) as one:
        await until(lambda: one.parsed.comments >= 3)
        assert not one.messages


async def test_streams_end_when_the_broker_leaves(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    async with listening(app, STREAM) as one, listening(app, STREAM, taking=False) as full:
        await publish(host, topic, "1")
        await one.until(1)
        host.leave()
        await until(lambda: one.complete)
        assert one.bye is not None
        assert one.bye["type"] == "/problems/not-ready"
        await until(lambda: full.ended and full.ended.done())
        assert full.aborted
        assert not full.messages
        async with listening(app, STREAM, {"Last-Event-ID": one.parsed.last_id}) as again:
            await until(lambda: again.complete)
            assert again.status == 200  # else EventSource would never come back
            assert again.parsed.last_id == one.parsed.last_id
    assert len(inside.watches(host)) == 0


async def test_a_stream_ends_with_its_topic(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    async with listening(app, STREAM) as one:
        await inside.deletion(host).delete(topic)
        await until(lambda: one.complete)
        assert one.bye is not None
        assert one.bye["type"] == "/problems/topic-being-deleted"


async def test_nothing_is_made_for_a_client_that_takes_nothing(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    async with listening(app, f"{STREAM}?start=earliest", taking=False) as slow:
        size = len(slow.content)
        for n in range(50):
            await publish(host, topic, json.dumps([n, "x" * 100_000]))
        assert len(slow.content) == size
        assert inside.budget(host).answers == 0
        slow.taking.set()
        await slow.until(50)
        assert [n for n, _ in slow.values] == list(range(50))


async def test_a_full_share_holds_streams_back_and_ends_none(host: Broker) -> None:
    topic, app = await make_topic(host), Application(host)
    async with listening(app, STREAM) as one:
        inside.budget(host).answers += inside.budget(host).limit_bytes
        await publish(host, topic, "1")
        await asyncio.sleep(0.1)
        assert not one.messages
        inside.budget(host).answers -= inside.budget(host).limit_bytes
        await one.until(1)


async def test_a_large_message_is_not_read_again_until_there_is_room_for_it(
    host: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, app = await make_topic(host), Application(host)
    reads, read = [], Chunks.read

    async def counted(self: Chunks, *arguments: Any) -> Any:
        reads.append(arguments)
        return await read(self, *arguments)

    monkeypatch.setattr(Chunks, "read", counted)
    async with listening(app, STREAM) as one:
        inside.budget(host).answers += inside.budget(host).limit_bytes // 4 - 2 * CHUNK_BYTES
        await publish(host, topic, json.dumps("x" * 3 * CHUNK_BYTES))
        await until(lambda: reads)
        await asyncio.sleep(1)
        assert len(reads) == 1
        assert not one.messages
        inside.budget(host).answers -= inside.budget(host).limit_bytes // 4 - 2 * CHUNK_BYTES
        await one.until(1)
        assert len(reads) == 2


# Several brokers, and segments that are replaced.


def rows(found: list[dict[str, Any]]) -> list[Row]:
    return [(one["segment"], one["offset"], one["key"], one["value"]) for one in found]


@pytest.mark.brokers
async def test_each_message_once_and_in_order_over_splits_and_merges(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await make(together.brokers[0], 2)
        apps = [together.apps[broker.process.url] for broker in together.brokers]
        async with listening(apps[0], STREAM) as one, listening(apps[1], f"{STREAM}?start=earliest") as other:
            async with publishing(together) as published:
                await change_all(together)
            assert published.total > 50
            for listener in (one, other):
                await listener.until(published.total)
                check_all_once_in_order(rows(listener.messages), published.taken)
        async with listening(apps[1], f"{STREAM}?start=earliest") as late:
            await late.until(published.total)
            check_all_once_in_order(rows(late.messages), published.taken)


@pytest.mark.brokers
async def test_whoever_is_cut_off_anywhere_misses_nothing_over_splits_and_merges(tmp_path: Path) -> None:
    """A client that loses its connection after each few events, and goes on at another broker."""
    async with in_loop(tmp_path) as together:
        await make(together.brokers[0], 2)
        changed = asyncio.Event()
        seen: dict[tuple[int, int], Row] = {}

        async def follow() -> None:
            last, turn = "", 0
            while True:
                turn += 1
                app = together.apps[together.brokers[turn % 2].process.url]
                headers = {"Last-Event-ID": last} if last else {}
                async with listening(app, f"{STREAM}?start=earliest", headers) as one:
                    assert one.status == 200, one.content
                    await asyncio.sleep(0.03)
                    whole = Parsed()
                    cut = len(one.content) * turn // (turn + 1) if turn % 3 else len(one.content)
                    whole.feed(one.content[:cut] if cut < len(one.content) else one.content)
                found = rows([json.loads(event.data) for event in whole.events if event.kind == "message"])
                for row in found:
                    seen[row[:2]] = row
                last = whole.last_id or last
                if changed.is_set() and len(seen) >= published.total:
                    return

        async with beside(follow()):
            async with publishing(together) as published:
                await change_all(together)
            changed.set()
        check_all_once_in_order([seen[place] for place in sorted(seen)], published.taken)


@pytest.mark.brokers
async def test_positions_name_an_ended_segment_until_its_successor_begins(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one = together.brokers[0]
        topic = await make(one, 2)
        async with at(together, one) as http:
            for n in range(20):
                await http.post("/v1/topics/t/messages", json={"key": str(n), "value": n})
        (successor,) = await replace(together, [0, 1])
        ends = {n: known.end_offset for n, known in inside.catalog(one).segments(topic).items()}
        begin = f"0-{ends[0]},1-0"
        app = together.apps[one.process.url]
        async with listening(app, f"{STREAM}?start={begin}") as half:
            assert half.parsed.first_id == f"{topic.record.incarnation}:{begin}"
            await half.until(ends[1] or 0)
            assert {message["segment"] for message in half.messages} == {1}
        async with listening(app, f"{STREAM}?start=0-{ends[0]},1-{ends[1]}") as over:
            assert over.parsed.first_id.endswith(f":{successor}-0")
        async with listening(app, f"{STREAM}?start=0-{ends[0]},1-{(ends[1] or 0) + 1}") as beyond:
            assert problem_of(beyond) == (416, "offset-out-of-range")


# Over a real port.


@pytest.mark.long
async def test_a_client_that_reads_nothing_costs_a_buffer_and_is_ended(host: Broker) -> None:
    topic = await make_topic(host)
    async with served(host) as here:
        clock, unread = Shifted(), here.server.config.app.unread  # type: ignore[union-attr]
        privates.use_clock(unread, clock)
        reader, writer = await asyncio.open_connection(*here.url.removeprefix("http://").split(":"), limit=4096)
        writer.write(f"GET {STREAM} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        assert b" 200 " in await reader.readline()
        await until(lambda: len(inside.watches(host)) == 1)
        for n in range(200):
            await publish(host, topic, json.dumps([n, "x" * 100_000]))
        await until(lambda: inside.budget(host).answers)
        assert inside.budget(host).answers < 2 * CHUNK_BYTES
        clock.more_s += host.process.settings.answer_timeout_s
        unread.tick()
        await until(lambda: not inside.budget(host).answers and not len(inside.watches(host)))
        writer.close()


async def test_streams_leave_connections_to_others(tmp_path: Path) -> None:
    """40 idle streams of a broker with max_connections 40 were all that it had: every publish was 503."""
    async with running(tmp_path, max_connections=8) as broker, served(broker) as serving:
        await make_topic(broker)
        paths = (STREAM, f"{STREAM}?start=earliest", f"{TOPIC}/segments/0/messages?wait_s=30")
        streams = [await _begun(serving.url, path) for path in (*paths, *paths)]
        for path in (STREAM, f"{TOPIC}/segments/0/messages?wait_s=30"):
            _, writer, start = await _begun(serving.url, path, "503 ")
            assert b"retry-after" in start
            writer.close()
        async with httpx.AsyncClient(base_url=serving.url, timeout=30, trust_env=False) as http:
            assert (await http.get(f"{TOPIC}/segments/0/messages")).status_code == 200
            assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 200
            assert 'seaweedq_refusals_total{reason="staying"} 2.0' in (await http.get("/metrics")).text
        for _, writer, _ in streams:
            writer.close()


async def _begun(url: str, path: str, status: str = "") -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    """A request, and the head of its answer if a status is to come, or if it is a stream."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    start = b""
    if status or path.startswith(STREAM):
        async with asyncio.timeout(20):
            start = await reader.readuntil(b"\r\n\r\n")
        assert f" {status or 200}".encode() in start
    else:
        await asyncio.sleep(0.05)
    return reader, writer, start
