"""The payload of a message through a broker: whole, in ranges, by any broker; and what a broker will not open."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.clock import SystemClock
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.segments.rows import Reference, Single, rows_of_singles
from seaweedq.settings import Settings
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.environments import environment
from tests.support.history.load import until
from tests.support.http.referring import digest, naming, publish, read, upload
from tests.support.processes.broker_process import BrokerProcess, free_port

CONTENT = Random(0).randbytes(3_000_000)


@pytest.fixture
def path(http: httpx.Client, topic: str) -> str:
    """Of the payload of a message."""
    made = upload(http, topic, CONTENT, content_type="video/mp4")
    publish(http, topic, {"value": 1}, naming(made))
    return f"{topic}/segments/0/messages/1/payload"


@pytest.mark.process
def test_whole(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.content) == (200, CONTENT)
    said = answer.headers
    assert (said["content-type"], said["content-length"]) == ("video/mp4", str(len(CONTENT)))
    assert (said["etag"], said["accept-ranges"]) == (f'"{digest(CONTENT)}"', "bytes")
    assert (said["x-content-type-options"], said["content-disposition"]) == ("nosniff", "attachment")
    head = http.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert {**head.headers, "date": ""} == {**said, "date": ""}


@pytest.mark.process
@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=1048570-1048580", 1048570, 1048581),  # over the end of a piece
        ("bytes=2999999-", 2999999, 3000000),
        ("bytes=-5", 2999995, 3000000),
        ("bytes=5-99999999", 5, 3000000),
    ],
)
def test_ranges(http: httpx.Client, path: str, wanted: str, start: int, end: int) -> None:
    answer = http.get(path, headers={"range": wanted})
    assert (answer.status_code, answer.content) == (206, CONTENT[start:end])
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(CONTENT)}"


@pytest.mark.process
def test_beyond_the_end(http: httpx.Client, path: str) -> None:
    answer = http.get(path, headers={"range": "bytes=3000000-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */3000000")


@pytest.mark.process
def test_what_is_not_there(http: httpx.Client, broker: BrokerProcess, topic: str, path: str) -> None:
    def answer(where: str, status: int, slug: str) -> None:
        found = http.get(where)
        assert (found.status_code, found.json()["type"]) == (status, f"/problems/{slug}"), found.text

    answer(path.replace("/1/payload", "/0/payload"), 404, "payload-not-found")  # a value
    answer(path.replace("/1/payload", "/2/payload"), 404, "payload-not-found")
    answer(path.replace("/1/payload", f"/{2**62}/payload"), 404, "payload-not-found")
    answer(path.replace("/1/payload", "/x/payload"), 422, "invalid-request")
    answer(path.replace("segments/0", "segments/7"), 404, "segment-not-found")
    answer(path.replace(topic, "/v1/topics/nowhere"), 404, "topic-not-found")
    assert http.post(path).status_code == 405
    (reference,) = (each["reference"] for each in read(http, topic) if "reference" in each)
    file = Path(reference["uri"].removeprefix("file://"))
    file.write_bytes(CONTENT[:-1])
    answer(path, 404, "payload-not-found")
    file.unlink()
    answer(path, 404, "payload-not-found")


@pytest.mark.process
def test_expired_messages_have_none(http: httpx.Client, topic: str) -> None:
    made = upload(http, topic, b"short-lived")
    publish(http, topic, naming(made, expires_in_s=0.001))
    answer = http.get(f"{topic}/segments/0/messages/0/payload")
    assert answer.json()["type"] == "/problems/payload-not-found"


class Watched(MemoryStore):
    """Knows which objects were asked for."""

    def __init__(self) -> None:
        self.touched: set[str] = set()
        super().__init__(lambda moment, name: self.touched.add(name))


def hostile(store: MemoryStore) -> list[str]:
    own = "20261121/20261121-{}-" + "0" * 32
    names = [
        f"_payloads/others/{own.format(1)}",
        "_cluster.json",
        "topics/t/segment=0/00000000-0000000000000000.parquet",
    ]
    return [
        *map(store.uri, names),
        f"{store.uri('_payloads/t/x')[:-1]}../others/{own.format(1)}",
        f"{store.uri('_payloads/t/x')[:-1]}%2e%2e/others/{own.format(1)}",
        f"http://169.254.169.254/_payloads/t/{own.format(0)}",
        "file:///etc/passwd",
        f"s3://elsewhere/_payloads/t/{own.format(0)}",
        store.uri(f"_payloads/t/{own.format(99)}"),  # of a topic of this name that is gone
    ]


def test_rows_that_name_something_else(tmp_path: Path) -> None:
    """However they came into a chain: no link, no bytes, and the store is not even asked."""

    async def run() -> None:
        store = Watched()
        settings = Settings(data_dir=tmp_path)
        broker = Broker(environment(settings, store, MemoryCoordination(SystemClock())))
        broker.lock()
        try:
            await broker.start()
            transport = httpx.ASGITransport(Application(broker))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                await look(broker, store, http)
        finally:
            await broker.stop()

    async def look(broker: Broker, store: Watched, http: httpx.AsyncClient) -> None:
        for name in ("t", "others"):
            assert (await http.put(f"/v1/topics/{name}")).status_code == 201
        uris = hostile(store)
        for uri in uris:
            if uri.startswith(store.uri("x")[:-1]) and ".." not in uri:
                await store.create(uri.removeprefix(store.uri("x")[:-1]), b"secret")
        topic = inside.topic(broker, "t")
        singles = [Single(None, None, None, 1, None, Reference(uri, 6, "text/plain", "0" * 64)) for uri in uris]
        await inside.publisher(broker).batch(topic, rows_of_singles(singles, topic.layout), None)
        store.touched.clear()
        messages: list[dict[str, Any]] = (await http.get("/v1/topics/t/segments/0/messages")).json()["messages"]
        assert [each["reference"]["uri"] for each in messages] == uris
        assert not any("url" in each["reference"] for each in messages)
        for at in range(len(uris)):
            answer = await http.get(f"/v1/topics/t/segments/0/messages/{at}/payload")
            assert (answer.status_code, answer.json()["type"]) == (404, "/problems/payload-not-found"), uris[at]
            assert b"secret" not in answer.content
        assert not {name for name in store.touched if not name.startswith("topics/t/")}

    asyncio.run(run())


@pytest.mark.long
@pytest.mark.process
def test_any_broker_answers(broker_process: Callable[..., BrokerProcess]) -> None:
    first = free_port()
    brokers = broker_process("--brokers", "2", port=first)
    urls = [f"http://127.0.0.1:{first + n}" for n in range(2)]
    with httpx.Client(trust_env=False, timeout=30) as http:
        wait_for_both(http, urls)
        path = f"{urls[0]}/v1/topics/t"
        assert http.put(path, json={"initial_segments": 4}).status_code == 201
        made = upload(http, path, CONTENT)
        ids = publish(http, f"{urls[1]}/v1/topics/t", *(naming(made, key=f"k{n}") for n in range(40)))
        segments = {each.partition("-")[0] for each in ids}
        assert len(segments) == 4
        for n in range(12):  # alone, with and without a producer, at its owner and at the other one
            producer = {"Producer_Id": f"p{n}", "Producer_Sequence": "0"} if n % 3 else {}
            (one,) = publish(http, f"{urls[n % 2]}/v1/topics/t", naming(made, key=f"k{n}"), **producer)
            segment, _, offset = one.partition("-")
            (message,) = read(http, path, int(segment), offset=offset, limit=1)
            assert (message["key"], message["reference"]["sha256"]) == (f"k{n}", digest(CONTENT))
        for url in urls:
            for segment in segments:
                answer = http.get(f"{url}/v1/topics/t/segments/{segment}/messages/0/payload")
                assert (answer.status_code, answer.content == CONTENT) == (200, True), answer.text[:300]
                (message, *_) = read(http, f"{url}/v1/topics/t", int(segment))
                assert http.get(message["reference"]["url"]).content == CONTENT
    assert "Traceback" not in brokers.log


def wait_for_both(http: httpx.Client, urls: list[str]) -> None:
    def seen(url: str) -> bool:
        try:
            return len(http.get(f"{url}/v1/cluster").json()["brokers"]) == len(urls)
        except (httpx.TransportError, KeyError):
            return False

    until(lambda: all(map(seen, urls)))
