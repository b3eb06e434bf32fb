"""Versions of a typed topic's schema in brokers: the order of a change, and each path of rows of two versions."""

import asyncio
import io
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
from msgspec import UNSET

from seaweedq.broker.topics import Topic, schema_versions
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Change, Delete, Put
from seaweedq.segments.evolution import History, next_version
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
        assert stale.json()["differences"] == {"schema_id": {"current": 0, "requested": 4}}


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
        assert (await http.get("/v1/topics/t/schemas/0")).json() == {"schema_id": 0, "schema": V0}
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

    async def held(*given: Any) -> Any:
        found = await whole(*given)
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
        assert "'dead'" in refused.json()["differences"][0]["rule"]
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
