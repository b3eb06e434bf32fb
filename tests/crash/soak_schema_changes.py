"""Three brokers over etcd and S3: the leader is killed at each step of a change of a schema that it was asked for, or
that another has begun, while publishers of two versions publish; and two brokers are asked for a change at once."""

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

import httpx
import msgspec
import pyarrow.parquet as pq
import pytest

from tests.crash.test_schema_changes import AFTER, BEFORE, Publisher, found_of
from tests.support.chaos.cluster import PREFIX, Cluster, Member
from tests.support.chaos.store_server import client
from tests.support.history.load import until

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.soak]

CHANGE = {"schema": {"fields": AFTER}, "if_schema_id": 0}
STEPS = ("schema.decided", "schema.marked", "schema.counted")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), random.Random(0), 3, lease_s=2.0) as cluster:
        yield cluster


def ask(member: Member, method: str, path: str, **more: Any) -> httpx.Response:
    url = f"{member.process.url}/v1/topics/{path}"
    return httpx.request(method, url, timeout=30, trust_env=False, **more)


def taken(member: Member, method: str, path: str, **more: Any) -> httpx.Response:
    """Asked again while the answer is 503."""
    answers: list[httpx.Response] = []
    until(lambda: (answers.append(ask(member, method, path, **more)), answers[-1].status_code != 503)[1])
    return answers[-1]


def lead(cluster: Cluster, leader: Member, place: str) -> list[Member]:
    """Makes a member the leader, which a step kills. Returns the others, which are started again behind it."""
    others = [member for member in cluster.members if member is not leader]
    for member in cluster.members:
        member.kill()
    leader.process.start(env={"SEAWEEDQ_FAIL_AT": place})
    until(lambda: cluster.leader() is leader, what=f"{leader.name} to lead")
    for member in others:
        member.revive(env={"SEAWEEDQ_FAIL_AT": ""})
    leader.killed = False
    cluster.wait_healed()
    assert cluster.leader() is leader
    return others


def begun(cluster: Cluster, member: Member, topic: str) -> list[Publisher]:
    """Makes a topic with rows, and publishers of its first and its next version."""
    config = {"format": "typed", "schema": {"fields": BEFORE}, "key_field": "k"}
    made = taken(member, "PUT", topic, json=config)
    assert made.status_code == 201, made.text
    publishers = [Publisher(cluster.urls, version, topic) for version in (0, 1)]
    publishers[0].start()
    until(lambda: len(publishers[0].sent) > 10, what="rows of the first version")
    return publishers


def assert_sound(cluster: Cluster, member: Member, topic: str, publishers: list[Publisher]) -> None:
    """Each acknowledged row is there once with its values; each file has the columns of its version, which rises."""
    for publisher in publishers:
        publisher.stopping.set()
        publisher.join(60)
        assert not publisher.wrong
    expected = found_of(*publishers)
    for _ in range(2):  # from the journal, and from files
        rows: list[dict[str, Any]] = []
        for segment in taken(member, "GET", f"{topic}/segments").json()["segments"]:
            page = taken(member, "GET", f"{topic}/segments/{segment['id']}/messages?offset=0&limit=1000").json()
            rows += [message["value"] for message in page["messages"]]
        assert len(rows) == len(expected) < 1000
        assert {row["key"]: row for row in rows} == expected
        assert taken(member, "POST", f"{topic}/flush").status_code == 200
    store = client(cluster.s3.service.endpoint)
    folder = f"{PREFIX}/topics/{topic}/"
    names = [one["Key"] for one in store.list_objects_v2(Bucket=cluster.s3.bucket, Prefix=folder)["Contents"]]
    versions: dict[str, list[int]] = {}
    for name in sorted(names):
        parquet = pq.ParquetFile(BytesIO(store.get_object(Bucket=cluster.s3.bucket, Key=name)["Body"].read()))
        version = msgspec.json.decode(parquet.metadata.metadata[b"seaweedq"])["schema_id"]
        columns = [one for one in parquet.schema_arrow.names if not one.startswith("_")]
        assert columns == [one["name"] for one in (BEFORE, AFTER)[version]]
        versions.setdefault(name.rsplit("/", 1)[0], []).append(version)
    assert all(found == sorted(found) for found in versions.values())
    assert versions[f"{folder}segment=-1"] == [1]


