"""Versions of a typed topic's schema in brokers: the order of a change, and each path of rows of two versions."""

import asyncio
import io
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET

from seaweedq.api.handlers import publish
from seaweedq.broker.topics import Topic, schema_versions
from seaweedq.client.core.calls import with_newest_schema
from seaweedq.client.core.effects import Reply
from seaweedq.client.core.table import table_schema
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Delete, Put, entries
from seaweedq.coordination.versioned import UNREADABLE_RECORDS
from seaweedq.rows.intake import Intake, TimeUnknown
from seaweedq.segments.evolution import History, aliases_of, next_version
from seaweedq.segments.layout import Format, Layout
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers

V0 = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "k", "required": True, "type": "string"},
        {"id": 2, "name": "n", "required": False, "type": "int"},
    ],
}
GROWN: list[dict[str, Any]] = [
    {"name": "n", "type": "long"},
    {"name": "k", "type": "string"},
    {"name": "x", "type": "double"},
]
V1 = {"type": "struct", "fields": GROWN}
V2 = {"type": "struct", "fields": [*GROWN, {"name": "y", "type": "string"}]}


def asking(cluster: InLoop, number: int) -> httpx.AsyncClient:
    """A client of one broker."""
    url = cluster.brokers[number].process.url
    return httpx.AsyncClient(transport=httpx.ASGITransport(cluster.apps[url]), base_url="http://localhost")


async def created(http: httpx.AsyncClient, **more: Any) -> None:
    config = {"format": "typed", "schema": V0, "key_field": "k", **more}
    assert (await http.put("/v1/topics/t", json=config)).status_code == 201


async def send(http: httpx.AsyncClient, *values: dict[str, Any]) -> httpx.Response:
    return await http.post("/v1/topics/t/messages", json={"messages": [{"value": value} for value in values]})


async def values(http: httpx.AsyncClient, segment: int = 0) -> list[dict[str, Any]]:
    answer = await http.get(f"/v1/topics/t/segments/{segment}/messages", params={"offset": 0, "limit": 1000})
    assert answer.status_code == 200, answer.text
    return [message["value"] for message in answer.json()["messages"]]


async def test_rows_of_all_versions_are_shown_in_the_newest(tmp_path: Path) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        assert (await send(http, {"k": "a", "n": 1})).status_code == 200
        await http.post("/v1/topics/t/flush")
        assert (await send(http, {"k": "b", "n": 2})).status_code == 200
        changed = await http.patch("/v1/topics/t", json={"schema": V1, "if_schema_id": 0})
        assert changed.status_code == 200, changed.text
        assert changed.json()["schema_id"] == 1
        assert (await send(http, {"k": "c", "n": 2**40, "x": 0.5})).status_code == 200
        assert (await send(http, {"k": "d", "n": 4})).status_code == 200  # by a publisher that knows no later version
        expected = [
            {"n": 1, "k": "a", "x": None},
            {"n": 2, "k": "b", "x": None},
            {"n": 2**40, "k": "c", "x": 0.5},
            {"n": 4, "k": "d", "x": None},
        ]
        assert await values(http) == expected
        await http.post("/v1/topics/t/flush")
        assert await values(http) == expected
        assert (await http.get("/v1/topics/t/schemas")).json() == {"schema_ids": [0, 1]}
        files = (await http.get("/v1/topics/t/files")).json()["files"]
        assert [(one["first_offset"], one["schema_id"]) for one in files] == [(0, 0), (1, 0), (2, 1)]
        assert "topics/t/segment=-1/99999998-0000000000000000.parquet" in store.objects


