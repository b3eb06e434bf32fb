"""Subscriptions in mode `ordered` over HTTP: start, pull, ack, what comes again, lag. The settings of subscriptions:
what a change keeps.
"""

import json
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.http.asking import problem_of, send, values
from tests.support.http.raw import head
from tests.support.processes.broker_process import BrokerProcess

DEADLINE_S = 2  # longer than a busy machine takes from a pull to the next request


@pytest.fixture
def sub(http: httpx.Client, topic: str) -> str:
    """The path of a subscription from the earliest message on, whose deadline no test sees."""
    path = f"{topic}/subscriptions/s"
    assert http.put(path, json={"start": "earliest", "ack_deadline_s": 600}).status_code == 201
    return path


@pytest.fixture
def short(http: httpx.Client, topic: str) -> str:
    """As `sub`, with a short deadline."""
    path = f"{topic}/subscriptions/s"
    assert http.put(path, json={"start": "earliest", "ack_deadline_s": DEADLINE_S}).status_code == 201
    return path


def pull(http: httpx.Client, sub: str, **options: Any) -> list[dict[str, Any]]:
    answer = http.post(f"{sub}/pull", json=options)
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


def ack(http: httpx.Client, sub: str, *ids: str, **options: Any) -> dict[str, Any]:
    answer = http.post(f"{sub}/ack", json={"ids": ids, **options})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def lag(http: httpx.Client, sub: str) -> dict[str, Any]:
    (only,) = http.get(sub).json()["lag"]
    found: dict[str, Any] = only
    return found


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [message["id"] for message in messages]


@pytest.mark.process
def test_defaults_and_comparison(http: httpx.Client, topic: str) -> None:
    path = f"{topic}/subscriptions/plain"
    made = http.put(path, json={})
    assert made.status_code == 201
    shown = made.json()
    assert (shown["mode"], shown["start"], shown["ack_deadline_s"]) == ("ordered", "latest", 30)
    assert (shown["max_attempts"], shown["dead_letter_topic"]) == (0, None)
    for same in ({}, {"mode": "ordered"}, {"ack_deadline_s": 30}, {"start": "latest", "max_attempts": 0}):
        assert http.put(path, json=same).status_code == 200
    for field, other in (
        ("start", "earliest"),
        ("ack_deadline_s", 31),
        ("start", {"timestamp": "2026-01-01T00:00:00Z"}),
    ):
        found = problem_of(http.put(path, json={field: other}), 409, "subscription-exists", "plain", field)
        assert list(found["differences"]) == [field]
        assert json.dumps(other, separators=(",", ":")).replace("Z", "+00:00") in found["detail"]
    assert http.get(path).json()["ack_deadline_s"] == 30
    assert http.get(f"{topic}/subscriptions").json()["subscriptions"] == [http.get(path).json()]


@pytest.mark.process
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"mode": "other"}, ["other", "keyed, ordered, shared"]),
        ({"start": "middle"}, ["start", "middle", "latest"]),
        ({"start": {"timestamp": "yesterday"}}, ["start.timestamp", "yesterday"]),
        ({"start": {"timestamp": "2026-01-01T00:00:00"}}, ["start.timestamp", "must have a time zone"]),
        ({"start": {"timestamp": "0001-01-01T00:00:00+14:00"}}, ["start.timestamp", "0001"]),
        ({"start": {"timestamp": "9999-12-31T23:59:59-14:00"}}, ["start.timestamp", "9999"]),
        ({"start": {"offset": 1}}, ["start"]),
        ({"ack_deadline_s": 0.5}, ["ack_deadline_s", "0.5", "at least 1"]),
        ({"ack_deadline_s": 43_201}, ["ack_deadline_s", "43201", "43200"]),
        ({"max_attempts": 3}, ["max_attempts", 3]),
        ({"max_attempts": -1}, ["max_attempts", -1]),
        ({"max_attempts": 101}, ["max_attempts", 101, 100]),
        ({"max_attempts": 1, "dead_letter_topic": None}, ["max_attempts", 1, "dead_letter_topic"]),
        ({"dead_letter_topic": "no/topic"}, ["dead_letter_topic", "no/topic"]),
        ({"backoff_s": [1, -1]}, ["backoff_s[1]", "-1"]),
        ({"backoff_s": [1, 43_201]}, ["backoff_s[1]", "43201", "43200"]),
        ({"backoff_s": [1] * 101}, ["backoff_s", "100"]),
        ({"max_in_flight": 0}, ["max_in_flight", "0", "1"]),
        ({"max_in_flight": 1_000_001}, ["max_in_flight", "1000001", "1000000"]),
        ({"filter": {}}, ["filter", "key_prefix"]),
        ({"filter": {"key": "a"}}, ["key"]),
        ({"filter": {"headers": {"a": 1}}}, ["filter.headers", "1"]),
        ({"expires_after_s": 59}, ["expires_after_s", "59", "60"]),
        ({"unknown": 1}, ["unknown"]),
    ],
)
def test_what_is_not_valid_makes_no_subscription(http: httpx.Client, topic: str, config: Any, says: list[Any]) -> None:
    path = f"{topic}/subscriptions/invalid"
    problem_of(http.put(path, json=config), 422, "invalid-request", *says)
    problem_of(http.get(path), 404, "subscription-not-found", "invalid")


