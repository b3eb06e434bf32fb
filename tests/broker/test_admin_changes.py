"""Administrative changes are in the store before they are answered: a state that is made of the store's changes alone
has them, also where a broker was killed between transaction and object, or the store was away, and the request came
again.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from seaweedq.access.tokens import name_of_denied
from seaweedq.api.app import Application
from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.broker import Broker
from seaweedq.checks import using
from seaweedq.coordination import keys
from seaweedq.coordination.backup import BACKUPS_FOLDER, State, changes_folder
from seaweedq.coordination.interface import Entry, Put, read_all
from seaweedq.coordination.keys import KeyKind
from seaweedq.errors import StoreUnavailable
from seaweedq.segments.chain import Chain
from seaweedq.storage.generations import Generation, create_generation
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.in_process import held, running
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

BOTH: tuple[KeyKind[Any], ...] = tuple(kind for kind in keys.CATALOGUE if kind.backup == "both")
KINDS = tuple(kind for kind in BOTH if kind is not keys.JOURNALS)  # whose changes administrators ask for
SUB = "/v1/topics/t/subscriptions/s"
SEEK = {"to": "earliest", "id": "once"}
A, B = {"name": "a", "type": "int"}, {"name": "b", "type": "string"}
DENIED = {"kind": "sub", "value": "alice"}
READER = {"grants": [{"actions": ["read"], "topics": ["*"]}]}


class Call(NamedTuple):
    """A request, the status of its answer, and that of its repeat. `before` are the calls behind which it can come."""

    method: str
    path: str
    body: Any
    first: int
    again: int
    before: tuple[str, ...] = ()


CALLS = {
    "topic": Call("PUT", "/v1/topics/t", {"initial_segments": 3}, 201, 200),
    "topic's config": Call("PATCH", "/v1/topics/t", {"flush": {"max_age_s": 9}}, 200, 200, ("topic",)),
    "topic's end": Call("DELETE", "/v1/topics/t", None, 204, 204, ("topic", "subscription")),
    "typed topic": Call("PUT", "/v1/topics/y", {"format": "typed", "schema": {"fields": [A]}}, 201, 200),
    "topic's schema": Call("PATCH", "/v1/topics/y", {"schema": {"fields": [A, B]}}, 200, 200, ("typed topic",)),
    "subscription": Call("PUT", SUB, {"start": "latest"}, 201, 200, ("topic",)),
    "subscription's config": Call("PATCH", SUB, {"paused": True}, 200, 200, ("topic", "subscription")),
    "subscription's end": Call("DELETE", SUB, None, 204, 204, ("topic", "subscription")),
    "seek": Call("POST", f"{SUB}/seek", SEEK, 200, 200, ("topic", "subscription")),
    "principal": Call("PUT", "/v1/principals/p", READER, 201, 200),
    "principal's rights": Call("PUT", "/v1/principals/p", {"grants": []}, 200, 200, ("principal",)),
    "principal's end": Call("DELETE", "/v1/principals/p", None, 204, 204, ("principal", "token")),
    "token": Call("POST", "/v1/tokens", {"principal": "p"}, 201, 201, ("principal",)),
    "denial": Call("POST", "/v1/denials", DENIED, 201, 201),
    "denial's end": Call("DELETE", f"/v1/denials/{name_of_denied(**DENIED)}", None, 204, 204, ("denial",)),
}


class Killed(Exception):
    """The broker does not live behind this place."""


@asynccontextmanager
async def asking(broker: Broker, name: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(Application(broker), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=name, timeout=None) as http:
        yield http


@asynccontextmanager
async def alone(folder: Path, store: MemoryStore | None = None) -> AsyncIterator[Broker]:
    """A broker that has made its first snapshot; no other one follows in a test. The key of its journal is no
    change."""
    async with running(folder, store, snapshot_s=3600, journal="object") as broker:
        await until(lambda: broker.leadership.snapshots.made)
        yield broker


@asynccontextmanager
async def two(folder: Path, store: MemoryStore | None = None) -> AsyncIterator[InLoop]:
    """Two brokers, of which one has made the first snapshot."""
    async with in_loop(folder, store=store, snapshot_s=3600, journal="object") as together:
        await until(lambda: any(one.leadership.snapshots.made for one in together.brokers))
        yield together


async def ask(broker: Broker, name: str) -> int:
    """The status of a call's answer."""
    call = CALLS[name]
    async with asking(broker, "http://localhost") as http:
        return (await http.request(call.method, call.path, json=call.body)).status_code