async def test_a_change_that_no_topic_takes_is_refused_with_all_reasons(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        worse = [{"id": 2, "name": "m", "type": "string"}, {"name": "y", "type": "int", "required": True}]
        refused = await http.patch("/v1/topics/t", json={"schema": {"type": "struct", "fields": worse}})
        assert refused.status_code == 409
        problem = refused.json()
        assert problem["type"].endswith("schema-incompatible")
        expected = [("k", 1, "string"), ("n", 2, "n"), ("n", 2, "int"), ("y", 3, None)]
        assert [(one["field"], one["id"], one["from"]) for one in problem["differences"]] == expected
        assert (await http.get("/v1/topics/t")).json()["schema"] == V0
        dry = await http.patch("/v1/topics/t?dry_run=true", json={"schema": V1})
        assert dry.json()["schema_id"] == 1
        assert [one["id"] for one in dry.json()["schema"]["fields"]] == [2, 1, 3]
        assert (await http.get("/v1/topics/t/schemas")).json() == {"schema_ids": [0]}
        stale = await http.patch("/v1/topics/t", json={"schema": V1, "if_schema_id": 4})
        assert stale.status_code == 409
        assert (stale.json()["type"].rpartition("/")[2], stale.json()["schema_id"]) == ("schema-incompatible", 0)
        assert "is 0, not 4" in stale.json()["detail"]


async def test_a_topic_is_created_without_ids_of_its_fields(tmp_path: Path) -> None:
    plain = {"fields": [{"name": "k", "type": "string"}, {"name": "n", "type": "int"}]}
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        made = await http.put("/v1/topics/t", json={"format": "typed", "schema": plain})
        assert [one["id"] for one in made.json()["schema"]["fields"]] == [1, 2]
        assert (await http.put("/v1/topics/t", json={"format": "typed", "schema": plain})).status_code == 200
        more = {"fields": [{"name": "x", "type": "int"}, *plain["fields"]]}
        grown = await http.patch("/v1/topics/t", json={"schema": more})
        assert [one["id"] for one in grown.json()["schema"]["fields"]] == [3, 1, 2]


async def test_a_topic_is_ensured_with_any_version_of_its_schema(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        first = await http.patch("/v1/topics/t", json={"schema": V1})
        again = await http.patch("/v1/topics/t", json={"schema": V1, "if_schema_id": 0})
        assert (first.status_code, again.status_code, again.json()["schema_id"]) == (200, 200, 1)
        for schema in (V0, first.json()["schema"], {**first.json()["schema"], "schema-id": 0}):
            ensured = await http.put("/v1/topics/t", json={"format": "typed", "schema": schema})
            assert ensured.status_code == 200, ensured.text
            assert ensured.json()["schema_id"] == 1
        other = {**V0, "fields": [V0["fields"][0]]}
        assert (await http.put("/v1/topics/t", json={"schema": other})).status_code == 409
        assert (await http.get("/v1/topics/t/schemas/0")).json() == {"schema_id": 0, "schema": V0, "warnings": []}
        assert (await http.get("/v1/topics/t/schemas/2")).status_code == 404


async def test_a_topic_says_which_changes_it_takes(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as http, asking(cluster, 1) as other:
        await created(http, compatibility="full")
        assert (await http.get("/v1/topics/t")).json()["compatibility"] == "full"
        assert (await http.put("/v1/topics/t", json={"compatibility": "backward"})).status_code == 409
        refused = await other.patch("/v1/topics/t", json={"schema": V1})
        assert refused.status_code == 409, refused.text
        assert [(one["field"], one["id"]) for one in refused.json()["differences"]] == [("n", 2), ("k", 1)]
        assert (await http.patch("/v1/topics/t", json={"compatibility": None})).json()["compatibility"] == "backward"
        assert (await other.patch("/v1/topics/t", json={"schema": V1})).json()["schema_id"] == 1
        assert (await http.patch("/v1/topics/t", json={"compatibility": "forward"})).status_code == 200
        assert (await http.put("/v1/topics/t", json={"compatibility": "forward"})).status_code == 200
        refused = await other.patch("/v1/topics/t", json={"schema": V2})
        assert [(one["field"], one["from"]) for one in refused.json()["differences"]] == [
            ("n", "int"),
            ("k", "required"),
        ]
        assert (await http.patch("/v1/topics/t", json={"compatibility": "none"})).json()["compatibility"] == "none"
        assert (await http.patch("/v1/topics/t", json={"schema": V2})).json()["schema_id"] == 2
        assert (await http.put("/v1/topics/plain", json={"compatibility": "full"})).status_code == 422
        assert (await http.put("/v1/topics/plain", json={})).json()["compatibility"] is None


class Stopped(Exception):
    """A broker stops where this is raised."""


def stop(_: str) -> None:
    raise Stopped


@pytest.mark.parametrize("step", ["schema.decided", "schema.marked"])
async def test_a_change_that_was_broken_off_is_ended(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reach(name: str) -> None:
        if name == step:
            raise Stopped

    store = MemoryStore()
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        topic = inside.topic(cluster.brokers[0], "t")
        with monkeypatch.context() as patch:
            patch.setattr(schema_versions, "reach", reach)
            with pytest.raises(Stopped):
                await cluster.brokers[0].schemas.change(topic, V1, None)
        assert topic.record.pending == 1
        assert (await send(http, {"k": "a", "n": 2**40})).status_code == 422, (
            "no row is taken before the version counts"
        )
        assert (await http.get("/v1/topics/t/schemas")).json() == {"schema_ids": [0]}
        put = {name: bytes(file) for name, file in store.objects.items() if "segment=-1" in name}
        await cluster.brokers[0].schemas.finish(topic)
        assert {name: bytes(store.objects[name]) for name in put} == put, "it is not put again"
        assert (topic.record.pending, topic.layout.schema_id) == (UNSET, 1)
        assert (await send(http, {"k": "a", "n": 2**40})).status_code == 200
        assert len([name for name in store.objects if "segment=-1" in name]) == 1


async def test_a_pending_version_whose_record_was_lost_does_not_come_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        topic, schemas = inside.topic(cluster.brokers[0], "t"), cluster.brokers[0].schemas
        with monkeypatch.context() as patch:
            patch.setattr(schema_versions, "reach", stop)
            with pytest.raises(Stopped):
                await schemas.change(topic, V1, None)
        await cluster.coordination.commit([], [Delete(keys.SCHEMAS.key("t", topic.record.incarnation, 1))])
        await schemas.finish(topic)
        assert (topic.record.pending, topic.layout.schema_id) == (UNSET, 0)
        assert (await http.patch("/v1/topics/t", json={"schema": V2})).json()["schema_id"] == 1


async def test_of_two_changes_at_once_one_is_decided_first(tmp_path: Path) -> None:
    other = {"type": "struct", "fields": [*V0["fields"], {"name": "y", "type": "string"}]}
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        changes = one.patch("/v1/topics/t", json={"schema": V1}), two.patch("/v1/topics/t", json={"schema": other})
        answers = await asyncio.gather(*changes)
        assert sorted(answer.status_code for answer in answers) == [200, 409]
        won = next(answer.json()["schema"] for answer in answers if answer.status_code == 200)
        assert (await one.get("/v1/topics/t/schemas")).json() == {"schema_ids": [0, 1]}
        assert (await two.get("/v1/topics/t/schemas/1")).json()["schema"] == won


async def test_a_broker_whose_watch_lags_answers_by_the_newest_version(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        letters = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await one.put("/v1/topics/t/subscriptions/s", json=letters)).status_code == 201
        for topic in ("t", "dead"):
            await until(lambda name=topic: inside.catalog(cluster.brokers[1]).get(name))
        await deaf(cluster.brokers[1])
        for topic in ("dead", "t"):
            assert (await one.patch(f"/v1/topics/{topic}", json={"schema": V1})).status_code == 200
        assert inside.topic(cluster.brokers[1], "t").layout.schema_id == 0
        assert (await two.get("/v1/topics/t/schemas")).json() == {"schema_ids": [0]}
        assert (await two.get("/v1/topics/t/schemas/1")).status_code == 200
        assert (await one.patch("/v1/topics/dead", json={"schema": V2})).status_code == 200
        dry = await two.patch("/v1/topics/t?dry_run=true", json={"schema": V2, "if_schema_id": 1})
        assert (dry.status_code, dry.json().get("schema_id")) == (200, 2), dry.text
        v3 = {"fields": [*V2["fields"], {"name": "z", "type": "int"}]}
        for topic, schema in (("t", V2), ("dead", v3)):
            assert (await one.patch(f"/v1/topics/{topic}", json={"schema": schema})).status_code == 200
        changed = await two.patch("/v1/topics/t", json={"schema": v3, "if_schema_id": 2})
        assert (changed.status_code, changed.json().get("schema_id")) == (200, 3), changed.text


async def test_a_reader_gets_the_newest_version_from_a_broker_whose_watch_lags(tmp_path: Path) -> None:
    """As Spark's read_topic does, whose files have the new names."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        await until(lambda: inside.catalog(cluster.brokers[1]).get("t"))
        await deaf(cluster.brokers[1])
        renamed = {"fields": [{"id": 1, **GROWN[1]}, {"id": 2, "name": "m", "type": "long"}]}
        for version, schema in enumerate((V1, {"fields": [*renamed["fields"], GROWN[2]]})):
            body = {"schema": schema, "if_schema_id": version}
            assert (await one.patch("/v1/topics/t", json=body)).status_code == 200
        facts = (await two.get("/v1/topics/t")).json()
        assert facts["schema_id"] == 0, "it lags"
        steps, answer = with_newest_schema("t", facts), None
        while True:
            try:
                asked: Any = steps.send(answer)
            except StopIteration as end:
                found = end.value
                break
            told = await two.request(asked.method, asked.path)
            answer = Reply(told.status_code, told.headers, told.content)
        assert found["schema_id"] == 2
        assert aliases_of(found["schema"]) == {"m": ["n"]}
        assert table_schema(found).names[-4:-1] == ["k", "m", "x"]


async def test_a_publish_is_refused_by_the_newest_version_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watch brings one version between the refusal and the look, and is behind the next."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        await send(two, {"k": "a", "n": 1})
        await deaf(cluster.brokers[1])
        assert (await one.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        first = await cluster.coordination.get(keys.TOPICS.key("t"))
        assert first
        assert (await one.patch("/v1/topics/t", json={"schema": V2})).status_code == 200
        schemas, is_later = cluster.brokers[1].schemas, cluster.brokers[1].schemas.is_later

        async def watched(topic: Topic, known: Layout) -> bool:
            inside.catalog(cluster.brokers[1]).apply([Change(first.key, first.value, first.revision)])
            return await is_later(topic, known)

        monkeypatch.setattr(schemas, "is_later", watched)
        sent = await send(two, {"k": "z", "y": "of version 2"})
        assert sent.status_code == 200, sent.text


def held_back(patch: pytest.MonkeyPatch, target: Any, name: str) -> tuple[asyncio.Event, asyncio.Event]:
    """Has a coroutine wait before it ends, once: an event that it has come there, and one that lets it go on."""
    come, go, whole = asyncio.Event(), asyncio.Event(), getattr(target, name)

    async def held(*given: Any, **named: Any) -> Any:
        found = await whole(*given, **named)
        come.set()
        await go.wait()
        return found

    patch.setattr(target, name, held)
    return come, go


async def test_a_version_that_was_checked_too_early_is_checked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"type": "struct", "fields": [*V0["fields"], {"name": "y", "type": "string"}]}
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        topic = inside.topic(cluster.brokers[0], "t")
        come, go = held_back(monkeypatch, cluster.brokers[0].schemas, "_check_dead_letters")
        late = asyncio.create_task(one.patch("/v1/topics/t", json={"schema": V1}))
        await come.wait()
        won = await two.patch("/v1/topics/t", json={"schema": other})
        assert won.status_code == 200, won.text
        await until(lambda: topic.layout.schema_id == 1)
        go.set()
        assert (await late).status_code == 409, "it has no field `y`"
        assert (await one.get("/v1/topics/t/schemas/1")).json()["schema"] == won.json()["schema"]


async def test_who_ends_a_change_late_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        topic = inside.topic(cluster.brokers[0], "t")
        come, go = held_back(monkeypatch, cluster.brokers[0].context.entries, "put_marker")
        late = asyncio.create_task(one.patch("/v1/topics/t", json={"schema": V1}))
        await come.wait()
        for change in ({"schema": V2}, {"flush": {"max_age_s": 7}}):
            changed = await two.patch("/v1/topics/t", json=change)
            assert changed.status_code == 200, changed.text
        await until(lambda: topic.layout.schema_id == 2 and topic.record.config.flush.max_age_s == 7)
        go.set()
        assert (await late).status_code == 200
        now = (await two.get("/v1/topics/t")).json()
        assert (now["schema_id"], now["flush"]["max_age_s"]) == (2, 7)


async def test_a_broker_whose_watch_lags_takes_and_shows_the_newest_version(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        await send(two, *({"k": str(n), "n": n} for n in range(20)))
        behind = inside.topic(cluster.brokers[1], "t")
        await deaf(cluster.brokers[1])
        assert (await one.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        assert behind.layout.schema_id == 0
        sent = await send(one, *({"k": str(n), "n": 2**40, "x": 1.5} for n in range(20)))  # forwarded to the other one
        assert sent.status_code == 200, sent.text
        assert behind.layout.schema_id == 1, "its owner has read the record"
        found = [value for number in range(4) for value in await values(two, number)]
        assert [value["x"] for value in found].count(1.5) == 20
        assert (await one.patch("/v1/topics/t", json={"schema": V2})).status_code == 200
        assert behind.layout.schema_id == 1
        sent = await send(two, {"k": "z", "y": "of version 2"})
        assert sent.status_code == 200, "a publish that does not fit has the record read"
        refused = [await send(two, {"k": "z", "unknown": 1}) for _ in range(2)]
        assert [answer.status_code for answer in refused] == [422, 422]


async def test_a_recovery_brings_rows_of_each_version_into_files_of_their_own(tmp_path: Path) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 2, store) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        (owner,) = {inside.catalog(cluster.brokers[0]).segments(inside.topic(cluster.brokers[0], "t"))[0].owner}
        dead = next(broker for broker in cluster.brokers if broker.context.broker == owner)
        await send(two, {"k": "a", "n": 1}, {"k": "b", "n": 2})
        assert (await two.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        await send(two, {"k": "c", "n": 2**40})
        await cluster.crash(dead)
        left, http = next((b, h) for b, h in zip(cluster.brokers, (one, two), strict=True) if b is not dead)
        await until(lambda: inside.catalog(left).segments(inside.topic(left, "t"))[0].owner == left.context.broker)
        assert [value["n"] for value in await values(http)] == [1, 2, 2**40]
        files = (await http.get("/v1/topics/t/files")).json()["files"]
        assert [(one["first_offset"], one["schema_id"]) for one in files] == [(0, 0), (2, 1)]


X = {"name": "x", "type": "double"}


async def test_a_dropped_field_is_no_longer_shown_and_never_returns(tmp_path: Path) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        assert (await http.patch("/v1/topics/t", json={"schema": V1})).json()["warnings"] == []
        assert (await send(http, {"k": "a", "n": 1, "x": 0.5})).status_code == 200
        await http.post("/v1/topics/t/flush")
        assert (await send(http, {"k": "b", "n": 2, "x": 1.5})).status_code == 200
        less = {"fields": GROWN[:2]}
        checked = await http.patch("/v1/topics/t?dry_run=true", json={"schema": less, "if_schema_id": 1})
        stale = await http.patch("/v1/topics/t", json={"schema": less})
        assert stale.status_code == 409, "it may be of a program that does not know the field"
        assert "to drop the field" in stale.json()["detail"]
        changed = await http.patch("/v1/topics/t", json={"schema": less, "if_schema_id": 1})
        assert changed.status_code == 200, changed.text
        again = await http.patch("/v1/topics/t", json={"schema": less, "if_schema_id": 1})
        assert len(changed.json()["warnings"]) == 2
        assert all("'x' is dropped" in warning for warning in changed.json()["warnings"])
        assert checked.json()["warnings"] == again.json()["warnings"] == changed.json()["warnings"]
        assert (await http.get("/v1/topics/t/schemas/2")).json()["warnings"] == changed.json()["warnings"]
        assert "warnings" not in (await http.get("/v1/topics/t")).json()
        assert (await send(http, {"k": "c", "n": 3, "x": 1.5})).status_code == 422
        assert (await send(http, {"k": "c", "n": 3})).status_code == 200
        shown = [{"n": 1, "k": "a"}, {"n": 2, "k": "b"}, {"n": 3, "k": "c"}]
        assert await values(http) == shown
        await http.post("/v1/topics/t/flush")
        assert await values(http) == shown
        kept = [name for name in store.objects if "segment=0" in name]
        tables = [pq.read_table(io.BytesIO(bytes(store.objects[name]))) for name in sorted(kept)]
        assert [table["x"].to_pylist() for table in tables if "x" in table.column_names and len(table)] == [
            [0.5],
            [1.5],
        ]
        for back, rule in (
            (X, "had this name"),
            ({**X, "id": 3}, "cannot return"),
            ({**X, "name": "X"}, "had this name"),
        ):
            refused = await http.patch("/v1/topics/t", json={"schema": {"fields": [*GROWN[:2], back]}})
            assert refused.status_code == 409, refused.text
            assert rule in refused.json()["detail"]
        more = await http.patch("/v1/topics/t", json={"schema": {"fields": [*GROWN[:2], {"name": "z", "type": "int"}]}})
        assert [one["id"] for one in more.json()["schema"]["fields"]] == [2, 1, 4], "an id is never given out again"
        refused = await http.patch("/v1/topics/t", json={"schema": {"fields": GROWN[:1]}, "if_schema_id": 3})
        assert "key field" in refused.json()["detail"]
        for earlier in (V0, V1, less):  # programs create their topic at each start
            ensured = await http.put("/v1/topics/t", json={"format": "typed", "schema": earlier})
            assert ensured.status_code == 200, ensured.text


NAMED = [{"id": 2, "name": "number", "type": "long"}, {"id": 1, "name": "key", "type": "string"}]


def arrow_of(**columns: Any) -> bytes:
    """A stream of one batch."""
    rows, sink = pa.record_batch(columns), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


async def test_a_renamed_field_has_its_values_and_its_earlier_name_is_refused(tmp_path: Path) -> None:
    store, messages = MemoryStore(), "/v1/topics/t/messages"
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http, initial_segments=4)
        early = {"messages": [{"value": {"k": "a", "n": 1}}]}
        producer = {"Producer-Id": "p", "Producer-Sequence": "0"}
        first = (await http.post(messages, json=early, headers=producer)).json()
        await http.post("/v1/topics/t/flush")
        second = (await http.post(messages, json={"value": {"k": "a", "n": 2}})).json()
        change = {"schema": {"fields": [{**NAMED[0], "aliases": ["x"]}, NAMED[1]]}}
        refused = await http.patch("/v1/topics/t", json=change)
        assert (refused.status_code, len(refused.json()["differences"])) == (409, 2)
        await http.patch("/v1/topics/t", json={"compatibility": "forward"})
        narrow = [{**NAMED[0], "type": "int"}, {**NAMED[1], "required": True}]
        refused = await http.patch("/v1/topics/t", json={"schema": {"fields": narrow}, "if_schema_id": 0})
        rules = [one["rule"] for one in refused.json()["differences"]]
        assert ["earlier readers expect the old name" in rule for rule in rules] == [True, True]
        await http.patch("/v1/topics/t", json={"compatibility": None})
        checked = await http.patch("/v1/topics/t?dry_run=true", json={**change, "if_schema_id": 0})
        changed = await http.patch("/v1/topics/t", json={**change, "if_schema_id": 0})
        assert changed.status_code == 200, changed.text
        facts = changed.json()
        assert facts["warnings"] == checked.json()["warnings"]
        assert [one["aliases"] for one in facts["schema"]["fields"]] == [["n"], ["k"]]
        assert (facts["key_field"], len(facts["warnings"])) == ("key", 4)
        third = await http.post(messages, json={"value": {"key": "a", "number": 3}})
        fourth = await http.post(messages, json={"value": {"k": "a", "n": 4}}, headers={"Schema-Id": "0"})
        (segment,) = {one["segments"][0]["segment"] for one in (first, second, third.json(), fourth.json())}
        shown = [{"number": number, "key": "a"} for number in (1, 2, 3, 4)]
        assert await values(http, segment) == shown
        repeated = await http.post(messages, json=early, headers=producer)
        assert repeated.json()["duplicate"], repeated.text
        hint = "the field 'n' was renamed to 'number'; send 'number', or an earlier version's Schema-Id"
        old = {"key": "b", "n": 5}
        arrow = {"Content-Type": "application/vnd.apache.arrow.stream"}
        for sent in (
            {"json": {"value": old}},
            {"json": {"messages": [{"value": old}]}},
            {"content": b'{"value":{"key":"b","n":5}}\n', "headers": {"Content-Type": "application/x-ndjson"}},
            {"content": arrow_of(key=pa.array(["b"]), n=pa.array([5])), "headers": arrow},
        ):
            told = await http.post(messages, **sent)
            assert (told.status_code, told.json()["hint"]) == (422, hint), told.text
        columns = {"k": pa.array(["a"]), "n": pa.array([5], pa.int32())}
        sent = await http.post(messages, content=arrow_of(**columns), headers={**arrow, "Schema-Id": "0"})
        assert sent.status_code == 200, sent.text
        await http.post("/v1/topics/t/flush")
        assert await values(http, segment) == [*shown, {"number": 5, "key": "a"}]
        answer = await http.get(
            f"/v1/topics/t/segments/{segment}/messages?offset=0", headers={"Accept": arrow["Content-Type"]}
        )
        assert pa.ipc.open_stream(answer.content).read_all()["number"].to_pylist() == [1, 2, 3, 4, 5]
        for earlier in (V0, {**V0, "fields": NAMED}):  # programs create their topic at each start
            key = next(one["name"] for one in earlier["fields"] if one["id"] == 1)
            ensured = await http.put("/v1/topics/t", json={"schema": earlier, "key_field": key})
            assert ensured.status_code == 200, ensured.text
        assert (await http.put("/v1/topics/t", json={"schema": V0, "key_field": "n"})).status_code == 409
        for again in ({"name": "n", "type": "int"}, {"name": "N", "type": "int"}, {"name": "K", "type": "int"}):
            refused = await http.patch("/v1/topics/t", json={"schema": {"fields": [*NAMED, again]}, "if_schema_id": 1})
            assert "had this name" in refused.json()["detail"]
        back = [{**NAMED[0], "name": "n"}, NAMED[1]]
        renamed = await http.patch("/v1/topics/t", json={"schema": {"fields": back}, "if_schema_id": 1})
        assert renamed.json()["schema"]["fields"][0]["aliases"] == ["number"], renamed.text
        assert await values(http, segment) == [{"n": number, "key": "a"} for number in (1, 2, 3, 4, 5)]


async def test_rows_under_an_earlier_name_are_handed_on_and_keep_their_values(tmp_path: Path) -> None:
    """By a broker whose watch lags, to itself and to one that knows better."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        await until(lambda: inside.catalog(cluster.brokers[1]).get("t"))
        await deaf(cluster.brokers[1])
        renamed = await one.patch("/v1/topics/t", json={"schema": {"fields": NAMED}, "if_schema_id": 0})
        assert renamed.status_code == 200, renamed.text
        assert (await send(two, *({"k": f"k{n}", "n": n} for n in range(20)))).status_code == 200
        await inside.catalog(cluster.brokers[1]).refresh("t")
        for _ in range(2):
            found = [value for number in range(4) for value in await values(one, number)]
            assert sorted(value["number"] for value in found) == [*range(20)]
            assert all(value["key"] == f"k{value['number']}" for value in found)
            await one.post("/v1/topics/t/flush")


async def test_a_renamed_field_of_dead_letters_keeps_its_values(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        wanted = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await http.put("/v1/topics/t/subscriptions/s", json=wanted)).status_code == 201
        rename = {"schema": {"fields": [{"id": 1, "name": "k"}, {"id": 2, "name": "number", "required": False}]}}
        for one, kind in zip(rename["schema"]["fields"], ("string", "int"), strict=True):
            one |= {"type": kind, "required": one["name"] == "k"}
        for name in ("t", "dead"):
            refused = await http.patch(f"/v1/topics/{name}", json={**rename, "if_schema_id": 0})
            assert (refused.status_code, refused.json()["differences"][0]["id"]) == (409, None), refused.text
        more = {"fields": [*V0["fields"], {"name": "number", "type": "int"}]}
        assert (await http.patch("/v1/topics/dead", json={"schema": more})).status_code == 200
        await send(http, {"k": "a", "n": 7})
        assert (await http.patch("/v1/topics/t", json={**rename, "if_schema_id": 0})).status_code == 200
        pulled = (await http.post("/v1/topics/t/subscriptions/s/pull", json={"max_messages": 1})).json()
        assert pulled["messages"][0]["value"] == {"k": "a", "number": 7}
        nacked = {"lease": pulled["lease"], "ids": [pulled["messages"][0]["id"]], "reject": True}
        await http.post("/v1/topics/t/subscriptions/s/nack", json=nacked)
        found: list[Any] = []
        while not found:
            await asyncio.sleep(0.05)
            answer = await http.get("/v1/topics/dead/segments/0/messages", params={"offset": 0})
            found = answer.json().get("messages", [])
        assert found[0]["value"] == {"k": "a", "n": None, "number": 7}


async def test_a_letter_keeps_its_values_if_schemas_change_amid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field is renamed in the source, and its earlier name dropped in the topic of the letters, behind the read."""
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        wanted = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await http.put("/v1/topics/t/subscriptions/s", json=wanted)).status_code == 201
        more = {"fields": [*V0["fields"], {"name": "number", "type": "int"}]}
        assert (await http.patch("/v1/topics/dead", json={"schema": more})).status_code == 200
        come, go = held_back(monkeypatch, inside.dead_letters(cluster.brokers[0]), "_read")
        await send(http, {"k": "a", "n": 7})
        pulled = (await http.post("/v1/topics/t/subscriptions/s/pull", json={"max_messages": 1})).json()
        nacked = {"lease": pulled["lease"], "ids": [pulled["messages"][0]["id"]], "reject": True}
        await http.post("/v1/topics/t/subscriptions/s/nack", json=nacked)
        await come.wait()
        renamed = {"fields": [V0["fields"][0], {**V0["fields"][1], "name": "number"}]}
        dropped = {"fields": [V0["fields"][0], {"name": "number", "type": "int"}]}
        for name, schema, version in (("t", renamed, 0), ("dead", dropped, 1)):
            changed = await http.patch(f"/v1/topics/{name}", json={"schema": schema, "if_schema_id": version})
            assert changed.status_code == 200, changed.text
        go.set()
        found: list[Any] = []
        while not found:
            await asyncio.sleep(0.05)
            answer = await http.get("/v1/topics/dead/segments/0/messages", params={"offset": 0})
            found = answer.json().get("messages", [])
        assert [one["value"] for one in found] == [{"k": "a", "number": 7}]


async def test_no_value_of_a_dropped_field_is_lost_on_its_way(tmp_path: Path) -> None:
    """A broker whose watch lags takes the field, and hands the rows on to one that knows better; or it owns rows."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        assert (await one.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        behind = inside.topic(cluster.brokers[1], "t")
        await until(lambda: behind.layout.schema_id == 1)
        catalog = inside.catalog(cluster.brokers[0])
        owners = {n: record.owner for n, record in catalog.segments(inside.topic(cluster.brokers[0], "t")).items()}
        assert len({*owners.values()}) == 2
        for key in range(20):
            early = {"messages": [{"value": {"k": f"e{key}", "x": 0.25}}]}
            producer = {"Producer-Id": f"p{key}", "Producer-Sequence": "0"}
            sent = (await one.post("/v1/topics/t/messages", json=early, headers=producer)).json()
            if owners[sent["segments"][0]["segment"]] == cluster.brokers[0].context.broker:
                break
        await deaf(cluster.brokers[1])
        assert (
            await one.patch("/v1/topics/t", json={"schema": {"fields": GROWN[:2]}, "if_schema_id": 1})
        ).status_code == 200
        assert behind.layout.schema_id == 1
        answers = [await send(two, {"k": f"x{n}", "x": 0.5}) for n in range(20)]
        refused = [answer.json() for answer in answers if answer.status_code == 409]
        assert {answer.status_code for answer in answers} == {200, 409}
        assert {(one["type"].rpartition("/")[2], one["schema_id"], one["field"]) for one in refused} == {
            ("schema-mismatch", 2, "x")
        }
        assert (await send(two, *({"k": f"y{n}", "n": n} for n in range(20)))).status_code == 200, "no value is lost"
        repeated = await one.post("/v1/topics/t/messages", json=early, headers=producer)
        assert repeated.json()["duplicate"], repeated.text
        await inside.catalog(cluster.brokers[1]).refresh("t")
        found = [value for number in range(4) for value in await values(one, number)]
        assert len(found) == key + 1 + 20 + 20 - len(refused)
        assert [value for value in found if value.keys() != {"n", "k"}] == []


async def test_a_publish_names_the_version_of_its_messages(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        assert (await one.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        behind = inside.topic(cluster.brokers[1], "t")
        await until(lambda: behind.layout.schema_id == 1)

        async def pinned(http: httpx.AsyncClient, version: str, topic: str = "t", **value: Any) -> httpx.Response:
            headers, body = {"Schema-Id": version}, {"messages": [{"value": {"k": f"k{n}", **value}} for n in range(8)]}
            return await http.post(f"/v1/topics/{topic}/messages", json=body, headers=headers)

        assert (await pinned(one, "0", n=1)).status_code == 200
        assert (await pinned(two, "0", n=2**40)).status_code == 422, "version 0 has an int"
        assert (await pinned(two, "1", n=2**40, x=None)).status_code == 200
        none = await pinned(two, "2", n=1)
        assert (none.status_code, none.json()["type"].rpartition("/")[2]) == (409, "schema-mismatch")
        assert none.json()["schema_id"] == 1
        await deaf(cluster.brokers[1])
        less = {"fields": GROWN[:2]}
        assert (await one.patch("/v1/topics/t", json={"schema": less, "if_schema_id": 1})).status_code == 200
        assert (await pinned(two, "2", n=1)).status_code == 200, "its watch lags"
        for http in (one, two):
            assert (await pinned(http, "1", n=1, x=None)).status_code == 200, "no value is lost"
            refused = await pinned(http, "1", n=1, x=0.5)
            assert (refused.status_code, refused.json()["schema_id"], refused.json()["field"]) == (409, 2, "x")
        assert (await pinned(one, "-1", n=1)).status_code == 422
        await one.put("/v1/topics/plain", json={})
        assert (await pinned(one, "0", "plain")).status_code == 422
        found = [value for number in range(4) for value in await values(one, number)]
        assert sorted(value["n"] for value in found) == sorted([1] * 8 * 4 + [2**40] * 8)
        assert all(value.keys() == {"n", "k"} for value in found)


async def test_a_topic_of_dead_letters_keeps_the_fields_of_its_letters(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as http, asking(cluster, 1) as other:
        await created(http)
        wanted = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await http.put("/v1/topics/t/subscriptions/s", json=wanted)).status_code == 201
        less = {"fields": V0["fields"][:1]}
        refused = await http.patch("/v1/topics/dead", json={"schema": less, "if_schema_id": 0})
        assert refused.status_code == 409, "its letters would wait for ever"
        assert "'s' of topic 't'" in refused.json()["differences"][0]["rule"]
        await until(lambda: inside.catalog(cluster.brokers[1]).get("dead"))
        await deaf(cluster.brokers[1])
        for name, asked in (("t", http), ("dead", other)):
            dropped = await asked.patch(f"/v1/topics/{name}", json={"schema": less, "if_schema_id": 0})
            assert dropped.status_code == 200, dropped.text


@pytest.mark.parametrize("late", ["t", "dead"])
async def test_of_a_new_field_and_its_drop_for_dead_letters_one_is_refused(
    tmp_path: Path, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both were checked while the other had not begun."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        wanted = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await one.put("/v1/topics/t/subscriptions/s", json=wanted)).status_code == 201
        assert (await one.patch("/v1/topics/dead", json={"schema": V1})).status_code == 200
        changes = {
            "t": {"schema": V1, "if_schema_id": 0},
            "dead": {"schema": {"fields": GROWN[:2]}, "if_schema_id": 1},
        }
        step = "_check_dead_letters" if late == "t" else "_check_sources"
        come, go = held_back(monkeypatch, cluster.brokers[0].schemas, step)
        waiting = asyncio.create_task(one.patch(f"/v1/topics/{late}", json=changes.pop(late)))
        await come.wait()
        ((other, change),) = changes.items()
        assert (await two.patch(f"/v1/topics/{other}", json=change)).status_code == 200
        go.set()
        answer = await waiting
        assert (answer.status_code, answer.json()["differences"][0]["field"]) == (409, "x")


@pytest.mark.parametrize("changed", ["t", "dead"])
@pytest.mark.parametrize("late", ["checked", "claimed", "changed", "the schema"])
async def test_a_subscription_and_a_schema_change_exclude_each_other(
    tmp_path: Path, changed: str, late: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two is held back behind each step, while the other is made: else letters would wait for ever."""
    less = {"schema": {"fields": V0["fields"][:1]}, "if_schema_id": 0}
    change = {"t": {"schema": V1}, "dead": less}[changed]
    plain = {"start": "earliest", "mode": "shared"}
    letters = {"max_attempts": 1, "dead_letter_topic": "dead"}
    path = "/v1/topics/t/subscriptions/s"
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        assert (await one.put("/v1/topics/dead", json={"format": "typed", "schema": V0})).status_code == 201
        if late == "changed":
            assert (await one.put(path, json=plain)).status_code == 201
        held: list[tuple[asyncio.Event, asyncio.Event]] = []
        for broker in cluster.brokers:  # either may be the dispatcher
            step = "_check_dead_letters" if changed == "t" else "_check_sources"
            at = {"claimed": (broker.subscribing.assignment, "claim"), "the schema": (broker.schemas, step)}
            held.append(held_back(monkeypatch, *at.get(late, (broker.dead_lettering.topics, "check"))))
        asks = [
            lambda: two.patch(path, json=letters) if late == "changed" else two.put(path, json=plain | letters),
            lambda: one.patch(f"/v1/topics/{changed}", json=change),
        ]
        first, second = reversed(asks) if late == "the schema" else asks
        waiting = asyncio.create_task(first())
        await until(lambda: any(come.is_set() for come, _ in held))
        won = await second()
        assert won.status_code in (200, 201), won.text
        for _, go in held:
            go.set()
        lost = await waiting
        assert lost.status_code == (409 if late == "the schema" else 422), lost.text
        assert "dead" in lost.text


async def test_a_topic_created_anew_has_no_marker_of_the_one_before(tmp_path: Path) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        assert (await http.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        (marker,) = [name for name in store.objects if "segment=-1" in name]
        late = bytes(store.objects[marker])
        assert (await http.delete("/v1/topics/t")).status_code == 204
        assert not [name for name in store.objects if name.startswith("topics/t/")]
        await created(http)
        assert (await http.patch("/v1/topics/t", json={"schema": V2})).status_code == 200
        await store.create(marker, late)  # by a broker that was cut off
        await inside.topic_admin(cluster.brokers[0]).sweep()
        assert [name for name in store.objects if "segment=-1" in name] == [marker.replace("0.parquet", "1.parquet")]
        left = await cluster.coordination.range(keys.SCHEMAS.prefix("t", 0))
        assert not left.entries


async def test_dead_letters_go_to_a_topic_that_holds_them(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        wanted = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await http.put("/v1/topics/t/subscriptions/s", json=wanted)).status_code == 201
        refused = await http.patch("/v1/topics/t", json={"schema": V1})
        assert refused.status_code == 409, "its letters would wait for ever"
        (difference,) = refused.json()["differences"]
        told = "the dead-letter topic 'dead' has the type int for the field, which cannot hold long; change the schema"
        assert told in difference["rule"]
        assert (difference["field"], difference["from"], difference["to"]) == ("n", "int", "long")
        assert (await http.patch("/v1/topics/dead", json={"schema": V2})).status_code == 200
        await send(http, {"k": "a", "n": 7})
        assert (await http.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        pulled = (await http.post("/v1/topics/t/subscriptions/s/pull", json={"max_messages": 1})).json()
        ids = [message["id"] for message in pulled["messages"]]
        nacked = {"lease": pulled["lease"], "ids": ids, "reject": True}
        await http.post("/v1/topics/t/subscriptions/s/nack", json=nacked)
        found: list[Any] = []
        while not found:
            await asyncio.sleep(0.05)
            answer = await http.get("/v1/topics/dead/segments/0/messages", params={"offset": 0})
            found = answer.json().get("messages", [])
        assert found[0]["value"] == {"n": 7, "k": "a", "x": None, "y": None}


async def test_more_dead_letters_than_a_transaction_compares_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        wanted = {"start": "earliest", "mode": "shared", "max_attempts": 1, "dead_letter_topic": "dead"}
        assert (await http.put("/v1/topics/t/subscriptions/s", json=wanted)).status_code == 201
        assert (await http.patch("/v1/topics/dead", json={"schema": V2})).status_code == 200
        monkeypatch.setattr(schema_versions, "MAX_BESIDE", 0)
        refused = await http.patch("/v1/topics/t", json={"schema": V1})
        assert refused.status_code == 409
        told = "shares dead letters with 1 topics, and a change of its schema is checked against at most 0"
        assert told in refused.json()["detail"]
        assert (await http.get("/v1/topics/t")).json()["schema_id"] == 0


async def test_a_marker_of_a_history_that_was_lost_is_replaced(tmp_path: Path) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        broker, topic = cluster.brokers[0], inside.topic(cluster.brokers[0], "t")
        _, columns = next_version(V2, topic.layout.values, History())
        lost = Layout.from_format(Format.TYPED, columns)
        await broker.context.entries.put_marker(store, "t", topic.record.incarnation, lost, {})
        (marker,) = [name for name in store.objects if "segment=-1" in name]
        assert (await http.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        read = pq.read_schema(io.BytesIO(bytes(store.objects[marker])))
        assert read.names[-3:] == ["n", "k", "x"]
        del store.objects[marker]  # by another broker that ended the change, and died before it put the marker
        await created_beside(http)
        await broker.schemas.put_markers()
        assert pq.read_schema(io.BytesIO(bytes(store.objects[marker]))).equals(read)
        assert [name for name in store.objects if "segment=-1" in name] == [marker]


async def test_large_batches_are_raised_aside_of_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        assert (await http.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        threads, whole = dict[int, threading.Thread](), Layout.raised

        def raised(layout: Layout, rows: pa.RecordBatch) -> pa.RecordBatch:
            if rows.num_rows > 1 and not rows.schema.equals(layout.rows(0), check_metadata=True):
                threads[rows.num_rows] = threading.current_thread()
            return whole(layout, rows)

        monkeypatch.setattr(Layout, "raised", raised)
        for count in (10, 3000):
            sent = await http.post(
                "/v1/topics/t/messages",
                json={"messages": [{"value": {"k": str(n), "n": n}} for n in range(count)]},
                headers={"Schema-Id": "0"},
            )
            assert sent.status_code == 200, sent.text
        assert threads[10] is threading.main_thread()
        assert threads[3000] is not threading.main_thread()
        assert [one["x"] for one in await values(http)][:20] == [None] * 20


async def created_beside(http: httpx.AsyncClient) -> None:
    """Topics that get no marker: one whose schema has not changed, and one without a schema."""
    assert (await http.put("/v1/topics/same", json={"format": "typed", "schema": V0})).status_code == 201
    assert (await http.put("/v1/topics/plain", json={})).status_code == 201


async def test_a_marker_that_two_brokers_replace_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    async with in_loop(tmp_path, 2, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        entries, topic = cluster.brokers[1].context.entries, inside.topic(cluster.brokers[0], "t")
        _, columns = next_version(V2, topic.layout.values, History())
        lost = Layout.from_format(Format.TYPED, columns)
        await entries.put_marker(store, "t", topic.record.incarnation, lost, {})
        (marker,) = [name for name in store.objects if "segment=-1" in name]
        _, columns = next_version(V1, topic.layout.values, History())
        mine = Layout.from_format(Format.TYPED, columns)
        with monkeypatch.context() as patch:
            come, go = held_back(patch, store, "read")
            late = asyncio.create_task(entries.put_marker(store, "t", topic.record.incarnation, mine, {}))
            await come.wait()  # it has read the lost one
        await entries.put_marker(store, "t", topic.record.incarnation, mine, {})
        go.set()
        await late
        assert pq.read_schema(io.BytesIO(bytes(store.objects[marker]))).names[-3:] == ["n", "k", "x"]


@pytest.mark.parametrize("first", [999_000, 999_001])
async def test_the_first_version_leaves_ids_for_a_thousand(tmp_path: Path, first: int) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        made = await http.put("/v1/topics/t", json={"format": "typed", "schema": {**V0, "schema-id": first}})
        if first > 999_000:
            assert (made.status_code, made.json()["value"], made.json()["bound"]) == (422, 999_001, 999_000)
        else:
            assert made.status_code == 201
            assert (await http.patch("/v1/topics/t", json={"schema": V1})).json()["schema_id"] == 999_001


async def test_a_version_may_change_its_identifiers_alone(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        for stated, version in (([1], 1), ([1], 1), ([], 2)):
            changed = await http.patch("/v1/topics/t", json={"schema": {**V0, "identifier-field-ids": stated}})
            assert (changed.status_code, changed.json()["schema_id"]) == (200, version)
            assert changed.json()["schema"]["identifier-field-ids"] == stated
        refused = await http.patch("/v1/topics/t", json={"schema": {**V0, "identifier-field-ids": [2]}})
        assert refused.status_code == 422, "the field 2 is optional"


async def test_versions_that_differ_in_texts_alone_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http)
        for number in range(5):
            schema = {"fields": [{**V0["fields"][0], "doc": str(number)}, V0["fields"][1]]}
            assert (await http.patch("/v1/topics/t", json={"schema": schema})).status_code == 200
        catalog, read = inside.catalog(cluster.brokers[0]), list[int]()
        whole = catalog.layout

        async def layout(topic: Topic, schema_id: int) -> Layout:
            read.append(schema_id)
            return await whole(topic, schema_id)

        monkeypatch.setattr(catalog, "layout", layout)
        for fields, status in ((V0["fields"], 200), ([{**one, "id": one["id"] + 5} for one in V0["fields"]], 409)):
            wanted = {"format": "typed", "schema": {"fields": fields}}
            assert (await http.put("/v1/topics/t", json=wanted)).status_code == status
        assert len(read) <= 2


async def test_a_publisher_is_told_of_a_version_that_requires_a_dropped_field(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        less = {"schema": {"fields": V0["fields"][:1]}, "if_schema_id": 0}
        required = {"fields": [V0["fields"][0], {**V0["fields"][1], "required": True}]}
        await created(http, schema=required)
        assert (await http.patch("/v1/topics/t", json=less)).status_code == 200
        for value, status, told in (
            ({"k": "a", "n": 1}, 409, "without this field, and not as version 0, which requires it"),
            ({"k": "a"}, 422, "the field n is missing"),
        ):
            body = {"messages": [{"value": value}]}
            refused = await http.post("/v1/topics/t/messages", json=body, headers={"Schema-Id": "0"})
            assert refused.status_code == status, refused.text
            assert told in refused.text
        assert (await send(http, {"k": "a"})).status_code == 200


async def test_the_largest_schemas_go_into_one_transaction_of_etcd(tmp_path: Path) -> None:
    """The records of two versions, and the topic's with its columns; etcd takes 1.5 MB."""
    names = [f"f{number:04}" + "x" * 190 for number in range(1000)]
    fields = [{"name": name, "type": "int"} for name in names]
    sizes: list[int] = []

    async def weigh(writes: Any) -> None:
        sizes.append(sum(len(one.value) for one in writes if isinstance(one, Put)))

    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        config = {"format": "typed", "schema": {"fields": fields[:-1]}}
        assert (await http.put("/v1/topics/t", json=config)).status_code == 201
        cluster.coordination.before = weigh
        wider = [{**field, "type": "long"} for field in fields]
        changed = await http.patch("/v1/topics/t", json={"schema": {"fields": wider}})
        assert changed.status_code == 200, changed.text
        assert 1_000_000 < max(sizes) < 1_400_000
        deep: Any = "int"
        for _ in range(500):
            deep = {"type": "list", "element": deep}
        one_case = [{"name": "a", "type": "int"}, {"name": "A", "type": "int"}]
        for hostile in ([{"name": "a", "type": deep}], one_case, fields * 2):
            answer = await http.patch("/v1/topics/t", json={"schema": {"fields": hostile}})
            assert answer.status_code in (400, 422), answer.text[:200]
        assert (await http.get("/v1/topics/t/schemas")).json() == {"schema_ids": [0, 1]}


async def test_a_publisher_that_states_no_version_may_know_one_before_drops(tmp_path: Path) -> None:
    """It sends null in the fields that were dropped, or repeats what was stored before; also at another broker."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        assert (await one.patch("/v1/topics/t", json={"schema": V2})).status_code == 200
        body = {"messages": [{"value": {"k": f"k{n}", "x": 0.5}} for n in range(8)]}
        producer = {"Producer-Id": "p", "Producer-Sequence": "0"}
        first = await one.post("/v1/topics/t/messages", json=body, headers=producer)
        for version, fields in enumerate(([*GROWN[:2], V2["fields"][-1]], GROWN[:2]), 1):
            dropped = await one.patch("/v1/topics/t", json={"schema": {"fields": fields}, "if_schema_id": version})
            assert dropped.status_code == 200, dropped.text
        for http in (one, two):
            repeated = await http.post("/v1/topics/t/messages", json=body, headers=producer)
            assert repeated.status_code == 200, repeated.text
            assert repeated.json()["ids"] == first.json()["ids"]
            assert repeated.json()["duplicate"]
            assert (await send(http, {"k": "null", "n": 1, "x": None, "y": None})).status_code == 200
            for value in ({"k": "a", "x": 0.5}, {"k": "a", "y": "b"}, {"k": "a", "z": None}):
                assert (await send(http, value)).status_code == 422, (
                    "a value would be lost, or no version has the field"
                )
        found = [value for number in range(4) for value in await values(one, number)]
        assert len(found) == 8 + 2


async def test_an_earlier_version_is_tried_only_if_it_has_the_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that expires is decoded once the broker knows the time."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as http:
        await created(http)
        assert (await http.patch("/v1/topics/t", json={"schema": V2})).status_code == 200
        for version, fields in enumerate(([*GROWN[:2], V2["fields"][-1]], GROWN[:2]), 1):
            dropped = await http.patch("/v1/topics/t", json={"schema": {"fields": fields}, "if_schema_id": version})
            assert dropped.status_code == 200, dropped.text
        tried: list[int] = []
        decode = publish.decode_single

        def noted(content: bytes, intake: Intake) -> Any:
            tried.append(intake.layout.schema_id)
            return decode(content, intake)

        monkeypatch.setattr(publish, "decode_single", noted)
        assert (await http.post("/v1/topics/t/messages", json={"value": {"k": "a", "z": 1}})).status_code == 422
        assert tried == [3]
        known, told = Intake.lifetime_from_us.fget, iter([False])

        def unknown_once(intake: Intake) -> int:
            if intake.layout.schema_id == 3 or next(told, True):
                return known(intake)
            raise TimeUnknown

        monkeypatch.setattr(Intake, "lifetime_from_us", property(unknown_once))
        sent = await http.post("/v1/topics/t/messages", json={"value": {"k": "a", "x": None}, "expires_in_s": 60})
        assert sent.status_code == 200, sent.text
        assert [*dict.fromkeys(tried)] == [3, 1]
        assert tried.count(1) == 2


async def test_messages_beside_one_with_a_dropped_value_are_not_stored(tmp_path: Path) -> None:
    """Their segments have several owners, of which each would judge its own alone."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        assert (await one.patch("/v1/topics/t", json={"schema": V1})).status_code == 200
        less = {"schema": {"fields": GROWN[:2]}, "if_schema_id": 1}
        assert (await one.patch("/v1/topics/t", json=less)).status_code == 200
        rows = [*({"k": f"a{n}", "x": None} for n in range(20)), {"k": "b", "x": 0.5}]
        body = {"messages": [{"value": row} for row in rows]}
        for http in (one, two):
            assert (await send(http, *rows)).status_code == 422
            stated = await http.post("/v1/topics/t/messages", json=body, headers={"Schema-Id": "1"})
            told = stated.json()
            assert (stated.status_code, told["schema_id"], told["field"]) == (409, 2, "x"), stated.text
        assert [value for number in range(4) for value in await values(one, number)] == []
        producer = {"Producer-Id": "p", "Producer-Sequence": "0", "Schema-Id": "1"}
        partly = [await http.post("/v1/topics/t/messages", json=body, headers=producer) for http in (one, two)]
        assert {answer.status_code for answer in partly} == {409}
        (taken,) = [answer.json()["taken"] for answer in partly if "taken" in answer.json()]  # not of its owner
        found = [value for number in range(4) for value in await values(one, number)]
        assert 0 < len(found) == sum(each["count"] for each in taken) < 20


async def test_versions_rise_within_a_segment(tmp_path: Path) -> None:
    """Also where an earlier version had the same columns."""
    store = MemoryStore()
    async with in_loop(tmp_path, 1, store) as cluster, asking(cluster, 0) as http:
        await created(http)
        for version, fields in enumerate((GROWN, GROWN[:2], [*GROWN[:2], {"name": "y", "type": "int"}], GROWN[:2])):
            body = {"schema": {"fields": fields}, "if_schema_id": version}
            assert (await http.patch("/v1/topics/t", json=body)).status_code == 200
        for number, version in enumerate("42142"):
            body = {"messages": [{"value": {"k": "a", "n": number}}]}
            sent = await http.post("/v1/topics/t/messages", json=body, headers={"Schema-Id": version})
            assert sent.status_code == 200, sent.text
        await http.post("/v1/topics/t/flush")
        files = (await http.get("/v1/topics/t/files")).json()["files"]
        assert [(one["first_offset"], one["schema_id"]) for one in files] == [(0, 4)]


async def test_a_repeat_is_known_behind_a_rename_and_later_changes(tmp_path: Path) -> None:
    """Also at a broker that owns no segment of it, or only some."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one, initial_segments=4)
        body = {"messages": [{"value": {"k": f"k{n}", "n": n}} for n in range(8)]}
        producer = {"Producer-Id": "p", "Producer-Sequence": "0"}
        first = await one.post("/v1/topics/t/messages", json=body, headers=producer)
        assert len({segment["segment"] for segment in first.json()["segments"]}) > 1
        fields = [V0["fields"][0], {"id": 2, "name": "m", "type": "int"}]
        for version, now in enumerate((fields, [*fields, {"name": "x", "type": "int"}], fields)):
            change = {"schema": {"fields": now}, "if_schema_id": version}
            assert (await one.patch("/v1/topics/t", json=change)).status_code == 200
            for http in (one, two):
                repeated = await http.post("/v1/topics/t/messages", json=body, headers=producer)
                assert (repeated.status_code, repeated.json().get("ids")) == (200, first.json()["ids"]), repeated.text
                assert repeated.json()["duplicate"]
        for http in (one, two):
            other = await http.post("/v1/topics/t/messages", json=body, headers={**producer, "Producer-Sequence": "20"})
            assert other.status_code == 422, "no message that is not stored has an earlier name"
            assert "renamed to 'm'" in other.json()["hint"]
        assert sum([len(await values(one, number)) for number in range(4)]) == 8


async def test_an_earlier_version_is_known_however_many_there_were_since(tmp_path: Path) -> None:
    """Each change loses a field or a name, also some that the messages have. A repeat was refused, and seemed lost,
    once more than 20 versions had come since it was stored."""
    optional = [{"id": at + 3, "name": name, "type": "int"} for at, name in enumerate("xyz")]
    late = [{"k": "c", "x": None, "y": None, "z": None}, {"k": "d", "z": None, "x": None}]
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        await created(http, schema={"fields": [*V0["fields"], *optional]})
        body = {"messages": [{"value": {"k": "a", "n": 1, "x": 2, "y": 3, "z": 4}}, {"value": {"k": "b", "y": 5}}]}
        producer = {"Producer-Id": "p", "Producer-Sequence": "0"}
        first = await http.post("/v1/topics/t/messages", json=body, headers=producer)
        fields = [*V0["fields"], *optional]
        for number in range(26):
            if number in (2, 4, 6):
                del fields[2]
            now = [*fields, {"name": f"f{number}", "type": "int"}]
            change = {"schema": {"fields": now}, "if_schema_id": number}
            assert (await http.patch("/v1/topics/t", json=change)).status_code == 200
        for value in late:
            assert (await send(http, value)).status_code == 200, "no value is lost"
        assert (await send(http, {"k": "e", "x": 1})).status_code == 422
        assert (await send(http, {"k": "e", "x": None, "f9": None})).status_code == 422, "no version has both"
        fields = [fields[0], {"id": 2, "name": "m", "type": "int"}]
        for version in range(26, 28):
            now = [*fields, {"name": f"f{version}", "type": "int"}]
            change = {"schema": {"fields": now}, "if_schema_id": version}
            assert (await http.patch("/v1/topics/t", json=change)).status_code == 200
        repeated = await http.post("/v1/topics/t/messages", json=body, headers=producer)
        assert (repeated.status_code, repeated.json().get("ids")) == (200, first.json()["ids"]), repeated.text
        assert repeated.json()["duplicate"]
        other = await http.post("/v1/topics/t/messages", json=body, headers={**producer, "Producer-Sequence": "20"})
        assert other.status_code == 422, "it was not stored"
        assert len(await values(http)) == 2 + len(late)


def test_a_version_is_found_by_names_that_a_field_may_get_again() -> None:
    known = schema_versions.Known()
    for number, names in enumerate(("ka", "kab", "kb", "kab", "kbc", "kc")):
        known.add(number, {"fields": [{"id": ord(name), "name": name, "type": "int"} for name in names]})
    found = {names: known.newest_with(names) for names in ("a", "b", "ab", "bc", "ac", "k", "z", "az")}
    assert found == {"a": 3, "b": 4, "ab": 3, "bc": 4, "ac": None, "k": 5, "z": None, "az": None}


def test_names_that_come_and_go_cost_little() -> None:
    """Each span of versions with a name was an object of its own, and a search looked at all spans of all names: 0.3 s
    of the event loop for 20 names in each other version, and 67 MB for 1,000 fields."""
    known = schema_versions.Known()
    fields = range(20)
    for number in range(5, 5 + schema_versions.MAX_VERSIONS):
        names = [f"{'f' if (number + (field == 19)) % 2 else 'g'}{field}" for field in fields]
        known.add(number, {"fields": [{"id": at, "name": name, "type": "int"} for at, name in enumerate(names)]})
    wanted = [f"f{field}" for field in fields]
    found = [known.newest_with(names) for names in (wanted, wanted[:19], wanted[19:])]
    assert found == [None, 1003, 1004]
    assert sum(map(sys.getsizeof, known.having.values())) < 40 * 200


async def test_other_requests_go_on_while_a_publish_has_all_versions_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        for number in range(6):
            fields = [*V0["fields"], *({"name": f"f{at}", "type": "int"} for at in range(number + 1))]
            assert (await one.patch("/v1/topics/t", json={"schema": {"fields": fields}})).status_code == 200
        await until(lambda: inside.topic(cluster.brokers[1], "t").layout.schema_id == 6)
        turn, turns, add = 0, [], schema_versions.Known.add

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def counted(known: schema_versions.Known, number: int, schema: dict[str, Any]) -> None:
            turns.append(turn)
            add(known, number, schema)

        monkeypatch.setattr(schema_versions.Known, "add", counted)
        counting = asyncio.create_task(count())
        assert (await send(two, {"k": "a", "unknown": 1})).status_code == 422
        counting.cancel()
        assert len(turns) == len(set(turns)) == 7


async def test_an_unreadable_version_is_not_read_for_each_refused_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All versions were read again each time: up to 1,000 records, for anybody who may publish."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as http, asking(cluster, 1) as other:
        await created(http)
        for schema in (V1, V2):
            assert (await http.patch("/v1/topics/t", json={"schema": schema})).status_code == 200
        await until(lambda: inside.topic(cluster.brokers[1], "t").layout.schema_id == 2)
        key = keys.SCHEMAS.key("t", inside.topic(cluster.brokers[1], "t").record.incarnation, 1)
        entry = await cluster.coordination.get(key)
        assert entry is not None
        await cluster.coordination.commit([], [Put(key, b'{"schema": "of a newer form"}')])
        reads: list[str] = []

        def counted(coordination: Any, prefix: str, *more: Any, **options: Any) -> Any:
            reads.append(prefix)
            return entries(coordination, prefix, *more, **options)

        monkeypatch.setattr(schema_versions, "entries", counted)
        refused = [(await send(other, {"k": "a", "z": 1})).status_code for _ in range(5)]
        assert (refused, len(reads)) == ([503] * 5, 1)
        await cluster.coordination.commit([], [Put(key, entry.value)])
        await UNREADABLE_RECORDS.refresh(cluster.coordination)
        refused = [(await send(other, {"k": "a", "z": 1})).status_code for _ in range(5)]
        assert (refused, len(reads)) == ([422] * 5, 2)


@pytest.mark.parametrize("method", ["GET", "PATCH"])
async def test_an_answer_about_a_topic_is_of_one_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It had the fields of one version and the id of the next one if that came while owners were asked."""
    async with in_loop(tmp_path, 2) as cluster, asking(cluster, 0) as one, asking(cluster, 1) as two:
        await created(one)
        topic = inside.topic(cluster.brokers[0], "t")
        come, go = held_back(monkeypatch, inside.positions(cluster.brokers[0]), "positions")
        body = {"schema": V1} if method == "PATCH" else None
        slow = asyncio.create_task(one.request(method, "/v1/topics/t", json=body))
        await come.wait()
        assert (await two.patch("/v1/topics/t", json={"schema": V2})).status_code == 200
        newest = 2 if method == "PATCH" else 1
        await until(lambda: topic.layout.schema_id == newest)
        go.set()
        told = (await slow).json()
        assert (told["schema_id"], told["schema"]["schema-id"]) == (newest, newest)
        assert told["schema"] == (await two.get(f"/v1/topics/t/schemas/{newest}")).json()["schema"]


@pytest.mark.parametrize("kinds", [("string", "uuid"), ("uuid", "string"), ("string", "time"), ("uuid", "time")])
async def test_topics_with_columns_alike_take_each_its_own_values(tmp_path: Path, kinds: tuple[str, str]) -> None:
    values = {"string": "any", "uuid": "8d3c9f4e-2f53-4d5e-9d35-0a4f8a5a6d11", "time": "10:15:00"}
    async with in_loop(tmp_path, 1) as cluster, asking(cluster, 0) as http:
        for kind in kinds:
            config = {"format": "typed", "schema": {"fields": [{"name": "-".join(kinds), "type": kind}]}}
            assert (await http.put(f"/v1/topics/{kind}", json=config)).status_code == 201
        for kind in kinds:
            for other, value in values.items():
                body = {"messages": [{"value": {"-".join(kinds): value}}]}
                status = (await http.post(f"/v1/topics/{kind}/messages", json=body)).status_code
                assert status == (200 if other == kind or kind == "string" else 422), (kind, value)
