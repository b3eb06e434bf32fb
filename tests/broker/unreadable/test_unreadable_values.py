"""A value that cannot be read, of each kind of key, in a running cluster: that thing alone answers 503, all brokers
live, all else works, and the thing works again once a newer broker has written the record back."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

from seaweedq.access.tokens import digest_of
from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.cluster_quota import Counts
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records.access import PrincipalRecord, TokenRecord
from seaweedq.coordination.records.cluster import (
    BrokerRecord,
    JournalRecord,
    LeaderRecord,
    RevocationRecord,
    SecretRecord,
    SuspicionRecord,
)
from seaweedq.coordination.records.topics import Counter, CreationRecord, StartRecord, TombstoneRecord, TopicConfig
from seaweedq.coordination.records.uploads import ImportRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.unreadable import NOTED
from seaweedq.errors import NeedsNewerBroker
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at
from tests.support.tiers import later

VALUES = (b'{"needs_level": 99}', b'[{"low": "x"}]', b"\x00not JSON")
T = "/v1/topics/t"


@pytest.fixture(autouse=True)
def nothing_met() -> None:
    NOTED._met.clear()


class World:
    """Two brokers, the topic `t` with a segment at each, messages, a subscription and an upload; and the topic `other`,
    which must go on."""

    def __init__(self, together: InLoop) -> None:
        self.together = together
        self.coordination = together.coordination
        self.upload = ""
        self.restarted = False

    @property
    def living(self) -> list[Broker]:
        return [one for one in self.together.brokers if one.environment.url in self.together.apps]

    def http(self, number: int = 0) -> httpx.AsyncClient:
        return at(self.together, self.living[number])

    async def begin(self) -> None:
        one = self.living[0]
        for name in ("t", "other"):
            await one.joined.topics.create(name, TopicConfig(initial_segments=2))
        async with self.http() as http:
            for name in ("t", "other"):
                await self.publish(http, name)
                await self.ask(http, "PUT", f"/v1/topics/{name}/subscriptions/s", 201, {"start": "earliest"})
            begun = await self.ask(http, "POST", f"{T}/uploads", 201, {"size": 3, "content_type": "a/b"})
            self.upload = begun["upload_id"]

    async def ask(self, http: httpx.AsyncClient, method: str, path: str, status: int, body: Any = None) -> Any:
        answer = await http.request(method, path, **({} if body is None else {"json": body}))
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content and "json" in answer.headers.get("content-type", "") else answer.text

    async def publish(self, http: httpx.AsyncClient, name: str, status: int = 200, keys: int = 20) -> None:
        body = {"messages": [{"key": f"k{n}", "value": n} for n in range(keys)]}
        await self.ask(http, "POST", f"/v1/topics/{name}/messages", status, body)

    async def pull(self, http: httpx.AsyncClient, name: str, status: int = 200) -> list[Any]:
        body = {"max_messages": 1000, "consumer": "c", "wait_s": 0}
        found = await self.ask(http, "POST", f"/v1/topics/{name}/subscriptions/s/pull", status, body)
        return found["messages"] if status == 200 else []

    async def others_work(self) -> None:
        """All brokers live, and serve the other topic."""
        for number, broker in enumerate(self.living):
            assert not broker.lost.is_set()
            names = {task.get_name() for task in broker._tasks}
            assert {"roster", "catalog", "leader", "election", "reshaping"} <= names
            async with self.http(number) as http:
                await self.publish(http, "other")
                found = await self.pull(http, "other")
                await self.ask(
                    http, "POST", "/v1/topics/other/subscriptions/s/ack", 200, {"ids": [one["id"] for one in found]}
                )
                assert (await self.ask(http, "GET", "/v1/topics/other", 200))["messages"] > 0
        for broker in self.living:
            if broker.joined.election.is_leader:
                await broker.serving.leading.leader.round()
            await broker.serving.subscribing.dispatcher.checkpoint()

    async def refuses(self, method: str, path: str, body: Any = None, **fields: Any) -> None:
        """Each broker answers 503, and says what is needed."""
        for number in range(len(self.living)):
            async with self.http(number) as http:
                answer = await http.request(method, path, **({} if body is None else {"json": body}))
                assert answer.status_code == 503, f"{method} {path}: {answer.status_code} {answer.text}"
                found = answer.json()
                assert found["type"] == "/problems/needs-newer-broker", found
                assert {name: found.get(name) for name in fields} == fields
                assert answer.headers["retry-after"]

    async def restart(self, broker: Broker) -> None:
        """Stops a broker in order, and starts it again."""
        self.restarted = True
        await broker.drain()
        await broker.stop()
        del self.together.apps[broker.environment.url]
        self.together.brokers.remove(broker)
        await self.together.begin_again(broker)
        ids = {one.id for one in self.living}
        await until(lambda: all(one.core.roster.brokers.keys() >= ids for one in self.living))


Step = Callable[[World], Awaitable[None]]


@dataclass
class Case:
    """A kind's record: its key in the world, what is refused while it cannot be read, and what works again. `record` is
    what a newer broker writes where there is none before."""

    key: Callable[[World], str]
    broken: Step
    whole: Step
    record: Any = None
    noticed: bool = True

    async def remove(self, world: World) -> None:
        """Ends what was there for the test alone, in the steps that are drawn."""
        key = self.key(world)
        if isinstance(self.record, JournalRecord):
            done = keys.JOURNALS.encode(Versioned.new(self.record).replace(recovered=True))
            await world.coordination.commit([], [Put(key, done)])
        await world.coordination.commit([], [Delete(key)])


async def nothing(world: World) -> None:
    pass


async def cluster_broken(world: World) -> None:
    with pytest.raises(NeedsNewerBroker):
        await world.together.begin()
    failed = world.together.brokers.pop()
    del world.together.apps[failed.environment.url]
    await failed.stop()


async def broker_broken(world: World) -> None:
    for number, one in enumerate(world.living):
        await until(lambda one=one: "b9.x" in one.core.roster.unreadable)
        assert one.core.roster.alive("b9.x")
        assert not await one.core.roster.gone("b9.x")
        async with world.http(number) as http:
            assert (await world.ask(http, "GET", "/v1/cluster", 200))["unreadable"] == ["b9.x"]


async def broker_whole(world: World) -> None:
    await until(lambda: all("b9.x" in one.core.roster.brokers for one in world.living))
    assert not any(one.core.roster.unreadable for one in world.living)


async def leader_broken(world: World) -> None:
    await until(lambda: not any(one.joined.election.is_leader for one in world.living))
    async with world.http() as http:
        assert (await world.ask(http, "GET", "/v1/cluster", 200))["leader"] is None


async def leader_whole(world: World) -> None:
    await world.coordination.commit([], [Delete(keys.LEADER.key())])
    await until(lambda: any(one.joined.election.is_leader for one in world.living))


async def journal_broken(world: World) -> None:
    for one in world.living:
        if one.joined.election.is_leader:
            await one.serving.leading.leader.round()
        assert "b9.gone" not in one.core.roster.journals
    assert await world.coordination.get("journals/b9.gone")


async def journal_whole(world: World) -> None:
    await until(lambda: all("b9.gone" in one.core.roster.journals for one in world.living))


async def topic_broken(world: World) -> None:
    await until(lambda: all(one.core.catalog.unreadable_names() == ["t"] for one in world.living))
    for method, path, body in (
        ("GET", T, None),
        ("PUT", T, {}),
        ("PATCH", T, {"flush": {"max_age_s": 5}}),
        ("DELETE", T, None),
        ("POST", f"{T}/messages", {"messages": [{"value": 1}]}),
        ("GET", f"{T}/segments", None),
        ("POST", f"{T}/subscriptions/s/pull", {"wait_s": 0}),
        ("GET", f"{T}/segments/0/messages?offset=0", None),
    ):
        await world.refuses(method, path, body, topic="t")
    for number, one in enumerate(world.living):
        async with world.http(number) as http:
            listed = await world.ask(http, "GET", "/v1/topics", 200)
        assert ([each["name"] for each in listed["topics"]], listed["unreadable"]) == (["other"], ["t"])
        assert await one.joined.topics.sweep() == 0
    assert await world.coordination.get(keys.SEGMENTS.key("t", 0, 1))
    assert await world.together.store.list("topics/t/")


async def topic_whole(world: World) -> None:
    await until(lambda: not any(one.core.catalog.unreadable_names() for one in world.living))
    for number in range(len(world.living)):
        async with world.http(number) as http:
            await world.publish(http, "t")
            assert await world.ask(http, "GET", T, 200)


async def segment_broken(world: World) -> None:
    await until(lambda: all(one.core.catalog.unreadable("t", 0) for one in world.living))
    await world.refuses("GET", f"{T}/segments/0/messages?offset=0", topic="t", segment=0)
    await world.refuses("POST", f"{T}/messages", {"messages": [{"key": f"k{n}", "value": n} for n in range(20)]})
    for change, body in (("split", {}), ("roll", None), ("merge", {"with": 0}), ("move", {"to": "b0"})):
        await world.refuses("POST", f"{T}/segments/1/{change}", body)
    await world.refuses("POST", f"{T}/flush")
    await world.refuses("PUT", f"{T}/subscriptions/late", {"start": "latest"})
    for number in range(len(world.living)):
        async with world.http(number) as http:
            shown = await world.ask(http, "GET", f"{T}/segments", 200)
            assert ([one["id"] for one in shown["segments"]], shown["unreadable"]) == ([1], [0])
            taken = [(await http.post(f"{T}/messages", json={"key": f"k{n}", "value": n})) for n in range(20)]
            assert {answer.status_code for answer in taken} == {200, 503}
            assert {answer.json()["segments"][0]["segment"] for answer in taken if answer.status_code == 200} == {1}
    async with world.http() as http:
        if found := await pulled_until_refused(world, http):
            assert {one["segment"] for one in found} == {1}
    assert await world.living[0].joined.topics.sweep() == 0
    assert await world.together.store.list("topics/t/")


async def pulled_until_refused(world: World, http: httpx.AsyncClient) -> list[Any]:
    """What other segments had; then the pull is refused, since the hidden one may have more."""
    found: list[Any] = []
    while True:
        answer = await http.post(f"{T}/subscriptions/s/pull", json={"max_messages": 1000, "consumer": "c", "wait_s": 0})
        if answer.status_code == 503:
            assert answer.json()["type"] == "/problems/needs-newer-broker"
            return found
        assert answer.json()["messages"], "an empty answer says that there is nothing"
        found += answer.json()["messages"]


async def segment_whole(world: World) -> None:
    await until(lambda: not any(one.core.catalog.unreadable("t", 0) for one in world.living))
    async with world.http() as http:
        await world.publish(http, "t")
        found: list[Any] = []
        while 0 not in {one["segment"] for one in found}:
            found += await world.pull(http, "t")
        await world.ask(http, "POST", f"{T}/subscriptions/s/ack", 200, {"ids": [one["id"] for one in found]})


async def start_broken(world: World) -> None:
    """A broker that has known no start of the segment does not guess one; what is open goes on from the one that it
    knows."""
    key = keys.STARTS.key("t", 0, 0)
    await until(lambda: all(key in one.core.catalog.starts._unreadable for one in world.living))
    if world.restarted:
        await world.refuses("GET", f"{T}/segments/0/messages?offset=0", topic="t", segment=0)
        return
    for number in range(len(world.living)):
        async with world.http(number) as http:
            await world.ask(http, "GET", f"{T}/segments/0/messages?offset=0", 200)


async def start_whole(world: World) -> None:
    await until(lambda: not any(one.core.catalog.starts._unreadable for one in world.living))
    for number in range(len(world.living)):
        async with world.http(number) as http:
            await world.ask(http, "GET", f"{T}/segments/0/messages?offset=0", 200)


async def tombstone_broken(world: World) -> None:
    """Whoever asks for the removed segment is not told that it never was."""
    await world.refuses("GET", f"{T}/segments/7", topic="t", segment=7)


async def tombstone_whole(world: World) -> None:
    async with world.http() as http:
        answer = await http.get(f"{T}/segments/7")
        assert answer.status_code in (200, 404), answer.text


async def retention_broken(world: World) -> None:
    """No round of retention begins, and nobody confirms."""
    await world.refuses("POST", "/v1/cluster/confirm")


async def retention_whole(world: World) -> None:
    async with world.http() as http:
        assert await world.ask(http, "POST", "/v1/cluster/confirm", 200) == {"retention_round": 0}


async def counter_broken(world: World) -> None:
    number = await open_segment(world)
    await world.refuses("POST", f"{T}/segments/{number}/split", {}, topic="t")
    assert await world.living[0].joined.topics.sweep() == 0


async def open_segment(world: World) -> int:
    async with world.http() as http:
        shown = await world.ask(http, "GET", f"{T}/segments", 200)
    return next(one["id"] for one in shown["segments"] if one["state"] == "open")


async def counter_whole(world: World) -> None:
    number = await open_segment(world)
    async with world.http() as http:
        answer = await http.post(f"{T}/segments/{number}/roll")
        assert answer.status_code in (200, 202), answer.text


async def creation_broken(world: World) -> None:
    assert await world.living[0].joined.topics.sweep() == 0
    assert await world.coordination.get(keys.CREATIONS.key("t", 9))


async def subscription_broken(world: World) -> None:
    for number, one in enumerate(world.living):
        if one.serving.subscribing.dispatcher.has(one.core.catalog.topic("t"), "u"):  # its next checkpoint finds it
            async with world.http(number) as http:
                await world.publish(http, "t")
                found = await world.ask(http, "POST", f"{T}/subscriptions/u/pull", 200, {"wait_s": 2})
                ids = [each["id"] for each in found["messages"]]
                await world.ask(http, "POST", f"{T}/subscriptions/u/ack", 200, {"ids": ids})
            await one.serving.subscribing.dispatcher.checkpoint()
            assert one.serving.subscribing.dispatcher.pin is not None, "the acks stay in the journal"
    for method, path, body in (
        ("GET", "", None),
        ("PUT", "", {}),
        ("DELETE", "", None),
        ("POST", "/pull", {"wait_s": 0}),
        ("POST", "/ack", {"ids": ["0-0"]}),
    ):
        await world.refuses(method, f"{T}/subscriptions/u{path}", body, topic="t", subscription="u")
    async with world.http() as http:
        listed = await world.ask(http, "GET", f"{T}/subscriptions", 200)
        assert ([one["name"] for one in listed["subscriptions"]], listed["unreadable"]) == (["s"], ["u"])


async def subscription_whole(world: World) -> None:
    for one in world.living:
        await one.serving.subscribing.dispatcher.checkpoint()
        assert one.serving.subscribing.dispatcher.pin is None, "what was acked meanwhile is written"
    async with world.http() as http:
        await world.publish(http, "t")
        body = {"max_messages": 1000, "wait_s": 2}
        assert (await world.ask(http, "POST", f"{T}/subscriptions/u/pull", 200, body))["messages"]
        listed = await world.ask(http, "GET", f"{T}/subscriptions", 200)
        assert [one["name"] for one in listed["subscriptions"]] == ["s", "u"]


async def rewind_broken(world: World) -> None:
    """No subscription is created or sought: retention could not hear of it."""
    await world.refuses("PUT", f"{T}/subscriptions/v", {}, topic="t")
    await world.refuses("POST", f"{T}/subscriptions/s/seek", {"to": "latest"}, topic="t")


async def rewind_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "PUT", f"{T}/subscriptions/v", 201, {})
        await world.ask(http, "DELETE", f"{T}/subscriptions/v", 204)


async def cursor_broken(world: World) -> None:
    for one in world.living:
        one.serving.subscribing.dispatcher.forget(one.core.catalog.topic("t"))
    before = await world.coordination.get(keys.CURSORS.key("t", 0, "s", 0))
    async with world.http() as http:
        found = await pulled_until_refused(world, http)
        assert {one["segment"] for one in found} <= {1}
        assert 0 not in {one["segment"] for one in (await world.ask(http, "GET", f"{T}/subscriptions/s", 200))["lag"]}
    await world.refuses("POST", f"{T}/subscriptions/s/ack", {"ids": ["0-0"]}, topic="t", subscription="s")
    for one in world.living:
        await one.serving.subscribing.dispatcher.checkpoint()
    assert await world.coordination.get(keys.CURSORS.key("t", 0, "s", 0)) == before


async def cursor_whole(world: World) -> None:
    for one in world.living:
        for subscription in one.serving.subscribing.dispatcher.subscriptions():
            subscription.reread_s = 0.0  # a second later
    async with world.http() as http:
        assert 0 in {one["segment"] for one in await world.pull(http, "t")}


async def upload_broken(world: World) -> None:
    await world.refuses("GET", f"{T}/uploads/{world.upload}", topic="t", upload_id=world.upload)
    await world.refuses("DELETE", f"{T}/uploads/{world.upload}", topic="t", upload_id=world.upload)


async def upload_whole(world: World) -> None:
    async with world.http() as http:
        assert (await world.ask(http, "GET", f"{T}/uploads/{world.upload}", 200))["state"] == "open"


async def import_broken(world: World) -> None:
    await world.refuses("GET", f"{T}/imports/{world.upload}", topic="t", upload_id=world.upload)
    for one in world.living:
        await one.serving.imports.look()


async def import_whole(world: World) -> None:
    async with world.http() as http:
        assert (await world.ask(http, "GET", f"{T}/imports/{world.upload}", 200))["state"] == "failed"


async def growth_broken(world: World) -> None:
    for one in world.living:
        one.joined.topics._quota._most = Counts(100, 100)  # it is near
    await world.refuses("PUT", "/v1/topics/more", {})


async def growth_whole(world: World) -> None:
    async with world.http() as http:
        answer = await http.put("/v1/topics/more", json={})
        assert answer.status_code == 201, answer.text
        await world.ask(http, "DELETE", "/v1/topics/more", 204)


async def secret_broken(world: World) -> None:
    for one in world.living:
        one.joined.uploads.own_urls._keys._roots = tuple  # as where the cluster has no secret
        one.joined.uploads.own_urls._keys._known = None
    await world.refuses("POST", f"{T}/uploads", {"size": 3, "content_type": "a/b"})


async def secret_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "POST", f"{T}/uploads", 201, {"size": 3, "content_type": "a/b"})


async def principal_broken(world: World) -> None:
    await world.refuses("PUT", "/v1/principals/p", {"grants": []})


async def principal_whole(world: World) -> None:
    async with world.http() as http:
        await world.ask(http, "PUT", "/v1/principals/p", 200, {"grants": []})


async def token_broken(world: World) -> None:
    """What cannot be read gives no right."""
    await until(lambda: all(one.core.callers.find(digest_of(TOKEN)) is None for one in world.living))


async def token_whole(world: World) -> None:
    await until(lambda: all(one.core.callers.find(digest_of(TOKEN)) for one in world.living))


BROKER = BrokerRecord("http://b9", "b9", 0, draining=True, highest=99)
IMPORT = ImportRecord("arrow", False, "n", 1, "s", 0, 2**60, 1, 1, None, state="failed")
PRINCIPAL, TOKEN = PrincipalRecord("u", (), 1), b"sq1_some"
CASES: dict[keys.KeyKind[Any], Case] = {
    keys.CLUSTER: Case(lambda _: "cluster", cluster_broken, nothing),
    keys.BROKERS: Case(lambda _: "brokers/b9.x", broker_broken, broker_whole, BROKER),
    keys.SUSPICIONS: Case(
        lambda _: "suspicions/b9.x/b8.x", nothing, nothing, SuspicionRecord("http://b9"), noticed=False
    ),
    keys.REVOCATIONS: Case(lambda _: "revocations/b9.x", nothing, nothing, RevocationRecord("b8.x", (), 600.0)),
    keys.LEADER: Case(lambda _: "leader", leader_broken, leader_whole, LeaderRecord("b9.x")),
    keys.JOURNALS: Case(lambda _: "journals/b9.gone", journal_broken, journal_whole, JournalRecord("file", "nowhere")),
    keys.TOPICS: Case(lambda _: "topics/t", topic_broken, topic_whole),
    keys.SEGMENTS: Case(lambda _: keys.SEGMENTS.key("t", 0, 0), segment_broken, segment_whole),
    keys.STARTS: Case(lambda _: keys.STARTS.key("t", 0, 0), start_broken, start_whole, StartRecord(0, 0)),
    keys.TOMBSTONES: Case(
        lambda _: keys.TOMBSTONES.key("t", 0, 7),
        tombstone_broken,
        tombstone_whole,
        TombstoneRecord(0, 1, 5, (), (8,), 0, 0, 0),
    ),
    keys.COUNTERS: Case(lambda _: "counters/t", counter_broken, counter_whole),
    keys.CREATIONS: Case(
        lambda _: keys.CREATIONS.key("t", 9), creation_broken, nothing, CreationRecord("b9.x", 1), noticed=False
    ),
    keys.SUBSCRIPTIONS: Case(lambda _: keys.SUBSCRIPTIONS.key("t", 0, "u"), subscription_broken, subscription_whole),
    keys.REWINDS: Case(lambda _: keys.REWINDS.key("t", 0), rewind_broken, rewind_whole),
    keys.CURSORS: Case(lambda _: keys.CURSORS.key("t", 0, "s", 0), cursor_broken, cursor_whole),
    keys.UPLOADS: Case(lambda world: keys.UPLOADS.key("t", 0, world.upload), upload_broken, upload_whole),
    keys.IMPORTS: Case(lambda world: keys.IMPORTS.key("t", 0, world.upload), import_broken, import_whole, IMPORT),
    keys.GROWTH: Case(lambda _: "growth", growth_broken, growth_whole, Counter(1)),
    keys.RETENTION: Case(lambda _: "retention", retention_broken, retention_whole, Counter(0)),
    keys.URL_SECRET: Case(lambda _: "url-secret", secret_broken, secret_whole, SecretRecord("00" * 32)),
    keys.PRINCIPALS: Case(lambda _: keys.PRINCIPALS.key("p"), principal_broken, principal_whole, PRINCIPAL),
    keys.TOKENS: Case(
        lambda _: keys.TOKENS.key("0" * 16),
        token_broken,
        token_whole,
        TokenRecord(digest_of(TOKEN).hex(), "p", PRINCIPAL.uid, 1),
    ),
}


@asynccontextmanager
async def worlds(folder: Path) -> AsyncIterator[World]:
    async with in_loop(folder, publish_timeout_s=10) as together:
        world = World(together)
        await world.begin()
        try:
            yield world
        finally:
            for one in world.living:
                await one.stop()


async def prepare(world: World, kind: keys.KeyKind[Any]) -> None:
    """Makes what only this kind's case needs."""
    if kind is keys.SUBSCRIPTIONS:
        one = world.living[0]
        record = (await one.serving.subscribing.admin.find(one.core.catalog.topic("t"), "s")) or None
        assert record
        for state in ("creating", "active"):
            value = keys.SUBSCRIPTIONS.encode(Versioned.new(record).replace(dispatcher=None, state=state))
            await world.coordination.commit([], [Put(CASES[kind].key(world), value)])
    if kind is keys.TOKENS:
        value = keys.PRINCIPALS.encode(Versioned.new(PRINCIPAL))
        await world.coordination.commit([], [Put(keys.PRINCIPALS.key("p"), value)])
    if kind is keys.IMPORTS:
        for state in ("checking", "failed"):
            value = keys.IMPORTS.encode(Versioned.new(IMPORT).replace(state=state))
            await world.coordination.commit([], [Put(CASES[kind].key(world), value)])


