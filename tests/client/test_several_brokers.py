"""Clients of several brokers: who is asked, who is next, what may be asked twice; and producers of three owners.

The Python client over splits, merges and rolls, in the brokers' own loop: table, fetch, subscriber, producer.
"""

import asyncio
import itertools
import json
import time
from collections import defaultdict
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.client.core.attempts import AVOID_MOST_S, AVOID_UNKNOWN_S, SILENT_S, Brokers, parse_urls
from seaweedq.client.core.effects import ARROW, NDJSON, Attempt, Reply, Request
from seaweedq.clock import SystemIds
from seaweedq.errors import ConnectionFailed, Forbidden, PartlyTaken, Unavailable
from seaweedq.storage.local import LocalStore
from tests.support import privates
from tests.support.brokers.in_process_cluster import InLoop, in_loop
from tests.support.brokers.reshaped import beside, change_all, make, opened, publishing, records, replace
from tests.support.client import kinds
from tests.support.client.fake_brokers import CELLS, URLS, FakeBrokers, key_in
from tests.support.client.fake_cluster import problem

KEYS = [key_in(cell) for cell in range(CELLS)]


@pytest.fixture(params=["lines", "rows"], autouse=True)
def kind(request, monkeypatch):
    """What the batches are: most brokers' faults are the same for both."""
    kinds.use(request.param, monkeypatch)
    return request.param


@pytest.fixture
def cluster():
    return FakeBrokers()


@pytest.fixture
def client(cluster):
    with Client(URLS, transport=httpx.MockTransport(cluster), timeout_s=2) as client:
        yield client


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        ("http://a:1", ("http://a:1",)),
        ("http://a/, http://b", ("http://a", "http://b")),
        (["https://a", "https://b,https://a"], ("https://a", "https://b")),
    ],
)
def test_urls(given, urls):
    assert parse_urls(given) == urls


@pytest.mark.parametrize("bad", ["", "a:1", "http://", "http://a,", "http://a,https://b", [], ["ftp://a"]])
def test_what_is_no_url_is_refused(bad):
    with pytest.raises(ValueError, match="url"):
        Client(bad)


def _ask(brokers, request, *answers):
    """Who was asked, and what came of it."""
    steps, asked, answer = brokers.send(request), [], None
    answers = iter(answers)
    try:
        while True:
            failed = isinstance(answer, Exception)
            attempt = steps.throw(answer) if failed else steps.send(answer)
            assert isinstance(attempt, Attempt)
            asked.append(attempt.url)
            answer = next(answers)
    except StopIteration as end:
        return asked, end.value
    except ConnectionFailed as error:
        return asked, error


OK, BUSY, REFUSED, LOST = (
    Reply(200, {}, b""),
    Reply(503, {}, b""),
    ConnectionFailed("refused", sent=False),
    ConnectionFailed("lost", sent=True),
)
GET, POST = Request("GET", "/"), Request("POST", "/")


@pytest.mark.parametrize(
    ("request_", "answers", "asked", "end"),
    [
        (GET, [OK], 1, OK),
        (GET, [BUSY, OK], 2, OK),
        (GET, [LOST, REFUSED, OK], 3, OK),
        (GET, [BUSY, LOST, REFUSED], 3, REFUSED),
        (GET, [LOST, REFUSED, BUSY], 3, BUSY),
        (POST, [REFUSED, REFUSED, OK], 3, OK),
        (POST, [LOST], 1, LOST),
        (POST, [REFUSED, BUSY], 2, BUSY),
        (Request("POST", "/", repeatable=True), [LOST, BUSY, OK], 3, OK),
        (GET, [Reply(429, {}, b"")], 1, Reply(429, {}, b"")),
    ],
)
def test_a_round_goes_on_where_that_doubles_nothing(request_, answers, asked, end):
    found, result = _ask(Brokers(URLS, lambda: 0.0), request_, *answers)
    assert found == URLS[:asked]
    assert result is end or result == end


@pytest.mark.parametrize(
    ("request_", "urls", "silent_s"),
    [
        (Request("GET", "/"), URLS, [inf, inf, inf]),
        (Request("GET", "/", is_hedged=True), URLS, [SILENT_S, inf, inf]),
        (Request("POST", "/", is_hedged=True, repeatable=True), URLS, [SILENT_S, inf, inf]),
        (Request("POST", "/", is_hedged=True), URLS, [inf]),  # what may not be repeated is waited for
        (Request("GET", "/", is_hedged=True), URLS[:1], [inf]),  # and what nobody else can answer
    ],
)
def test_only_the_first_broker_of_a_hedged_request_is_left_soon(request_, urls, silent_s):
    steps, found = Brokers(urls, lambda: 0.0).send(request_), []
    found.append(next(steps).silent_s)
    with suppress(ConnectionFailed):
        while True:
            found.append(steps.throw(LOST).silent_s)
    assert found == silent_s