@pytest.mark.process
def test_where_a_subscription_starts(http: httpx.Client, topic: str) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    for hour in range(4):
        send(http, topic, hour, timestamp=(start + timedelta(hours=hour)).isoformat())
        if hour == 1:
            http.post(f"{topic}/flush")
    starts = {
        "earliest": ("earliest", [0, 1, 2, 3, "new"]),
        "latest": ("latest", ["new"]),
        "second": ({"timestamp": "2026-01-01T01:00:00Z"}, [1, 2, 3, "new"]),
        "zone": ({"timestamp": "2026-01-01T04:00:00+02:00"}, [2, 3, "new"]),
        "future": ({"timestamp": "2100-01-01T00:00:00Z"}, ["new"]),
    }
    for name, (given, _) in starts.items():
        assert http.put(f"{topic}/subscriptions/{name}", json={"start": given}).status_code == 201
    send(http, topic, "new")
    for name, (_, expected) in starts.items():
        messages = pull(http, f"{topic}/subscriptions/{name}")
        assert values({"messages": messages}) == expected, name
        assert [m["attempt"] for m in messages] == [1] * len(expected)


@pytest.mark.process
def test_pull_and_ack_go_through_all_segments(http: httpx.Client) -> None:
    topic, sub = "/v1/topics/wide", "/v1/topics/wide/subscriptions/s"
    http.put(topic, json={"initial_segments": 4})
    http.put(sub, json={"start": "earliest"})
    sent = send(http, topic, *range(300))
    seen: list[str] = []
    while messages := pull(http, sub, max_messages=70):
        assert len(messages) <= 70
        seen += ids(messages)
        assert ack(http, sub, *ids(messages)) == {"acked": len(messages), "late": 0, "unknown": []}
    assert sorted(seen) == sorted(sent)
    assert all(one["messages"] == 0 for one in http.get(sub).json()["lag"])


@pytest.mark.process
def test_one_consumer_at_a_time_has_a_segment(http: httpx.Client, topic: str, sub: str) -> None:
    send(http, topic, *range(10))
    mine = ids(pull(http, sub, consumer="a", max_messages=4))
    assert pull(http, sub, consumer="b") == []
    assert pull(http, sub) == []
    more = ids(pull(http, sub, consumer="a", max_messages=4, ahead=True))
    assert mine + more == [f"0-{n}" for n in range(8)]
    assert ack(http, sub, *mine, consumer="b") == {"acked": 0, "late": 0, "unknown": mine}
    assert ack(http, sub, *mine, *more, consumer="a")["acked"] == 8
    assert ids(pull(http, sub, consumer="b", wait_s=10)) == ["0-8", "0-9"], "a has not pulled for a second"


