"""A subscription through every broker of a cluster: one dispatcher, whoever is asked, and all segments."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.processes.together import BROKERS, NAME, TOPIC, Together

pytestmark = pytest.mark.process


@pytest.fixture
def together(together_unharmed: Together) -> Together:
    """Brokers that all tests here share."""
    return together_unharmed


def test_pulls_and_acks_go_through_any_broker(together: Together) -> None:
    together.subscribe(0)
    together.publish(1, 90)
    for broker in range(BROKERS):
        assert together.ack((broker + 1) % BROKERS, together.pull(broker, max_messages=30)) == []
    while found := together.pull(0):
        together.ack(1, found)
    assert together.delivered == dict.fromkeys(range(90), 1)
    for broker in range(BROKERS):
        assert sum(lag["messages"] for lag in together.get(broker, NAME)["lag"]) == 0
        assert [each["name"] for each in together.get(broker, f"{TOPIC}/subscriptions")["subscriptions"]] == ["s"]


def test_one_consumer_has_a_segment_whichever_broker_it_asks(together: Together) -> None:
    together.subscribe(0)
    together.publish(0, 60)
    first = together.pull(1, consumer="a")
    while more := together.pull(1, consumer="a", ahead=True):
        first += more
    assert len(first) == 60
    assert [together.pull(broker, consumer="b") for broker in range(BROKERS)] == [[], [], []]
    refused = together.ask("POST", 2, f"{NAME}/ack", json={"ids": [first[0]["id"]], "consumer": "b"}).json()
    assert refused == {"acked": 0, "late": 0, "unknown": [first[0]["id"]]}


def test_a_pull_sees_what_was_published_before_it_at_any_broker(together: Together) -> None:
    together.subscribe(2)
    for step in range(30):
        together.publish(step % BROKERS, 1)
        found = together.pull((step + 1) % BROKERS)
        assert [message["value"] for message in found] == [step]
        together.ack(step % BROKERS, found)


def test_a_waiting_pull_gets_what_comes_to_any_owner(together: Together) -> None:
    together.subscribe(0)
    with ThreadPoolExecutor() as pool:
        for step in range(12):
            waiting = pool.submit(together.pull, step % BROKERS, wait_s=30)
            together.publish((step + 1) % BROKERS, 1)
            found = waiting.result(timeout=20)
            assert [message["value"] for message in found] == [step]
            together.ack(step % BROKERS, found)


def test_of_two_creations_at_once_at_two_brokers_one_wins_wholly(together: Together) -> None:
    together.publish(0, 30)
    with ThreadPoolExecutor() as pool:
        for _ in range(10):
            asked = [
                pool.submit(together.ask, "PUT", broker, NAME, json={"start": start})
                for broker, start in enumerate(("earliest", "latest", "earliest"))
            ]
            answers = [each.result() for each in asked]
            statuses = sorted(answer.status_code for answer in answers)
            made = next(answer.json() for answer in answers if answer.status_code == 201)
            assert statuses == ([200, 201, 409] if made["start"] == "earliest" else [201, 409, 409])
            found = sum(iter(lambda: len(together.pull(1, max_messages=1000)), 0))
            assert found == (30 if made["start"] == "earliest" else 0)
            assert together.ask("DELETE", 2, NAME).status_code == 204
            assert {together.ask("GET", broker, NAME).status_code for broker in range(BROKERS)} == {404}


def test_starts_count_from_every_owner(together: Together) -> None:
    together.publish(0, 30)
    together.subscribe(1, start="latest")
    together.publish(1, 30)
    while together.pull(2, max_messages=1000):
        pass
    assert together.delivered == dict.fromkeys(range(30, 60), 1)
    assert together.ask("DELETE", 0, NAME).status_code == 204
    messages = together.get(0, f"{TOPIC}/segments/{together.first_segment()}/messages")["messages"]
    times = sorted(message["timestamp"] for message in messages)
    together.subscribe(2, start={"timestamp": times[-1]})
    lags = together.get(0, NAME)["lag"]
    assert 30 <= sum(lag["messages"] for lag in lags) < 60


def test_a_topic_just_made_is_known_to_subscriptions_at_all_brokers(together: Together) -> None:
    for at in range(10):
        made, other = together.urls[at % BROKERS], together.urls[(at + 1) % BROKERS]
        assert together.http.put(f"{made}/v1/topics/new-{at}").status_code == 201
        assert together.http.put(f"{other}/v1/topics/new-{at}/subscriptions/s").status_code == 201
