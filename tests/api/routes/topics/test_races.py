"""Many clients at the same names at once: exactly one wins, nobody meets anything but what the surface says."""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.http.asking import fetch, send, values
from tests.support.processes.broker_process import BrokerProcess

CLIENTS = 16


@pytest.fixture
def at_once(broker: BrokerProcess) -> Iterator[Callable[[Callable[[httpx.Client, int], Any]], list[Any]]]:
    """Runs a function in as many threads as there are clients, each with a connection of its own."""
    clients = [httpx.Client(base_url=broker.url, trust_env=False, timeout=30) for _ in range(CLIENTS)]
    for client in clients:
        client.get("/healthz")
    with ThreadPoolExecutor(CLIENTS) as pool:
        yield lambda work: list(pool.map(work, clients, range(CLIENTS)))
    for client in clients:
        client.close()


AtOnce = Callable[[Callable[[httpx.Client, int], Any]], list[Any]]


def test_one_creates_a_topic_and_all_others_find_it(http: httpx.Client, at_once: AtOnce) -> None:
    for n in range(5):
        seen = Counter(at_once(lambda client, _, n=n: client.put(f"/v1/topics/raced-{n}").status_code))  # type: ignore[misc]
        assert seen == {201: 1, 200: CLIENTS - 1}
        assert [s["id"] for s in http.get(f"/v1/topics/raced-{n}/segments").json()["segments"]] == [0]


def test_one_configuration_wins(http: httpx.Client, at_once: AtOnce) -> None:
    answers = at_once(lambda client, n: client.put("/v1/topics/contested", json={"initial_segments": n + 1}))
    assert Counter(answer.status_code for answer in answers) == {201: 1, 409: CLIENTS - 1}
    won = next(answer for answer in answers if answer.status_code == 201).json()
    assert http.get("/v1/topics/contested").json() == won


def test_the_first_messages_of_a_topic_are_all_taken(http: httpx.Client, at_once: AtOnce) -> None:
    answers = at_once(lambda client, n: send(client, "/v1/topics/sprung", n))
    assert sorted(one for ids in answers for one in ids) == sorted(f"0-{n}" for n in range(CLIENTS))
    assert sorted(values(fetch(http, "/v1/topics/sprung"))) == list(range(CLIENTS))


def test_one_creates_a_subscription(http: httpx.Client, topic: str, at_once: AtOnce) -> None:
    path = f"{topic}/subscriptions/raced"
    seen = Counter(at_once(lambda client, _: client.put(path, json={"start": "earliest"}).status_code))
    assert seen == {201: 1, 200: CLIENTS - 1}


def test_deleting_publishing_and_creating_at_once_ends_well(http: httpx.Client, at_once: AtOnce) -> None:
    path = "/v1/topics/churned"

    def churn(client: httpx.Client, n: int) -> Counter[int]:
        asked: Counter[int] = Counter()
        for _ in range(10):
            match n % 4:
                case 0:
                    answer = client.delete(path)
                case 1:
                    answer = client.put(path, json={})
                case 2:
                    answer = client.post(f"{path}/messages", json={"value": n})
                case _:
                    answer = client.get(f"{path}/segments/0/messages")
            asked[answer.status_code] += 1
        return asked

    seen: Counter[int] = sum(at_once(churn), Counter())
    assert set(seen) <= {200, 201, 204, 404, 409}
    assert http.put(path).status_code in (200, 201)
    before = http.get(path).json()["messages"]
    send(http, path, "after")
    assert http.get(path).json()["messages"] == before + 1


def test_pulls_of_one_consumer_never_share_a_message(http: httpx.Client, at_once: AtOnce) -> None:
    topic, sub = "/v1/topics/shared-out", "/v1/topics/shared-out/subscriptions/s"
    http.put(topic, json={"initial_segments": 3})
    http.put(sub, json={"start": "earliest"})
    sent = send(http, topic, *range(2000))

    def work(client: httpx.Client, _: int) -> list[str]:
        got: list[str] = []
        while messages := client.post(f"{sub}/pull", json={"max_messages": 20, "wait_s": 0.1}).json()["messages"]:
            ids = [message["id"] for message in messages]
            assert client.post(f"{sub}/ack", json={"ids": ids}).json() == {"acked": len(ids), "late": 0, "unknown": []}
            got += ids
        return got

    seen = Counter(one for got in at_once(work) for one in got)
    assert set(seen) == set(sent)
    assert set(seen.values()) == {1}
    assert sum(one["messages"] for one in http.get(sub).json()["lag"]) == 0


def test_a_producer_that_repeats_itself_at_once_is_stored_once(http: httpx.Client, topic: str, at_once: AtOnce) -> None:
    headers = {"Producer-Id": "p", "Producer-Sequence": "0"}
    body = {"messages": [{"value": n} for n in range(10)]}
    answers = at_once(lambda client, _: client.post(f"{topic}/messages", json=body, headers=headers).json())
    assert sum("duplicate" not in answer for answer in answers) == 1
    assert {str(answer["ids"]) for answer in answers} == {str([f"0-{n}" for n in range(10)])}
    assert fetch(http, topic)["next_offset"] == 10