@pytest.mark.process
def test_what_is_not_acked_comes_again(http: httpx.Client, topic: str, short: str) -> None:
    send(http, topic, *range(5))
    assert [m["attempt"] for m in pull(http, short)] == [1] * 5
    assert pull(http, short) == []
    for attempt in (2, 3):
        again = pull(http, short, wait_s=5 * DEADLINE_S, consumer=f"other-{attempt}")
        assert [(m["offset"], m["attempt"]) for m in again] == [(n, attempt) for n in range(5)]
    ack(http, short, *ids(again))
    assert pull(http, short, wait_s=1.3 * DEADLINE_S) == []


@pytest.mark.process
def test_acks_beyond_the_first_unacked_are_kept(http: httpx.Client, topic: str, short: str) -> None:
    send(http, topic, *range(6))
    pull(http, short)
    assert ack(http, short, "0-1", "0-3", "0-5") == {"acked": 3, "late": 0, "unknown": []}
    assert (lag(http, short)["messages"], lag(http, short)["acked_to"]) == (3, 0)
    again: list[dict[str, Any]] = []
    end = time.monotonic() + 5 * DEADLINE_S
    while len(again) < 3 and time.monotonic() < end:
        again += pull(http, short, wait_s=5 * DEADLINE_S)
    assert [(m["offset"], m["attempt"]) for m in again] == [(0, 2), (2, 2), (4, 2)]
    ack(http, short, "0-0", "0-2", "0-4")
    assert (lag(http, short)["messages"], lag(http, short)["acked_to"]) == (0, 6)


@pytest.mark.process
def test_unknown_ids_are_named_as_they_came(http: httpx.Client, topic: str, sub: str) -> None:
    send(http, topic, *range(4))
    pull(http, sub, max_messages=2)
    odd = [
        "",
        "0",
        "0-",
        "-1",
        "0-1-2",
        "00-1",
        "0-01",
        "٠-١",
        "0--1",
        "x-1",
        "9-0",
        "0-3",
        "0-99",
        f"0-{'9' * 40}",
        "\0",
    ]
    found = ack(http, sub, "0-0", "0-0", *odd)
    assert found["acked"] == 1
    assert sorted(found["unknown"]) == sorted(odd)
    assert ack(http, sub, "0-0", "0-1") == {"acked": 2, "late": 0, "unknown": []}
    problem_of(
        http.post(f"{sub}/ack", json={"ids": []}), 422, "invalid-request", "ids must have at least 1 entry, not []"
    )


@pytest.mark.process
def test_an_ack_that_comes_too_late_is_unknown(http: httpx.Client, topic: str, short: str) -> None:
    send(http, topic, 1)
    (message,) = pull(http, short, consumer="slow")
    assert http.patch(short, json={"ack_deadline_s": 600}).status_code == 200  # of the next lease
    pull(http, short, consumer="next", wait_s=5 * DEADLINE_S)
    assert ack(http, short, message["id"], consumer="slow") == {"acked": 0, "late": 0, "unknown": [message["id"]]}
    assert ack(http, short, message["id"], consumer="next") == {"acked": 1, "late": 0, "unknown": []}


@pytest.mark.process
def test_an_ack_that_comes_late_counts_while_nobody_else_has_the_message(
    http: httpx.Client, topic: str, short: str
) -> None:
    send(http, topic, 1)
    (message,) = pull(http, short, consumer="slow")
    time.sleep(DEADLINE_S + 1)
    assert ack(http, short, message["id"], consumer="other") == {"acked": 0, "late": 0, "unknown": [message["id"]]}
    assert ack(http, short, message["id"], consumer="slow") == {"acked": 1, "late": 1, "unknown": []}
    assert pull(http, short, consumer="next") == []


@pytest.mark.process
def test_a_pull_waits_for_the_first_message(http: httpx.Client, topic: str, sub: str, broker: BrokerProcess) -> None:
    asked = threading.Event()

    def wait() -> tuple[list[Any], float]:
        with httpx.Client(base_url=broker.url, trust_env=False, timeout=40) as client:
            client.get("/healthz")
            asked.set()
            return values({"messages": pull(client, sub, wait_s=30)}), time.monotonic()

    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(wait)
        asked.wait(30)
        with pytest.raises(TimeoutError):
            waiting.result(0.3)
        sent = time.monotonic()
        send(http, topic, "now")
        found, came = waiting.result(30)
    assert found == ["now"]
    assert came - sent < 15


