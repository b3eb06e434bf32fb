"""A broker is killed at each step of an upload, a publish, an abort, a sweep and a deletion; the next one ends it."""

import asyncio
import time
from contextlib import suppress

import httpx
import msgspec
import pytest

from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers.stored import record_of
from tests.support.http.uploading import BYTES, SHA256, begin, problem_of, put, uploaded
from tests.support.tiers import later

pytestmark = pytest.mark.process

TOPIC = "/v1/topics/t"
WITHIN_S = 60.0
DAY_US = 86_400 * 1_000_000


def client_of(broker) -> httpx.Client:
    return httpx.Client(base_url=broker.url, trust_env=False, verify=False, timeout=30)


@pytest.fixture
def dying(broker_process):
    """`dying(place, before, act)`: a broker that is killed at a place of `act`, and has started again."""

    def die(place, before, act):
        broker = broker_process()
        with client_of(broker) as http:
            assert http.put(TOPIC).status_code == 201
            told = before(http)
        broker.terminate()
        broker.start(env={"SEAWEEDQ_FAIL_AT": place})
        with client_of(broker) as http, suppress(httpx.TransportError):
            act(http, told)
            raise AssertionError(f"{place} was not reached")
        broker.wait_gone()
        broker.start()
        return broker, told

    return die


def payloads(broker) -> list[bytes]:
    return [path.read_bytes() for path in (broker.store / "_payloads").glob("*/*/*")]


def temporary(broker) -> list:
    return list((broker.store / "_tmp").glob("*"))


def publish(http, upload) -> httpx.Response:
    return http.post(f"{TOPIC}/messages", json={"reference": {"upload_id": upload["upload_id"]}})


def place_of(upload) -> str:
    return f"{TOPIC}/uploads/{upload['upload_id']}"


def nothing(http):
    return None


@pytest.mark.long
@pytest.mark.parametrize("place", ["upload.begun", later("upload.recorded")])
def test_begun(dying, place):
    broker, _ = dying(place, nothing, lambda http, _: http.post(f"{TOPIC}/uploads", json={"size": 1}))
    with client_of(broker) as http:
        assert publish(http, uploaded(http, TOPIC)).status_code == 200


def test_stored(dying):
    """The bytes are there and nobody was answered: the same put again is taken, and another is not."""
    broker, upload = dying("upload.stored", lambda http: begin(http, TOPIC), put)
    with client_of(broker) as http:
        assert problem_of(put(http, upload, BYTES[::-1])) == (409, "upload-conflict")
        assert put(http, upload).json()["sha256"] == SHA256
        assert publish(http, upload).status_code == 200
    assert payloads(broker) == [BYTES]
    assert not temporary(broker)


@pytest.mark.parametrize("place", [later("claim.checked"), "claim.published"])
def test_published(dying, place):
    broker, upload = dying(place, lambda http: uploaded(http, TOPIC), publish)
    with client_of(broker) as http:
        assert http.get(TOPIC).json()["messages"] == 0
        assert publish(http, upload).status_code == 200
        assert http.get(TOPIC).json()["messages"] == 1
        assert problem_of(http.delete(place_of(upload))) == (409, "upload-conflict")
    assert payloads(broker) == [BYTES]


@pytest.mark.parametrize("place", ["upload.removed", later("upload.cleared")])
def test_aborted(dying, place):
    """The leader's first sweep goes on with it."""
    broker, upload = dying(
        place, lambda http: uploaded(http, TOPIC), lambda http, upload: http.delete(place_of(upload))
    )
    with client_of(broker) as http:
        assert problem_of(publish(http, upload)) == (404, "upload-not-found")
        wait_until(lambda: not payloads(broker))
        assert http.delete(place_of(upload)).status_code == 204


@pytest.mark.parametrize("place", [later("delete.uploads"), later("delete.payloads"), "delete.payload"])
def test_deleted(dying, place):
    def two(http):
        assert publish(http, uploaded(http, TOPIC)).status_code == 200
        return uploaded(http, TOPIC)

    broker, upload = dying(place, two, lambda http, _: http.delete(TOPIC))
    with client_of(broker) as http:
        http.delete(TOPIC)
        wait_until(lambda: http.get(TOPIC).status_code == 404)
        assert not payloads(broker)
        assert http.put(TOPIC).status_code == 201
        assert problem_of(publish(http, upload)) == (404, "upload-not-found")
        assert publish(http, uploaded(http, TOPIC)).status_code == 200
    assert payloads(broker) == [BYTES]


async def opened(broker) -> EmbeddedCoordination:
    return EmbeddedCoordination(broker.data_dir / "coordination.db", SystemClock())


async def age(broker, state) -> None:
    """All uploads have expired long ago; those that are open are in that state."""
    coordination = await opened(broker)
    for entry in (await coordination.range(keys.UPLOADS.prefix())).entries:
        record = record_of(keys.UPLOADS, entry.value)
        changed = msgspec.structs.replace(
            record,
            expires_us=record.expires_us - 3 * DAY_US,
            state=state if record.state == "open" else record.state,
        )
        await coordination.commit([], [Put(entry.key, keys.UPLOADS.encode(Versioned.new(changed)))])
    await coordination.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "state"), [("sweep.removed", "open"), later("sweep.cleared", "open"), later("sweep.again", "removed")]
)
async def test_swept(broker_process, place, state):
    """What was published stays, what was not goes, and so do all records, whenever the leader dies."""
    broker = broker_process()
    with client_of(broker) as http:
        http.put(TOPIC)
        kept = uploaded(http, TOPIC)
        assert publish(http, kept).status_code == 200
        uploaded(http, TOPIC, BYTES[::-1])
    broker.terminate()
    await age(broker, state)
    broker.start(wait=False, env={"SEAWEEDQ_FAIL_AT": place})
    assert broker.wait_gone(60) == -9
    broker.start()
    coordination = await opened(broker)
    end = time.monotonic() + WITHIN_S
    while (await coordination.range(keys.UPLOADS.prefix())).entries:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
    await coordination.close()
    assert payloads(broker) == [BYTES]


def wait_until(holds) -> None:
    end = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