async def there(broker: Broker) -> dict[str, bytes]:
    """What coordination has of the kinds that administrative changes make."""
    found: dict[str, bytes] = {}
    for kind in KINDS:
        entries, _ = await read_all(broker.process.coordination, kind.prefix())
        found |= {entry.key: entry.value for entry in entries}
    return found


async def in_store(broker: Broker) -> dict[str, bytes]:
    """The state of the store's backups, of the same kinds."""
    found = await broker.context.backups.newest(1)
    assert found is None or not (found.damaged or found.unverified)
    assert found
    return {key: value for key, value in found.state.keys.items() if any(kind.matches(key) for kind in KINDS)}


def deleting(state: dict[str, bytes]) -> set[str]:
    """The keys whose records count as gone."""
    return {key for key, value in state.items() if b'"state":"deleting"' in value}


def comparable(state: dict[str, bytes]) -> dict[str, Any]:
    """The values without what dispatchers and the leader write on their own account."""
    found: dict[str, Any] = {key: msgspec.json.decode(value) for key, value in state.items()}
    for key in found:
        if keys.SUBSCRIPTIONS.matches(key):
            found[key] |= {"dispatcher": None, "epoch": 0}
        if keys.SEGMENTS.matches(key):
            found[key] |= {"owner": None, "term": None, "entry_from": 0}
    return found


async def assert_whole(broker: Broker, unheard: Collection[str] = ()) -> None:
    """What is there is in the store, but for keys of which nobody was told; what the store has besides is below
    something that it has as deleted."""
    kept = await in_store(broker)
    mine = {key: value for key, value in (await there(broker)).items() if key not in unheard}
    gone, wanted, found = deleting(kept), comparable(mine), comparable(kept)
    assert {key: found.get(key) for key in wanted if key not in gone} == {k: wanted[k] for k in wanted if k not in gone}
    topics = {keys.TOPICS.parse(key)[0] for key in gone if keys.TOPICS.matches(key)}
    for key in kept.keys() - mine.keys() - gone:
        ended = keys.SUBSCRIPTIONS.key(*keys.CURSORS.parse(key)[:3]) if keys.CURSORS.matches(key) else ""
        parents = set(key.split("/")[1:2]) & topics
        assert ended in gone or parents or keys.TOKENS.matches(key), f"{key} is in the store, and not there"


def changes(store: MemoryStore) -> list[str]:
    return sorted(name for name in store.objects if name.startswith(changes_folder(1)))


def kill(place: str) -> Any:
    def points(reached: str) -> None:
        if reached == place:
            raise Killed

    return using(points)


@pytest.mark.parametrize("name", CALLS)
async def test_each_change_is_in_the_store_before_its_answer_by_one_put(tmp_path: Path, name: str) -> None:
    call = CALLS[name]
    async with alone(tmp_path, store := MemoryStore()) as broker:
        for before in call.before:
            await ask(broker, before)
        known, requests = changes(store), broker.process.store.requests.copy()
        assert await ask(broker, name) == call.first
        made = broker.process.store.requests - requests
        assert len(changes(store)) == len(known) + 1
        beside = name in ("topic", "typed topic", "topic's schema")
        assert made["create"] == 1 + beside, "the change, and a topic's first entry or a version's marker"
        await assert_whole(broker)


@pytest.mark.parametrize("name", CALLS)
async def test_a_store_that_is_away_refuses_and_a_repeat_mends(tmp_path: Path, name: str) -> None:
    call = CALLS[name]

    def away(moment: str, path: str) -> None:
        if moment == "before create" and path.startswith(BACKUPS_FOLDER):
            raise StoreUnavailable("away")

    store = MemoryStore()
    async with alone(tmp_path, store) as broker:
        for before in call.before:
            await ask(broker, before)
        known, files = changes(store), {n for n in store.objects if n.startswith("topics/")}
        store.faults = away
        assert await ask(broker, name) == 503
        assert files <= store.objects.keys(), "a file went before the store has the deletion"
        store.faults = lambda moment, path: None
        unheard = [key for key in await there(broker) if name == "token" and keys.TOKENS.matches(key)]
        assert await ask(broker, name) == call.again
        assert len(changes(store)) > len(known)
        await assert_whole(broker, unheard)