def test_a_producer_leaves_a_silent_owner_long_before_its_own_timeout(cluster):
    with Client(URLS, transport=httpx.MockTransport(cluster)) as client, client.producer("t") as producer:
        first = _send_until_split(producer, cluster)
        cluster.silent = {URLS[1]}
        ids = [producer.send(n, key=KEYS[n % CELLS]).result(30) for n in range(first, first + 2 * CELLS)]
    assert len(ids) == 2 * CELLS
    assert cluster.waited_s
    assert set(cluster.waited_s) == {SILENT_S}


async def test_an_async_producer_does_so_too(cluster):
    async with AsyncClient(URLS, transport=httpx.MockTransport(cluster)) as client, client.producer("t") as producer:
        for first in _until_split(cluster):
            await producer.send(first, key=KEYS[first % CELLS])
            await producer.flush()
        cluster.silent = {URLS[1]}
        for n in range(first + 1, first + 1 + 2 * CELLS):
            await producer.send(n, key=KEYS[n % CELLS])
            await producer.flush()
    assert cluster.waited_s
    assert set(cluster.waited_s) == {SILENT_S}


def test_who_failed_comes_last_for_a_while_that_doubles():
    now = [100.0]
    brokers = Brokers(URLS, lambda: now[0])
    for avoided_s in (1, 2, 4, 8, 16, AVOID_MOST_S, AVOID_MOST_S):
        assert _ask(brokers, Request("GET", "/"), BUSY, OK)[0] == URLS[:2]
        assert brokers.order() == [URLS[1], URLS[2], URLS[0]]
        now[0] += avoided_s - 0.01
        assert brokers.order()[0] == URLS[1]
        now[0] += 0.01
        assert brokers.order()[0] == URLS[0]
    assert _ask(brokers, GET, OK)[0] == [URLS[0]]
    _ask(brokers, GET, LOST, OK)
    now[0] += 1
    assert brokers.order()[0] == URLS[0]


def test_learned_brokers_are_a_short_cut_and_strangers_are_long_left_out():
    now = [0.0]
    brokers = Brokers(["http://given"], lambda: now[0])
    owners = ("http://a", "https://b", "http://c")
    assert brokers.order(owners) == ["http://a", "http://c", "http://given"]
    _ask(brokers, Request("GET", "/", urls=("http://a",)), OK)
    _ask(brokers, Request("GET", "/", urls=("http://a", "http://c")), LOST, LOST, OK)
    assert brokers.order(owners) == ["http://given"]
    now[0] += 1
    assert brokers.order(owners) == ["http://a", "http://given"]
    now[0] += AVOID_UNKNOWN_S
    assert brokers.order(owners) == ["http://a", "http://c", "http://given"]


def test_all_calls_survive_the_loss_of_all_but_one_broker(cluster, client):
    cluster.down = set(URLS[:2])
    assert client.topic("t")["key_field"] is None
    assert len(client.segments("t")) == 4
    with client.producer("t") as producer:
        assert producer.send("a").result(30) == "0-0"
    assert cluster.published() == ["a"]
    cluster.down = set(URLS)
    with pytest.raises(ConnectionFailed):
        client.topic("t")


def test_a_plain_publish_is_not_repeated_once_it_was_sent(cluster, client):
    cluster.faults = [cluster.lost]
    with pytest.raises(ConnectionFailed):
        client.publish("t", {"value": 1})
    cluster.faults = [lambda _: problem(503, "partly-taken", taken=[{"segment": 0}])]
    with pytest.raises(PartlyTaken) as raised:
        client.publish("t", {"value": 1})
    assert raised.value.fields["taken"] == [{"segment": 0}]
    assert len([r for r in cluster.requests if r.method == "POST"]) == 2


def test_forbidden_is_raised_as_what_it_is(cluster, client):
    cluster.faults = [lambda _: problem(403, "forbidden")]
    with pytest.raises(Forbidden):
        client.publish("t", {"value": 1})


def test_a_producer_completes_what_was_partly_taken(cluster, client):
    cluster.refused = {3}
    with client.producer("t", linger_ms=10_000) as producer:
        receipts = [producer.send(n, key=key) for n, key in enumerate(KEYS)]
        producer.flush()
        assert all(receipt.done() for receipt in receipts)
    assert len({r.headers["producer-sequence"] for r in cluster.requests if r.method == "POST"}) == 1
    assert len([r for r in cluster.requests if r.method == "POST"]) == 2
    assert sorted(cluster.published()) == list(range(CELLS))


def _send_until_split(producer, cluster):
    """Send keyed messages until each owner is sent some: how many there are by then."""
    for n in _until_split(cluster):
        producer.send(n, key=KEYS[n % CELLS])
        producer.flush()
    return n + 1