@pytest.mark.parametrize("place", STEPS)
def test_a_leader_is_killed_amid_a_change_that_it_was_asked_for(cluster: Cluster, place: str) -> None:
    topic = f"asked-{place}"
    leader, *_ = cluster.members
    other, *_ = lead(cluster, leader, place)
    publishers = begun(cluster, other, topic)
    with pytest.raises(httpx.TransportError):
        ask(leader, "PATCH", topic, json=CHANGE)
    assert leader.process.wait_gone() == -signal.SIGKILL
    until(lambda: taken(other, "GET", topic).json()["schema_id"] == 1, what="the next leader to end it")
    finish(cluster, leader, other, topic, publishers)


@pytest.mark.parametrize("place", STEPS[1:])
def test_a_leader_is_killed_as_it_ends_a_change_of_another(cluster: Cluster, place: str) -> None:
    topic = f"ended-{place}"
    *_, leader = cluster.members
    asked, other = lead(cluster, leader, place)
    asked.kill()
    asked.process.start(env={"SEAWEEDQ_FAIL_AT": STEPS[0]})
    publishers = begun(cluster, other, topic)
    with pytest.raises(httpx.TransportError):
        ask(asked, "PATCH", topic, json=CHANGE)
    assert asked.process.wait_gone() == -signal.SIGKILL
    assert leader.process.wait_gone(30) == -signal.SIGKILL
    until(lambda: taken(other, "GET", topic).json()["schema_id"] == 1, what="the third broker to end it")
    asked.revive(env={"SEAWEEDQ_FAIL_AT": ""})
    finish(cluster, leader, other, topic, publishers)


def finish(cluster: Cluster, dead: Member, other: Member, topic: str, publishers: list[Publisher]) -> None:
    """A repeat changes nothing, publishers of both versions go on, and the dead one comes back."""
    again = taken(other, "PATCH", topic, json=CHANGE)
    assert (again.status_code, again.json()["schema_id"], again.json()["key_field"]) == (200, 1, "key")
    publishers[1].start()
    until(lambda: len(publishers[1].sent) > 20, what="rows of the next version")
    dead.revive(env={"SEAWEEDQ_FAIL_AT": ""})
    cluster.wait_healed()
    assert taken(dead, "GET", f"{topic}/schemas").json() == {"schema_ids": [0, 1]}
    assert_sound(cluster, other, topic, publishers)


def test_of_two_brokers_one_changes_a_schema_first(cluster: Cluster) -> None:
    one, two, _ = cluster.members
    publishers = begun(cluster, one, "race")
    fields: list[dict[str, Any]] = BEFORE
    with ThreadPoolExecutor(2) as pool:
        for version in range(12):
            wanted = [[*fields, {"name": f"{name}{version}", "type": "int"}] for name in "ab"]
            stated = {} if version % 3 == 2 else {"if_schema_id": version}
            bodies = [{"schema": {"fields": each}, **stated} for each in wanted]
            found = [*pool.map(lambda a: taken(a[0], "PATCH", "race", json=a[1]), zip((one, two), bodies, strict=True))]
            codes = [each.status_code for each in found]
            assert sorted(codes) == [200, 409], [each.text for each in found]
            lost = found[codes.index(409)].json()
            assert lost["type"].endswith("schema-incompatible"), lost
            fields = wanted[codes.index(200)]
            for member in cluster.members:
                shown = taken(member, "GET", f"race/schemas/{version + 1}").json()["schema"]["fields"]
                assert [each["name"] for each in shown] == [each["name"] for each in fields]
    assert taken(two, "GET", "race/schemas").json() == {"schema_ids": [*range(13)]}
    publishers[0].stopping.set()
    publishers[0].join(60)
    assert not publishers[0].wrong
    assert not [log for log in cluster.logs().values() if "Traceback" in log]