@pytest.mark.brokers
@pytest.mark.parametrize("place", ["change.put", "change.made"])
@pytest.mark.parametrize("name", CALLS)
async def test_a_repeat_at_another_broker_mends_what_a_dead_one_left(tmp_path: Path, name: str, place: str) -> None:
    call = CALLS[name]
    async with two(tmp_path) as together:
        dying, living = together.brokers
        for before in call.before:
            await ask(living, before)
        with kill(place):
            assert await ask(dying, name) == 500
        unheard = [key for key in await there(living) if name == "token" and keys.TOKENS.matches(key)]
        await together.crash(dying)
        await until(lambda: inside.roster(living).brokers.keys() == {living.id})
        async with asking(living, "http://b1") as http:
            for _ in range(100):
                answer = await http.request(call.method, call.path, json=call.body)
                if answer.status_code != 503:  # its segments and subscriptions are taken over
                    break
        if name == "topic's end":
            await until(lambda: inside.catalog(living).get("t") is None)  # the leader's work, or the repeat's
        else:
            assert answer.status_code == call.again
        await assert_whole(living, unheard)


async def test_a_repeat_costs_nothing_where_the_store_has_it(tmp_path: Path) -> None:
    async with alone(tmp_path, store := MemoryStore()) as broker:
        for name in ("topic", "subscription", "seek"):
            await ask(broker, name)
        known, requests = changes(store), broker.process.store.requests.copy()
        for name in ("topic", "seek"):
            assert await ask(broker, name) == CALLS[name].again
        assert changes(store) == known
        assert not (broker.process.store.requests - requests)["create"]


async def test_a_repeat_puts_nothing_that_a_known_snapshot_has(tmp_path: Path) -> None:
    async with alone(tmp_path, store := MemoryStore()) as broker:
        await ask(broker, "topic")
        backups, topic = broker.context.backups, inside.topic(broker, "t")
        for revision, is_put in ((topic.revision - 1, True), (topic.revision, False)):
            store.objects.pop(changes(store)[0])
            await backups.put_snapshot(State(1, revision + 100, revision, {}))
            await AdminChanges(held(broker), backups).put_topic("t", topic.held)
            assert bool(changes(store)) == is_put


async def test_a_publish_puts_no_more_than_its_journal(tmp_path: Path) -> None:
    async with alone(tmp_path, store := MemoryStore()) as broker:
        await ask(broker, "topic")
        known = changes(store)
        async with asking(broker, "http://localhost") as http:
            assert (await http.post("/v1/topics/t/messages", json={"value": 1})).status_code == 200
        assert changes(store) == known


async def test_nobody_is_told_of_a_change_once_another_generation_has_begun(tmp_path: Path) -> None:
    async with alone(tmp_path, store := MemoryStore()) as broker:
        await create_generation(store, Generation(2, "n"))
        assert await ask(broker, "topic") == 503
        assert broker.lost.is_set()


@pytest.mark.long
@pytest.mark.brokers
async def test_no_file_of_a_topic_goes_before_its_deletion_is_in_the_store(tmp_path: Path) -> None:
    """Also where the deletion of a broker that died is ended by the leader."""

    def away(moment: str, path: str) -> None:
        if moment == "before create" and path.startswith(BACKUPS_FOLDER):
            raise StoreUnavailable("away")

    async with two(tmp_path, store := MemoryStore()) as together:
        dying, living = together.brokers
        await ask(living, "topic")
        files, topic = {name for name in store.objects if name.startswith("topics/")}, inside.topic(living, "t")
        with kill("change.put"):
            assert await ask(dying, "topic's end") == 500
        store.faults = away
        await together.crash(dying)
        await until(lambda: topic.record.state == "deleting")
        with pytest.raises(StoreUnavailable):
            await inside.deletion(living).delete(topic)
        assert files <= store.objects.keys()
        store.faults = lambda moment, path: None
        await until(lambda: inside.catalog(living).get("t") is None)
        assert not {name for name in store.objects if name.startswith("topics/")}
        assert keys.TOPICS.key("t") in deleting(await in_store(living))