def _until_split(cluster):
    end_s = time.monotonic() + 30
    for n in itertools.count():
        yield n
        if {request.url.host for request in cluster.requests if request.method == "POST"} == {"b0", "b1", "b2"}:
            return
        assert time.monotonic() < end_s


@pytest.mark.parametrize("urls", [URLS[:1], URLS])
def test_each_message_goes_to_its_owner_once_the_map_is_known(cluster, urls):
    with Client(urls, transport=httpx.MockTransport(cluster)) as client, client.producer("t") as producer:
        first = _send_until_split(producer, cluster)
        cluster.forwarded = 0
        for n in range(first, 3000):
            producer.send(n, key=KEYS[n % CELLS])
        table = pa.table({"value": [str(n) for n in range(3000, 4000)], "_key": [KEYS[n % CELLS] for n in range(1000)]})
        deliveries = producer.send_table(table)
        assert sum(delivery.result(30).count for delivery in deliveries) == 1000
        assert cluster.forwarded == 0
        assert len(deliveries) == 3
    assert all(cluster.values_of(KEYS[cell]) == list(range(cell, 4000, CELLS)) for cell in range(CELLS))


def test_keys_in_a_field_go_to_their_owners_too(cluster, client):
    cluster.facts = {"key_field": "k"}
    with client.producer("t") as producer:
        _send_until_split(producer, cluster)
        cluster.forwarded = 0
        for n in range(1000):
            producer.send({"k": KEYS[n % CELLS], "n": n})
    assert cluster.forwarded == 0


def test_a_producer_goes_on_without_an_owner_and_finds_the_next(cluster, client):
    with client.producer("t") as producer:
        first = _send_until_split(producer, cluster)
        cluster.down = {URLS[1]}
        cluster.owners = {0: 0, 1: None, 2: 2}
        for n in range(first, 500):
            producer.send(n, key=KEYS[n % CELLS])
        producer.flush()
        cluster.owners = {0: 0, 1: 2, 2: 2}
        end_s = time.monotonic() + 30
        for n in itertools.count(500):
            cluster.forwarded = 0
            producer.send(n, key=KEYS[n % CELLS])
            producer.flush()
            if n > 500 + CELLS and n % CELLS == 3 and not cluster.forwarded:
                break
            assert time.monotonic() < end_s
            time.sleep(0.01)
    assert all(cluster.values_of(KEYS[cell]) == list(range(cell, n + 1, CELLS)) for cell in range(CELLS))


async def test_the_async_producer_does_the_same(cluster):
    async with AsyncClient(URLS, transport=httpx.MockTransport(cluster)) as client, client.producer("t") as producer:
        for first in _until_split(cluster):
            await producer.send(first, key=KEYS[first % CELLS])
            await producer.flush()
        cluster.forwarded = 0
        for n in range(first + 1, 3000):
            await producer.send(n, key=KEYS[n % CELLS])
        await producer.flush()
        assert cluster.forwarded == 0
        cluster.faults = [cluster.lost, lambda _: problem(503, "not-ready", retry_after="0")]
        values = [str(n) for n in range(3000, 4000)]
        await producer.send_table(pa.table({"value": values, "_key": [KEYS[n % CELLS] for n in range(1000)]}))
    assert all(cluster.values_of(KEYS[cell]) == list(range(cell, 4000, CELLS)) for cell in range(CELLS))


def test_unavailable_everywhere_is_raised_at_the_end_of_patience(cluster, client):
    cluster.faults = [lambda _: problem(503, "unavailable", retry_after="0")] * 10_000
    producer = client.producer("t", delivery_timeout_s=1)
    with pytest.raises(Unavailable):
        producer.send("a").result(30)
    assert len({request.url.host for request in cluster.requests}) == 3
    with pytest.raises(Unavailable):
        producer.close()


class ByHost(httpx.AsyncBaseTransport):
    """Requests go to the broker that their URL names. `kinds` are those of the publishes; of those each seventh is
    handled, and its answer lost."""

    def __init__(self, together: InLoop) -> None:
        self._together = together
        self.kinds: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As its base."""
        app = self._together.apps[f"http://{request.url.host}"]
        answer = await httpx.ASGITransport(app).handle_async_request(request)
        if "producer-id" in request.headers:
            self.kinds.append(request.headers["content-type"])
            if len(self.kinds) % 7 == 0:
                raise httpx.ReadError("connection reset", request=request)
        return answer


def client_of(together: InLoop) -> AsyncClient:
    """The client of all brokers."""
    return AsyncClient(list(together.apps), transport=ByHost(together))


def by_key(table: pa.Table) -> dict[str, list[int]]:
    """The keys' own numbers, sorted; no row may be there twice."""
    ids = set(zip(table["segment"].to_pylist(), table["_offset"].to_pylist(), strict=True))
    assert len(ids) == table.num_rows, "a row is there twice"
    found: dict[str, list[int]] = defaultdict(list)
    for key, value in zip(table["_key"].to_pylist(), table["value"].to_pylist(), strict=True):
        found[key].append(json.loads(value))
    return {key: sorted(numbers) for key, numbers in found.items()}


