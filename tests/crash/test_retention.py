"""The leader is killed between two steps of a round of retention; its next life goes on, and what counts is there."""

import asyncio
import os
import time

import httpx
import pytest

from seaweedq import Client
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.segments.entry import EntryName
from tests.support.processes.command import seaweedq
from tests.support.processes.passed_grace import let_the_grace_pass
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process

T = "/v1/topics/t"
FILES = 4  # of one row each, behind one without rows
WITHIN_S = 60.0
RAISING = ["number", "numbered", "marked", "raise", "raised"]
DELETING = ["delete:1", "delete:3", "deleted"]


def client_of(broker) -> httpx.Client:
    return httpx.Client(base_url=broker.url, trust_env=False, verify=False, timeout=30)


def wait_until(holds) -> None:
    end = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def sequences(broker) -> list[int]:
    return sorted(EntryName.parse(path.name).sequence for path in broker.store.rglob("topics/t/**/*.parquet"))


def check(broker, start: int) -> None:
    """A leader's first round is at its start: all that counts is there behind it."""
    with client_of(broker) as http:
        wait_until(lambda: http.get(T).json()["start_offsets"] == {"0": start})
        found = http.get(f"{T}/segments/0/messages?offset={start}").json()["messages"]
        assert [each["offset"] for each in found] == list(range(start, FILES))
        assert http.get(f"{T}/segments/0/messages?offset={start - 1}").status_code == 410


def make_files(broker):
    """Makes a topic of FILES files, of which retention leaves one."""
    with client_of(broker) as http:
        assert http.put(T).status_code == 201
        for n in range(FILES):
            assert http.post(f"{T}/messages", json={"messages": [{"value": n}]}).status_code == 200
            assert http.post(f"{T}/flush").status_code in (200, 204)
        assert http.patch(T, json={"retention": {"max_bytes": 1}}).status_code == 200


@pytest.mark.parametrize("place", ["raised", *map(soaked, RAISING[:-2]), later(RAISING[-2]), later(DELETING[0])])
def test_killed_in_a_round(broker_process, place):
    broker = broker_process()
    make_files(broker)
    broker.terminate()
    if place in RAISING:
        broker.start(env={"SEAWEEDQ_FAIL_AT": f"retention.{place}"}, wait=False)
        broker.wait_gone()
    broker.start()
    check(broker, FILES - 1)
    assert sequences(broker) == list(range(FILES + 1)), "readers of files have a grace"
    if place not in DELETING:
        return
    broker.kill()
    asyncio.run(let_the_grace_pass(broker))
    left = {"delete:1": [0, 1, 2, 3, 4], "delete:3": [2, 3, 4], "deleted": [4]}
    for more in DELETING:
        broker.start(env={"SEAWEEDQ_FAIL_AT": f"retention.{more}"}, wait=False)
        broker.wait_gone()
        assert sequences(broker) == left[more]
    broker.start()
    check(broker, FILES - 1)
    assert sequences(broker) == [FILES]


def rest(broker) -> None:
    """Makes its files older than a segment that is idle."""
    for path in broker.store.rglob("topics/t/**/*.parquet"):
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 2 * 3600))


@pytest.mark.long
@pytest.mark.parametrize(
    ("journal", "places"),
    [
        ("file", ["mark.durable", "recover.mark"]),
        ("object", ["mark.durable", "recover.mark"]),
        ("file", ["entry.append"]),
    ],
    ids=str,
)
def test_killed_behind_a_mark(broker_process, journal, places):
    broker = broker_process("--journal", journal)
    make_files(broker)
    broker.terminate()
    rest(broker)
    for place in places:
        broker.start(env={"SEAWEEDQ_FAIL_AT": place}, wait=False)
        broker.wait_gone()
    broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
    with client_of(broker) as http, Client(broker.url) as client:
        wait_until(lambda: http.get(T).json()["start_offsets"] == {"0": FILES})
        assert sequences(broker) == list(range(FILES + 2)), "one entry without rows"
        for n in range(3):
            assert http.post(f"{T}/messages", json={"value": n}).json()["ids"] == [f"0-{FILES + n}"]
            assert http.post(f"{T}/flush").status_code in (200, 204)
        assert sorted(row["value"] for row in client.read_table("t").to_pylist()) == ["0", "1", "2"]
        found = http.get(f"{T}/segments/0/messages?offset={FILES}").json()["messages"]
        assert [each["value"] for each in found] == [0, 1, 2]
    done = seaweedq("verify", "t", "--url", broker.url)
    assert done.returncode == 0, done.stdout + done.stderr


def records(broker, kind):
    """The numbers of the segments that have a record of a kind."""

    async def read():
        coordination = EmbeddedCoordination(broker.data_dir / "coordination.db", SystemClock())
        found = [kind.parse(entry.key)[2] for entry in (await coordination.range(kind.prefix("t"))).entries]
        await coordination.close()
        return found

    return asyncio.run(read())


@pytest.mark.long
def test_killed_while_a_sealed_segment_is_removed(broker_process):
    """Each place ends a life of its own, and the next one goes on."""
    broker = broker_process()
    make_files(broker)
    with client_of(broker) as http:
        assert http.put(f"{T}/subscriptions/s", json={"start": "earliest"}).status_code == 201
        assert http.post(f"{T}/segments/0/split", json={}).status_code == 200
        wait_until(lambda: http.get(f"{T}/segments/0").json()["state"] == "sealed")
        for n in range(40):
            assert http.post(f"{T}/messages", json={"value": n, "key": f"k{n}"}).status_code == 200
        assert http.post(f"{T}/flush").status_code in (200, 204)
    broker.terminate()
    broker.start()
    with client_of(broker) as http:
        wait_until(lambda: http.get(T).json()["start_offsets"].get("0") == FILES)
    broker.kill()
    asyncio.run(let_the_grace_pass(broker))
    left = {"bury": ([0, 1, 2], []), "buried": ([1, 2], [0])}
    broker.start(env={"SEAWEEDQ_FAIL_AT": "retention.deleted"}, wait=False)
    broker.wait_gone()
    assert not list(broker.store.rglob("topics/t/segment=0/*.parquet"))
    asyncio.run(let_the_grace_pass(broker, forgotten=True))
    for place in left:
        broker.start(env={"SEAWEEDQ_FAIL_AT": f"retention.{place}"}, wait=False)
        broker.wait_gone()
        assert (records(broker, keys.SEGMENTS), records(broker, keys.TOMBSTONES)) == left[place]
    broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
    with client_of(broker) as http, Client(broker.url) as client:
        assert http.get(f"{T}/segments/0").json()["state"] == "removed"
        assert http.get(f"{T}/segments/0/messages?offset={FILES}").json()["successors"] == [1, 2]
        assert http.get(f"{T}/segments/0/messages?offset=0").status_code == 410
        values = sorted(int(row["value"]) for row in client.read_table("t").to_pylist())
        assert values == list(range(40))
        pulled = http.post(f"{T}/subscriptions/s/pull", json={"max_messages": 1000}).json()["messages"]
        assert sorted(each["value"] for each in pulled) == values
    done = seaweedq("verify", "t", "--url", broker.url)
    assert done.returncode == 0, done.stdout + done.stderr
