"""Requests of an idempotent producer that a kill leaves unanswered, or not: what their retries are told is true."""

import json

import httpx
import pytest

from seaweedq.segments.keyrange import hash_key, tile
from tests.support.history.final_read import flush, over_http
from tests.support.history.load import TOPIC

pytestmark = pytest.mark.process

SEGMENTS = 3


def key_of(segment):
    return next(key for key in map(str, range(10_000)) if hash_key(key) in tile(SEGMENTS)[segment])


class Retrying:
    """One producer's requests to a broker, as NDJSON, or as a single JSON message."""

    def __init__(self, broker):
        self.broker = broker
        self.url = f"{broker.url}/v1/topics/{TOPIC}"
        httpx.put(
            self.url, json={"initial_segments": SEGMENTS}, timeout=30, trust_env=False, verify=False
        ).raise_for_status()

    def publish(self, sequence, keys, media="application/x-ndjson"):
        lines = [{"value": {"p": "p", "n": sequence + n}, "key": key} for n, key in enumerate(keys)]
        content = "\n".join(map(json.dumps, lines))
        headers = {"Content-Type": media, "Producer-Id": "p", "Producer-Sequence": str(sequence)}
        return httpx.post(
            f"{self.url}/messages", content=content, headers=headers, timeout=30, trust_env=False, verify=False
        )

    def to_death(self, sequence, keys):
        with pytest.raises(httpx.TransportError):
            self.publish(sequence, keys)
        self.broker.wait_gone()
        self.restart()

    def restart(self):
        self.broker.kill()
        self.broker.start(env={"SEAWEEDQ_FAIL_AT": ""})

    def stored(self):
        return {row.seq: f"{row.segment}-{row.offset}" for row in over_http(self.broker.url)}


@pytest.fixture
def lost(broker_process):
    """A producer whose first commit the broker dies of, before it is in the journal."""
    return Retrying(broker_process(env={"SEAWEEDQ_FAIL_AT": "commit.append"}))


@pytest.fixture
def unanswered(broker_process):
    """A producer whose first commit the broker dies of when it is in the journal."""
    return Retrying(broker_process(env={"SEAWEEDQ_FAIL_AT": "commit.durable"}))


@pytest.fixture
def producer(broker_process):
    return Retrying(broker_process())


@pytest.mark.long
def test_the_retry_of_a_lost_batch_behind_a_later_one_is_refused(lost):
    lost.to_death(0, [key_of(0), key_of(1)])
    assert lost.publish(2, [key_of(1)]).status_code == 200
    assert lost.publish(0, [key_of(0), key_of(1)]).status_code == 409
    assert set(lost.stored()) == {2}
    lost.restart()
    assert lost.publish(0, [key_of(0), key_of(1)]).status_code == 409
    assert set(lost.stored()) == {2}


def test_the_retry_of_a_lost_batch_is_stored_where_no_later_one_is(lost):
    lost.to_death(0, [key_of(0)])
    assert lost.publish(1, [key_of(1)]).status_code == 200
    answer = lost.publish(0, [key_of(0)]).json()
    assert "duplicate" not in answer
    assert lost.stored()[0] == answer["ids"][0]


def test_the_retry_of_an_unanswered_batch_finds_it_also_behind_a_later_one(unanswered):
    keys = [key_of(0), None, key_of(2), None, None]
    unanswered.to_death(0, keys)
    found = unanswered.stored()
    assert unanswered.publish(5, keys).status_code == 200
    answer = unanswered.publish(0, keys).json()
    assert answer["duplicate"]
    assert answer["ids"] == [found[n] for n in range(5)]
    assert len(unanswered.stored()) == 10


@pytest.mark.parametrize("flushed", [False, True])
def test_keyless_messages_have_the_same_ids_after_a_kill(producer, flushed):
    batch = producer.publish(0, [None] * 30).json()["ids"]
    single = producer.publish(30, [None], "application/json").json()["ids"]
    if flushed:
        flush(producer.broker.url)
    for _ in range(2):
        producer.restart()
        again = [producer.publish(0, [None] * 30).json(), producer.publish(30, [None], "application/json").json()]
        assert [(answer["ids"], answer["duplicate"]) for answer in again] == [(batch, True), (single, True)]
    assert producer.publish(30, [None]).json()["ids"] == single  # as a batch of one
    assert len({id.split("-")[0] for id in batch}) == SEGMENTS
    assert len(producer.stored()) == 31