def proven(world: World, record: Any) -> Any:
    """The record, which of a broker shows that it knows the cluster's secret."""
    if not isinstance(record, BrokerRecord):
        return record
    return replace(record, proofs=world.living[0].core.trust.keys.prove("b9.x", record))


def test_every_kind_has_a_case() -> None:
    assert CASES.keys() == set(keys.CATALOGUE)


ALIKE = {
    keys.CREATIONS,
    keys.COUNTERS,
    keys.UPLOADS,
    keys.IMPORTS,
    keys.GROWTH,
    keys.RETENTION,
    keys.REWINDS,
    keys.TOMBSTONES,
    keys.URL_SECRET,
}  # read on request alone


@pytest.mark.parametrize("values", [VALUES[:1], later(VALUES[1:])], ids=["of a later level", "damaged"])
@pytest.mark.parametrize(
    "kind", [later(kind) if kind in ALIKE else kind for kind in keys.CATALOGUE], ids=lambda kind: kind.name
)
async def test_what_cannot_be_read_is_refused_alone(
    tmp_path: Path, kind: keys.KeyKind[Any], values: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    case = CASES[kind]
    async with worlds(tmp_path) as world:
        await prepare(world, kind)
        key = case.key(world)
        for value in values:
            caplog.clear()
            there = await world.coordination.get(key)
            record = proven(world, case.record)
            good = Put(key, kind.encode(Versioned.new(record)) if record else there.value)
            with caplog.at_level(logging.ERROR):
                await world.coordination.commit([], [Put(key, value)])
                await world.others_work()
                await case.broken(world)
                if value == VALUES[0] and kind is not keys.CLUSTER:
                    await world.restart(world.living[0])
                    await world.others_work()
                    await case.broken(world)
                await world.others_work()
            assert (await world.coordination.get(key)).value == value, "nobody here writes in its place"
            met = [one for one in caplog.messages if f"the record {key} cannot be read" in one]
            assert len(met) == case.noticed
            async with world.http() as http:
                metrics = await world.ask(http, "GET", "/metrics", 200)
            assert f'seaweedq_unreadable_records{{kind="{kind.name}"}} {float(case.noticed)}' in metrics
            await world.coordination.commit([], [good])
            await case.whole(world)
            await world.others_work()
            await NOTED.look(world.coordination)
            assert not NOTED
        if case.record:
            await case.remove(world)
