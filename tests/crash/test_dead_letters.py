"""A broker is killed around the publish of dead letters: none is lost, and each is there once."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later

pytestmark = pytest.mark.process

TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"
DEAD = "/v1/topics/dead"


def reject_all(http: httpx.Client) -> list[str]:
    """Rejects what there is; a kill may come before the answer."""
    ids = [message["id"] for message in http.post(f"{SUB}/pull", json={}).json()["messages"]]
    if ids:
        with suppress(httpx.TransportError):
            http.post(f"{SUB}/nack", json={"ids": ids, "reject": True, "reason": "no"})
    return ids


def left(http: httpx.Client) -> int:
    return int(http.get(SUB).json()["lag_total"]["messages"])


def letters(http: httpx.Client) -> list[dict[str, Any]]:
    return list(http.get(f"{DEAD}/segments/0/messages", params={"offset": 0}).json()["messages"])


@pytest.mark.parametrize(
    "place", [later("letter.record"), later("letter.publish"), "letter.published", later("letter.acked")]
)
def test_a_killed_broker(broker_process: Callable[..., BrokerProcess], place: str) -> None:
    """Those that were published and not acked were there twice."""
    broker = broker_process()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        http.put(TOPIC)
        assert http.put(SUB, json={"start": "earliest", "dead_letter_topic": "dead"}).status_code == 201
        http.post(f"{TOPIC}/messages", json={"messages": [{"value": n} for n in range(3)]})
    broker.terminate()
    broker.start(env={"SEAWEEDQ_FAIL_AT": place})
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        assert reject_all(http) == ["0-0", "0-1", "0-2"]
    broker.wait_gone()
    broker.start()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        end_s = time.monotonic() + 30
        while left(http):
            assert time.monotonic() < end_s, http.get(SUB).text
            assert not reject_all(http) or place == "letter.record", "a checkpoint has what is dying before a letter"
            time.sleep(0.05)
        found = letters(http)
        assert Counter(letter["headers"]["dead-letter-id"] for letter in found) == dict.fromkeys(
            ("0-0", "0-1", "0-2"), 1
        )
        assert {letter["headers"]["dead-letter-detail"] for letter in found} == {"no"}