@pytest.mark.process
def test_a_consumer_that_went_away_is_given_nothing(http: httpx.Client, topic: str, broker: BrokerProcess) -> None:
    sub = f"{topic}/subscriptions/patient"
    http.put(sub, json={"start": "earliest", "ack_deadline_s": 600})
    body = b'{"wait_s":30,"consumer":"gone"}'
    with socket.create_connection(("127.0.0.1", broker.port)) as gone:
        gone.sendall(
            head("POST", f"{sub}/pull", "Content-Type: application/json", f"Content-Length: {len(body)}") + body
        )
        gone.settimeout(0.3)
        with pytest.raises(TimeoutError):
            gone.recv(1)
    http.get("/healthz")
    send(http, topic, 1)
    assert values({"messages": pull(http, sub, consumer="here", wait_s=5)}) == [1]


@pytest.mark.process
def test_lag_counts_messages_bytes_and_seconds(http: httpx.Client, topic: str, sub: str) -> None:
    names = ("messages", "bytes", "seconds", "in_flight", "delayed", "dying", "waiting", "skipped")
    counts = dict.fromkeys(names, 0)
    assert lag(http, sub) == {"segment": 0, "acked_to": 0, "end_offset": 0, "stalled": None, **counts}
    hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    send(http, topic, "x" * 1000, timestamp=hour_ago)
    send(http, topic, *["y" * 1000] * 9)
    for flush in (False, True):
        if flush:
            http.post(f"{topic}/flush")
        behind = lag(http, sub)
        assert (behind["messages"], behind["end_offset"]) == (10, 10)
        assert 3590 < behind["seconds"] < 3700
        assert behind["bytes"] > (0 if flush else 9000)
    pull(http, sub, max_messages=1)
    ack(http, sub, "0-0")
    assert lag(http, sub)["messages"] == 9
    assert lag(http, sub)["seconds"] < 60


@pytest.mark.process
def test_subscriptions_are_listed_by_pages_without_those_of_gone_topics(http: httpx.Client) -> None:
    made = [(topic, name) for topic in ("lister", "lister-2", "lister.x", "unlisted") for name in ("a", "b-1")]
    for topic, name in made:
        http.put(f"/v1/topics/{topic}")
        http.put(f"/v1/topics/{topic}/subscriptions/{name}", json={})
    for path in ("/v1/topics/unlisted", "/v1/topics/lister/subscriptions/a"):
        http.delete(path)
    http.put("/v1/topics/unlisted")
    whole = http.get("/v1/subscriptions").json()
    assert "next_page_token" not in whole
    left = {(one["topic"], one["name"]) for one in whole["subscriptions"]}
    assert left >= {*made[1:6]}
    assert not left & {made[0], *made[6:]}
    found, options = [], {"page_size": "2"}
    while True:
        page = http.get("/v1/subscriptions", params=options).json()
        found += page["subscriptions"]
        assert len(page["subscriptions"]) == 2 or "next_page_token" not in page
        if "next_page_token" not in page:
            break
        options["page_token"] = page["next_page_token"]
    assert found == whole["subscriptions"]


@pytest.mark.process
@pytest.mark.parametrize("token", ["", "lister", "lister/1", "lister/x/a", "lister/1/a/b"])
def test_a_page_token_that_is_none(http: httpx.Client, token: str) -> None:
    problem_of(http.get("/v1/subscriptions", params={"page_token": token}), 422, "invalid-request", "page_token")


@pytest.mark.process
def test_a_subscription_that_was_deleted_begins_anew(http: httpx.Client, topic: str, sub: str) -> None:
    send(http, topic, 1, 2)
    pull(http, sub)
    ack(http, sub, "0-0")
    gone = http.delete(sub)
    assert (gone.status_code, gone.content) == (204, b"")
    for answer in (
        http.get(sub),
        http.delete(sub),
        http.post(f"{sub}/pull", json={}),
        http.post(f"{sub}/ack", json={"ids": ["0-0"]}),
    ):
        problem_of(answer, 404, "subscription-not-found", "'s'")
    assert http.get(f"{topic}/subscriptions").json() == {"subscriptions": []}
    assert http.put(sub, json={"start": "earliest"}).status_code == 201
    assert [(m["offset"], m["attempt"]) for m in pull(http, sub)] == [(0, 1), (1, 1)]