async def read_all(client: AsyncClient, taken: dict[str, int], changed: asyncio.Event) -> int:
    """Read the table again and again: every key's messages are there from 0 on, at least those acknowledged before."""
    times = 0
    while not changed.is_set():
        before = dict(taken)
        found = by_key(await client.read_table("t", live=True))
        for key, numbers in found.items():
            assert numbers == [*range(len(numbers))], f"{key} has a hole"
        assert all(len(found.get(key, [])) >= count for key, count in before.items())
        times += 1
    return times


@pytest.mark.brokers
@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_a_live_table_is_whole_amid_changes(tmp_path: Path, arrow: bool) -> None:
    store: Any = LocalStore(tmp_path / "store", SystemIds())
    for number in ("0", "1"):  # where each broker says that the store is
        (tmp_path / number).mkdir()
        (tmp_path / number / "store").symlink_to(tmp_path / "store")
    async with in_loop(tmp_path, store=store) as together, client_of(together) as client:
        await make(together.brokers[0], 2)
        changed = asyncio.Event()
        async with (
            publishing(together, arrow) as published,
            beside(read_all(client, published.taken, changed)) as tasks,
        ):
            await change_all(together)
            published.ending = True
            changed.set()
        assert tasks[0].result() > 5
        table = await client.read_table("t", live=True)
        assert by_key(table) == {key: [*range(n)] for key, n in published.taken.items()}


@pytest.mark.brokers
@pytest.mark.parametrize(("kind", "key_field"), [("lines", None), ("rows", None), ("rows", "k")])
async def test_producer_and_subscriber_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key_field: str | None
) -> None:
    kinds.use(kind, monkeypatch)
    async with in_loop(tmp_path) as together, client_of(together) as client:
        await client.create_topic("t", key_field=key_field)
        done = asyncio.Event()

        async def produce() -> dict[str, int]:
            sent: dict[str, int] = defaultdict(int)
            async with client.producer("t") as producer:
                while not done.is_set():
                    for key in map(str, range(20)):
                        value = {"k": int(key), "n": sent[key]} if key_field else sent[key]
                        await producer.send(value, key=None if key_field else key)
                        sent[key] += 1
                    await asyncio.sleep(0.002)
            return sent

        async def receive() -> dict[str, list[int]]:
            found: dict[str, list[int]] = defaultdict(list)
            async for message in client.subscribe("t", "s", start="earliest", idle_timeout_s=2):
                found[message.key or ""].append(message.value["n"] if key_field else message.value)
                message.ack()
            return found

        async with beside(produce(), receive()) as (sent, received):
            await change_all(together)
            done.set()
        assert received.result() == {key: [*range(n)] for key, n in sent.result().items()}
        assert set(privates.transport(client)._mock.kinds) == {ARROW if kind == "rows" else NDJSON}
        left = (await client.subscription("t", "s"))["lag"]
        assert {one["segment"] for one in left} == set(opened(together.brokers[0]))
        assert sum(one["messages"] for one in left) == 0


@pytest.mark.brokers
async def test_the_segment_map_and_pages_of_a_split_topic(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, client_of(together) as client:
        one = together.brokers[0]
        await make(one)
        await client.publish("t", [{"value": n} for n in range(3)])
        successors = await replace(together, [0], 2, together.brokers)
        await client.publish("t", {"value": 3})
        found: dict[int, dict[str, Any]] = {each["id"]: each for each in await client.segments("t")}
        assert [*found] == [0, *successors]
        sealed = found.pop(0)
        assert (sealed["state"], sealed["owner"], sealed["owner_url"]) == ("sealed", None, None)
        assert (sealed["predecessors"], sealed["successors"]) == ([], successors)
        assert (sealed["start_offset"], sealed["flushed_offset"], sealed["end_offset"]) == (0, 3, 3)
        for number, each in found.items():
            assert (each["state"], each["predecessors"], each["successors"]) == ("open", [0], [])
            assert each["owner"] == records(one)[number].owner
        assert sum(each["end_offset"] for each in found.values()) == 1
        shown = await client.topic("t")
        assert (shown["segments"], shown["messages"]) == (2, 4)
        assert shown["bytes"] > 0
        assert shown["tail_bytes"] > 0
        page = await client.fetch("t", 0, 0)
        assert (len(page.messages), page.next_offset, page.sealed, page.successors) == (3, 3, True, successors)
        page = await client.fetch("t", successors[0], 0)
        assert (page.sealed, page.successors) == (False, [])
