"""Clients of several brokers: who is asked, who is next, what may be asked twice; and producers of three owners."""

import itertools
import time
from contextlib import suppress
from math import inf

import httpx
import pyarrow as pa
import pytest

from seaweedq import AsyncClient, Client
from seaweedq.client.core.broker_choice import AVOID_MOST_S, AVOID_UNKNOWN_S, SILENT_S, Brokers, parse_urls
from seaweedq.client.core.effects import Attempt, Reply, Request
from seaweedq.errors import ConnectionFailed, Forbidden, PartlyTaken, Unavailable
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


def test_a_producer_leaves_an_owner_that_is_silent_long_before_its_own_timeout(cluster):
    with Client(URLS, transport=httpx.MockTransport(cluster)) as client, client.producer("t") as producer:
        first = _send_until_split(producer, cluster)
        cluster.silent = {URLS[1]}
        ids = [producer.send(n, key=KEYS[n % CELLS]).result(5) for n in range(first, first + 2 * CELLS)]
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


def test_learned_brokers_are_a_short_cut_and_strangers_are_left_out_for_long():
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
        assert producer.send("a").result(5) == "0-0"
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
    end_s = time.monotonic() + 10
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
        assert sum(delivery.result(10).count for delivery in deliveries) == 1000
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
        end_s = time.monotonic() + 10
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
    producer = client.producer("t", delivery_timeout_s=0.2)
    with pytest.raises(Unavailable):
        producer.send("a").result(5)
    assert len({request.url.host for request in cluster.requests}) == 3
    with pytest.raises(Unavailable):
        producer.close()
