"""Requests that another broker has to answer: the same answer from each, whatever the request looks like."""

import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.processes.together import BROKERS, NAME, TOPIC, Together

pytestmark = pytest.mark.process

FETCH = f"{TOPIC}/segments/0/messages"
TARGETS = [  # 0 stands for the first segment
    f"{FETCH}?offset=0&limit=1&offset=1",
    "/v1/topics/%74/segments/%30/messages?limit=%31",
    f"{FETCH}?limit=1&x=%FF",
    f"{FETCH}?limit=1&x=a+b%2B%26%3D%23%2F..%2F",
    f"{FETCH}?limit=1&&;=",
    f"{FETCH}?limit=+1",
    f"{FETCH}?limit=1%0d%0aHost:y",
    f"{FETCH}?offset=999",
    f"{FETCH}?offset=-1",
    f"{FETCH}?wait_s=nan",
    f"{FETCH}?x={'y' * 30_000}",
    f"{FETCH}/",
    f"{TOPIC}/segments/00/messages?limit=1",
    f"{TOPIC}/segments/0/./messages",
    f"{TOPIC}/segments/1000/messages",
    f"{TOPIC}/segments/0%2Fmessages?limit=1",
    "/v1/topics/x/..%2Ft/segments/0/messages",
    "/v1/topics/x/../t/segments/0/messages",
    f"http://other{FETCH}?limit=1",
    f"{NAME}/%2e%2e",
    f"{TOPIC}/subscriptions/%2e%2e",
    f"{TOPIC}/subscriptions/s%00",
    f"{TOPIC}/subscriptions/%C3%BC",
]


@pytest.fixture
def together(together_unharmed: Together) -> Together:
    """Brokers that all tests here share."""
    return together_unharmed


def fetch(together: Together) -> str:
    """The path of a segment's messages."""
    return f"{TOPIC}/segments/{together.first_segment()}/messages"


def bare(port: int, target: str, *headers: bytes) -> tuple[bytes, bytes]:
    """Status line and body of a GET for exactly this target."""
    lines = [f"GET {target} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", *headers, b"", b""]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(b"\r\n".join(lines))
        content = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = content.partition(b"\r\n\r\n")
    return head.split(b"\r\n")[0], body


@pytest.mark.long
def test_each_broker_gives_the_same_answer_to_the_same_target(together: Together) -> None:
    together.publish(0, 50)
    together.subscribe(0)
    first = str(together.first_segment())
    quoted = "".join(f"%{ord(digit):x}" for digit in first)
    for general in TARGETS:
        target = re.sub(r"(?<=segments/)(0?)0(?=[/%])", rf"\g<1>{first}", general.replace("%30", quoted))
        answers = {bare(together.process.port + n, target) for n in range(BROKERS)}
        assert len(answers) == 1, (target, answers)
        assert not next(iter(answers))[0].startswith(b"HTTP/1.1 5"), target


@pytest.mark.parametrize("stamp", [b"", b"nope", b"\xff", b"x" * 10_000])
def test_a_client_that_claims_to_be_a_broker_is_refused_calls_of_brokers(together: Together, stamp: bytes) -> None:
    together.subscribe(0)
    for number in range(BROKERS):
        for target in (fetch(together), NAME):
            status, _ = bare(together.process.port + number, target, b"Seaweedq-Peer: " + stamp)
            assert status == b"HTTP/1.1 403 Forbidden", (number, target)


def test_a_repeat_at_any_broker_is_known_also_when_the_owners_have_changed(together: Together) -> None:
    def publish(broker: int, sequence: int) -> tuple[int, dict[str, object]]:
        shown = {"Producer-Id": "p", "Producer-Sequence": str(sequence)}
        messages = [{"key": f"k{n}", "value": sequence + n} for n in range(12)]
        answer = together.ask("POST", broker, f"{TOPIC}/messages", json={"messages": messages}, headers=shown)
        return answer.status_code, answer.json()

    first, second = publish(0, 0)[1], publish(1, 12)[1]
    together.signal(2)
    status, found = publish(0, 0)  # may not know whether it was its own first try that the dead owner took
    assert (status, {**found, "duplicate": True}) == (200, {**first, "duplicate": True})
    for broker in (0, 1):
        assert publish(broker, 0) == (200, {**first, "duplicate": True})
        assert publish(broker, 12) == (200, {**second, "duplicate": True})
        assert publish(broker, 6)[0] == 409
    together.wait_ready()
    assert publish(2, 12) == (200, {**second, "duplicate": True})
    assert publish(2, 24)[0] == 200


def test_many_long_polls_at_others_all_hear_of_one_publish(together: Together) -> None:
    def poll(number: int) -> tuple[int, int]:
        answer = together.ask("GET", number % BROKERS, f"{fetch(together)}?wait_s=20")
        return answer.status_code, len(answer.json()["messages"])

    with ThreadPoolExecutor(60) as threads:
        polls = [threads.submit(poll, number) for number in range(60)]
        for number in range(30):
            together.publish(number % BROKERS, 1)  # some come before the poll, some wake it
        assert {status for status, _ in (one.result() for one in polls)} == {200}
        assert Counter(count > 0 for _, count in (one.result() for one in polls)) == {True: 60}


def test_of_brokers_that_make_a_topic_at_once_all_mean_the_same(together: Together) -> None:
    with ThreadPoolExecutor(9) as threads:
        asked = [
            threads.submit(together.ask, "POST", number % BROKERS, "/v1/topics/fresh/messages", json={"value": number})
            for number in range(27)
        ]
        assert [one.result().status_code for one in asked] == [200] * 27
    for number in range(BROKERS):
        (segment,) = together.get(number, "/v1/topics/fresh/segments")["segments"]
        assert segment["end_offset"] == 27
        found = together.get(number, f"/v1/topics/fresh/segments/{segment['id']}/messages")["messages"]
        assert sorted(message["value"] for message in found) == list(range(27))