async def test_a_revoked_token_is_revoked_in_the_store_before_it_is_gone(tmp_path: Path) -> None:
    """A repeat behind a crash finds the token, so that a 404 means that the store has its end."""
    async with alone(tmp_path) as broker, asking(broker, "http://localhost") as http:
        await ask(broker, "principal")
        token = (await http.post("/v1/tokens", json={"principal": "p"})).json()
        path = f"/v1/tokens/{token['id']}"
        with kill("change.put"):
            assert (await http.delete(path)).status_code == 500
        assert (await http.get(path)).json()["counts"] is False
        assert token["id"] in {keys.TOKENS.parse(key)[0] for key in await in_store(broker) if keys.TOKENS.matches(key)}
        assert (await http.delete(path)).status_code == 204
        assert (await http.delete(path)).status_code == 404
        assert not [key for key in await in_store(broker) if keys.TOKENS.matches(key)]


async def test_a_principal_whose_deletion_was_cut_off_gives_no_right(tmp_path: Path) -> None:
    async with alone(tmp_path) as broker, asking(broker, "http://localhost") as http:
        await ask(broker, "principal")
        token = (await http.post("/v1/tokens", json={"principal": "p"})).json()
        with kill("change.made"):
            assert (await http.delete("/v1/principals/p")).status_code == 500
        assert (await http.get("/v1/principals/p")).status_code == 404
        assert (await http.post("/v1/tokens", json={"principal": "p"})).status_code == 404
        assert (await http.put("/v1/principals/p", json=READER)).status_code == 201
        assert (await http.get(f"/v1/tokens/{token['id']}")).json()["counts"] is False
        await assert_whole(broker)


async def test_what_is_made_below_a_change_without_an_object_brings_it(tmp_path: Path) -> None:
    """A topic and a principal of which nobody was told: a subscription and a token that come of them are answered."""
    async with alone(tmp_path) as broker:
        for name, below in (("topic", "subscription"), ("principal", "token")):
            with kill("change.put"):
                assert await ask(broker, name) == 500
            assert not await in_store(broker) or name == "principal"
            assert await ask(broker, below) == 201
            await assert_whole(broker)


@pytest.mark.parametrize("after", ["topic's config", "topic's end"])
async def test_a_subscriptions_change_takes_none_of_its_topic_back(tmp_path: Path, after: str) -> None:
    """It comes from a broker that has not yet seen what another one has changed."""
    async with alone(tmp_path) as broker:
        for name in ("topic", "subscription"):
            await ask(broker, name)
        before, key = inside.topic(broker, "t").held, keys.SUBSCRIPTIONS.key("t", 0, "s")
        there = await held(broker).get(key)
        assert there
        await ask(broker, after)
        late = keys.SUBSCRIPTIONS.require(there).stored(await held(broker).commit([], [Put("later", b"")]) or 0)
        await AdminChanges(held(broker), broker.context.backups).put_subscription("t", before, "s", late)
        found = keys.TOPICS.require(Entry("topics/t", (await in_store(broker))["topics/t"], 1)).record
        assert (found.state, found.config.flush.max_age_s) == (
            ("deleting", None) if after == "topic's end" else ("active", 9)
        )


def test_changes_have_these_kinds() -> None:
    of_topics = {"topics", "schemas", "counters", "segments", "subscriptions", "cursors", "writes"}
    wanted = {*of_topics, "journals", "principals", "tokens", "denials"}
    assert {kind.name for kind in BOTH} == wanted


async def test_a_topics_first_entry_has_its_record(tmp_path: Path) -> None:
    async with alone(tmp_path, store := MemoryStore()) as broker:
        with kill("change.put"):
            await ask(broker, "topic")
        entry = await held(broker).get(keys.TOPICS.key("t"))
        chain = Chain(store, "t", 0)
        await chain.open()
        assert entry
        assert chain.last
        assert chain.last.topic_record
        found = keys.TOPICS.read(replace(entry, value=msgspec.json.encode(chain.last.topic_record)))
        assert found == keys.TOPICS.read(entry)