@pytest.mark.process
def test_cursors_outlive_a_kill(broker_process: Callable[..., BrokerProcess]) -> None:
    broker = broker_process()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        topic, sub = "/v1/topics/t", "/v1/topics/t/subscriptions/s"
        http.put(topic)
        http.put(sub, json={"start": "earliest"})
        send(http, topic, *range(10))
        pull(http, sub, max_messages=8)
        ack(http, sub, "0-0", "0-1", "0-5")
    broker.kill()
    broker.start()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        seen: list[int] = []
        while messages := pull(http, sub):
            seen += [m["offset"] for m in messages]
        assert seen == [2, 3, 4, 6, 7, 8, 9]


SUB = "/v1/topics/t/subscriptions/s"


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1", timeout=30)


@pytest.mark.brokers
async def test_a_change_is_heeded_by_later_pulls_and_keeps_leases_and_epoch(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, client(*together.apps.values()) as http:
        await http.put("/v1/topics/t", json={})
        await http.put(SUB, json={"start": "earliest", "ack_deadline_s": 600})
        await http.post("/v1/topics/t/messages", json={"messages": [{"value": n} for n in range(3)]})
        (first,) = (await http.post(f"{SUB}/pull", json={"max_messages": 1})).json()["messages"]
        for one in ({"mode": "ordered"}, {"start": "latest"}, {"filter": None}):
            fixed = f"the field {next(iter(one))} cannot be changed after creation; the fields that can be changed are"
            problem_of(await http.patch(SUB, json=one), 422, "invalid-request", fixed)
        problem_of(await http.patch(SUB, json={"unknown": 1}), 422, "invalid-request", "unknown")
        problem_of(
            await http.patch(SUB, json={"ack_deadline_s": 0}), 422, "invalid-request", "ack_deadline_s", "at least 1"
        )
        shown = (await http.patch(SUB, json={"ack_deadline_s": 700})).json()
        assert (shown["ack_deadline_s"], shown["lag"][0]["messages"]) == (700, 3)
        again = (await http.get(SUB)).json()
        assert {**shown, "lag_total": {}, "lag": []} == {**again, "lag_total": {}, "lag": []}
        (broker,) = together.brokers
        topic = inside.topic(broker, "t")
        await inside.dispatcher(broker).checkpoint()  # under the revision of the change
        assert inside.dispatcher(broker).has(topic, "s")
        assert (await http.post(f"{SUB}/ack", json={"ids": [first["id"]]})).json()["acked"] == 1
        problem_of(await http.patch("/v1/topics/t/subscriptions/none", json={}), 404, "subscription-not-found")


@pytest.mark.brokers
async def test_a_change_whose_answer_was_lost_keeps_acks_that_no_checkpoint_has(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, client(*together.apps.values()) as http:
        await http.put("/v1/topics/t", json={})
        await http.put(SUB, json={"start": "earliest"})
        await http.post("/v1/topics/t/messages", json={"messages": [{"value": n} for n in range(3)]})
        (first,) = (await http.post(f"{SUB}/pull", json={"max_messages": 1})).json()["messages"]
        await http.post(f"{SUB}/ack", json={"ids": [first["id"]]})
        (broker,) = together.brokers
        dispatcher = inside.dispatcher(broker)
        subscription = await dispatcher.open(inside.topic(broker, "t"), "s")
        before = subscription.held
        await http.patch(SUB, json={"ack_deadline_s": 700})
        subscription.held = before  # as if coordination had not answered
        await dispatcher.checkpoint()
        assert dispatcher.has(inside.topic(broker, "t"), "s")
        assert subscription.record.ack_deadline_s == 700
        assert dispatcher.pin is None
