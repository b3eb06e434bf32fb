"""Dead letters over HTTP: what is rejected, or fails too often, goes to its topic, and is acked then."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from seaweedq.broker.publish.publisher import Publisher
from seaweedq.broker.recovery import replay
from seaweedq.broker.subscriptions import dead_lettering as module
from seaweedq.broker.subscriptions.acking import AckHandler
from seaweedq.broker.subscriptions.cursor import SegmentCursor
from seaweedq.broker.subscriptions.delivery import DeadLetterBatch
from seaweedq.broker.subscriptions.window import HELD
from seaweedq.coordination.packed_forms import SegmentSeek, cursor_after, pack_cursor, unpack_cursor
from seaweedq.coordination.records import CursorRecord, HeldLease
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import BelowRetention, CoordinationUnavailable, Unavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at
from tests.support.http.asking import problem_of
from tests.support.tiers import later

TOPIC = "/v1/topics/t"
SUB = f"{TOPIC}/subscriptions/s"
DEAD = "/v1/topics/dead"
SCHEMA = {"type": "struct", "fields": [{"id": 1, "name": "n", "required": True, "type": "long"}]}


@asynccontextmanager
async def one(folder: Path, **settings: Any) -> AsyncIterator[tuple[InLoop, httpx.AsyncClient]]:
    async with in_loop(folder, 1, **settings) as together, at(together, together.brokers[0]) as http:
        yield together, http


async def made(http: httpx.AsyncClient, *messages: dict[str, Any], **settings: Any) -> None:
    """The topic, the subscription, and these messages."""
    await http.put(TOPIC, json={})
    answer = await http.put(SUB, json={"start": "earliest", "dead_letter_topic": "dead", **settings})
    assert answer.status_code == 201, answer.text
    if messages:
        answer = await http.post(f"{TOPIC}/messages", json={"messages": list(messages)})
        assert answer.status_code == 200, answer.text


async def pulled(http: httpx.AsyncClient, **more: Any) -> list[dict[str, Any]]:
    answer = await http.post(f"{SUB}/pull", json=more)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


async def nacked(http: httpx.AsyncClient, *ids: str, **more: Any) -> dict[str, Any]:
    answer = await http.post(f"{SUB}/nack", json={"ids": ids, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def lag(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.get(SUB)).json()["lag_total"])


async def dead(http: httpx.AsyncClient, topic: str = DEAD, segment: int = 0) -> list[dict[str, Any]]:
    """The letters."""
    answer = await http.get(f"{topic}/segments/{segment}/messages", params={"offset": 0, "limit": 1000})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["messages"])


async def buried(http: httpx.AsyncClient, messages: int = 0) -> None:
    """Wait until nothing is dying, and so many messages are left."""
    for _ in range(1000):
        found = await lag(http)
        if (found["dying"], found["messages"]) == (0, messages):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(found)


@pytest.mark.brokers
async def test_what_is_rejected_is_a_letter_and_then_acked(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, http):
        headers = {"trace": "1", "dead-letter-reason": "old"}
        first = {"key": "a", "value": 1, "headers": headers, "timestamp": "2020-01-02T03:04:05Z", "expires_in_s": 60}
        await made(http, first, {"key": "b", "value": 2}, {"value": 3})
        ids = [message["id"] for message in await pulled(http)]
        assert await nacked(http, *ids[:2], reject=True, reason="no such ☃") == {"nacked": 2, "late": 0, "unknown": []}
        assert await nacked(http, ids[0]) == {"nacked": 0, "late": 0, "unknown": [ids[0]]}, "it is with nobody"
        await buried(http, messages=1)
        one_, other = await dead(http)
        assert (one_["key"], one_["value"], one_["timestamp"][:19]) == ("a", 1, "2020-01-02T03:04:05")
        time = one_["headers"].pop("dead-letter-time")
        assert time.endswith("Z")
        assert one_["headers"] == {
            "trace": "1",
            "dead-letter-reason": "rejected",
            "dead-letter-detail": "no such ☃",
            "dead-letter-topic": "t",
            "dead-letter-subscription": "s",
            "dead-letter-id": ids[0],
            "dead-letter-attempts": "1",
        }
        assert (other["key"], other["value"], other["headers"]["dead-letter-id"]) == ("b", 2, ids[1])
        assert await pulled(http) == [], "the third is leased"
        assert "seaweedq_dead_letters_total 2.0" in (await http.get("/metrics")).text


@pytest.mark.brokers
async def test_what_fails_too_often_is_a_letter(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, http):
        await made(http, {"value": "bad"}, {"value": "good"}, max_attempts=2)
        for attempt in (1, 2):
            bad, good = await pulled(http)
            assert (bad["value"], bad["attempt"], good["value"], good["attempt"]) == ("bad", attempt, "good", 1)
            await nacked(http, bad["id"], reason=f"failed {attempt}")
            if attempt == 1:
                continue
            assert (await http.post(f"{SUB}/ack", json={"ids": [good["id"]]})).json()["acked"] == 1
        await buried(http)
        (letter,) = await dead(http)
        assert letter["value"] == "bad"
        said = {name: letter["headers"][f"dead-letter-{name}"] for name in ("reason", "detail", "attempts")}
        assert said == {"reason": "max-attempts", "detail": "failed 2", "attempts": "2"}


@pytest.mark.brokers
async def test_what_kills_its_consumer_is_dead_lettered_alone(tmp_path: Path) -> None:
    """The consumer dies of message 7, and what it has comes again, as if its leases had expired."""
    async with one(tmp_path) as (_, http):
        await made(http, *({"value": n} for n in range(40)), max_attempts=4, mode="shared")
        sizes = []
        for _ in range(60):
            found = await pulled(http)
            if not found:
                break
            sizes.append((min(message["attempt"] for message in found), len(found)))
            if 7 in [message["value"] for message in found]:
                await nacked(http, *(message["id"] for message in found))
            else:
                await http.post(f"{SUB}/ack", json={"ids": [message["id"] for message in found]})
        assert [size for attempt, size in sizes if attempt == 3] == [16, 16, 8]
        assert max(size for attempt, size in sizes if attempt == 4) == 1
        await buried(http)
        assert [letter["value"] for letter in await dead(http)] == [7]


@pytest.mark.brokers
async def test_what_is_not_taken_is_dying_until_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.02)
    publish, refusals = Publisher.batch, []

    async def refusing(self: Publisher, topic: Any, *more: Any) -> Any:
        if topic.name == "dead" and len(refusals) < 3:
            refusals.append(topic)
            assert (await lag(http))["dying"] == 1
            raise Unavailable("it is full")
        return await publish(self, topic, *more)

    monkeypatch.setattr(Publisher, "batch", refusing)
    async with one(tmp_path) as (_, http):
        await made(http, {"value": 1}, {"value": 2})
        (first, _) = await pulled(http)
        await nacked(http, first["id"], reject=True)
        found = await lag(http)
        assert (found["dying"], found["in_flight"], found["messages"]) == (1, 1, 2)
        assert 'seaweedq_subscription_dying{subscription="s",topic="t"} 1.0' in (await http.get("/metrics")).text
        gone = await http.patch(SUB, json={"dead_letter_topic": None})
        problem_of(gone, 409, "no-dead-letter-topic", "1 messages")
        assert (await http.post(f"{SUB}/ack", json={"ids": [first["id"]]})).json()["unknown"] == [first["id"]]
        assert await pulled(http) == []
        await buried(http, messages=1)
        assert (len(refusals), len(await dead(http))) == (3, 1)


@pytest.mark.brokers
async def test_what_is_dying_counts_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a topic that takes nothing would let all messages die, and memory grow."""
    monkeypatch.setattr(module.DeadLetters, "_begin", lambda self: None)
    async with one(tmp_path) as (_, http):
        await made(http, *({"value": n} for n in range(9)), max_in_flight=3, mode="shared")
        found = await pulled(http)
        assert len(found) == 3
        await nacked(http, *(message["id"] for message in found), reject=True)
        assert await pulled(http) == []


@pytest.mark.brokers
async def test_a_letter_that_was_published_twice_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The outcome of the first try was not known."""
    monkeypatch.setattr(module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "TICK_S", 0.02)
    publish, lost = Publisher.batch, []

    async def losing(self: Publisher, topic: Any, *more: Any) -> Any:
        found = await publish(self, topic, *more)
        if topic.name == "dead" and len(lost) < 2:
            lost.append(topic)
            raise Unavailable("not known to be durable")
        return found

    monkeypatch.setattr(Publisher, "batch", losing)
    async with one(tmp_path) as (_, http):
        await made(http, *({"value": n} for n in range(5)))
        await nacked(http, *(message["id"] for message in await pulled(http)), reject=True)
        await buried(http)
        assert len(lost) == 2
        assert [letter["value"] for letter in await dead(http)] == [0, 1, 2, 3, 4]


@pytest.mark.brokers
async def test_a_letter_whose_outcome_a_seek_did_not_await_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment stays where it is; its letter was published once more, under another identity."""
    monkeypatch.setattr(module, "TICK_S", 0.02)
    publish, lost = Publisher.batch, asyncio.Event()

    async def losing(self: Publisher, topic: Any, *more: Any) -> Any:
        found = await publish(self, topic, *more)
        if topic.name == "dead" and not lost.is_set():
            lost.set()
            raise Unavailable("not known to be durable")
        return found

    monkeypatch.setattr(Publisher, "batch", losing)
    async with one(tmp_path) as (_, http):
        await http.put(TOPIC, json={"initial_segments": 2})
        await made(http, *({"key": f"k{n}", "value": n} for n in range(10)))
        ids = [message["id"] for message in await pulled(http)]
        await nacked(http, next(id for id in ids if id.startswith("1-")), reject=True)
        await lost.wait()
        assert (await http.post(f"{SUB}/seek", json={"to": {"offsets": {"0": 0}}})).status_code == 200
        await buried(http, messages=9)
        assert len(await dead(http)) == 1


@pytest.mark.brokers
async def test_the_topic_is_created_with_the_sources_format_also_after_deletion(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, http):
        for name, config in (("t", {}), ("b", {"format": "bytes"}), ("y", {"format": "typed", "schema": SCHEMA})):
            await http.put(f"/v1/topics/{name}", json=config)
            path = f"/v1/topics/{name}/subscriptions/s"
            answer = await http.put(path, json={"start": "earliest", "dead_letter_topic": f"dead-{name}"})
            assert answer.status_code == 201, answer.text
            assert answer.json()["dead_letter_topic"] == f"dead-{name}"
            made_ = (await http.get(f"/v1/topics/dead-{name}")).json()
            assert (made_["format"], made_["schema"]) == (config.get("format", "json"), config.get("schema"))
        await http.post("/v1/topics/y/messages", json={"value": {"n": 5}})
        assert (await http.delete("/v1/topics/dead-y")).status_code == 204
        (found,) = (await http.post("/v1/topics/y/subscriptions/s/pull", json={})).json()["messages"]
        await http.post("/v1/topics/y/subscriptions/s/nack", json={"ids": [found["id"]], "reject": True})
        for _ in range(1000):
            if (await http.get("/v1/topics/y/subscriptions/s")).json()["lag_total"]["messages"] == 0:
                break
            await asyncio.sleep(0.005)
        (letter,) = await dead(http, "/v1/topics/dead-y", segment=1)
        assert letter["value"] == {"n": 5}


@pytest.mark.brokers
async def test_a_payload_is_copied_and_outlives_its_topic(tmp_path: Path) -> None:
    content = b"payload" * 1000
    async with one(tmp_path) as (_, http):
        await made(http)
        upload = (await http.post(f"{TOPIC}/uploads", json={"size": len(content)})).json()
        stored = await http.put(upload["url"], content=content, headers=upload["headers"])
        assert stored.status_code == 201, stored.text
        answer = await http.post(f"{TOPIC}/messages", json={"reference": {"upload_id": upload["upload_id"]}})
        assert answer.status_code == 200, answer.text
        (message,) = await pulled(http)
        await nacked(http, message["id"], reject=True)
        await buried(http)
        (letter,) = await dead(http)
        assert letter["reference"]["sha256"] == message["reference"]["sha256"]
        assert "/_payloads/dead/" in letter["reference"]["uri"]
        assert (await http.delete(TOPIC)).status_code == 204
        copied = await http.get(f"{DEAD}/segments/0/messages/0/payload", follow_redirects=True)
        assert (copied.status_code, copied.content) == (200, content)


@pytest.mark.brokers
async def test_settings_that_cannot_be_heeded(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, http):
        await http.put(TOPIC, json={})
        await http.put("/v1/topics/bytes", json={"format": "bytes"})
        for body, *says in (
            ({"max_attempts": 3}, "max_attempts", "3", "dead_letter_topic"),
            ({"dead_letter_topic": "t"}, "dead_letter_topic", "t"),
            ({"dead_letter_topic": "bytes", "max_attempts": 3}, "dead_letter_topic", "bytes", "json"),
            ({"dead_letter_topic": "dead", "max_attempts": 101}, "max_attempts", "101", "100"),
        ):
            problem_of(await http.put(SUB, json=body), 422, "invalid-request", *says)
        assert (await http.get(DEAD)).status_code == 404
        assert (await http.put(SUB, json={"start": "earliest"})).status_code == 201
        for body, *says in (
            ({"max_attempts": 1}, "dead_letter_topic"),
            ({"dead_letter_topic": "t"}, "dead_letter_topic", "t"),
            ({"dead_letter_topic": "bytes"}, "bytes"),
        ):
            problem_of(await http.patch(SUB, json=body), 422, "invalid-request", *says)
        changed = await http.patch(SUB, json={"dead_letter_topic": "dead", "max_attempts": 1})
        assert (changed.json()["dead_letter_topic"], changed.json()["max_attempts"]) == ("dead", 1)
        problem_of(await http.patch(SUB, json={"dead_letter_topic": None}), 422, "invalid-request", "max_attempts")
        both = {"dead_letter_topic": None, "max_attempts": 0}
        assert (await http.patch(SUB, json=both)).json()["dead_letter_topic"] is None


@pytest.mark.brokers
@pytest.mark.long
async def test_fewer_attempts_let_what_was_delivered_so_often_die(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, http):
        await made(http, {"value": 1})
        for _ in range(2):
            (found,) = await pulled(http)
            await nacked(http, found["id"])
        assert (await http.patch(SUB, json={"max_attempts": 2})).status_code == 200
        await buried(http)
        assert [letter["headers"]["dead-letter-attempts"] for letter in await dead(http)] == ["2"]


@pytest.mark.brokers
@pytest.mark.parametrize("end", ["handover", later("crash")])
async def test_what_is_dying_goes_on_dying_at_the_next_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """It was delivered again, and its consumer had to reject it once more."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(module, "TICK_S", 0.02)
    publish, open_ = Publisher.batch, asyncio.Event()

    async def refusing(self: Publisher, topic: Any, *more: Any) -> Any:
        if topic.name == "dead" and not open_.is_set():
            raise Unavailable("it is full")
        return await publish(self, topic, *more)

    monkeypatch.setattr(Publisher, "batch", refusing)
    async with in_loop(tmp_path, 2) as together, at(together, together.brokers[0]) as http:
        await made(http, {"value": 1}, {"value": 2})
        (first, _) = await pulled(http)
        await nacked(http, first["id"], reject=True, reason="why")
        topic = inside.topic(together.brokers[0], "t")
        dispatchers = [inside.dispatcher(broker) for broker in together.brokers]
        (before,) = [at_ for at_, one_ in enumerate(dispatchers) if one_.has(topic_of(together, at_), "s")]
        if end == "handover":
            await dispatchers[before].hand_over(topic_of(together, before), "s")
        else:
            await dispatchers[before].checkpoint()
            await together.crash(together.brokers[before])
        async with at(together, together.brokers[before if end == "handover" else 1 - before]) as other:
            assert first["value"] not in [
                message["value"] for message in await pulled(other, wait_s=0.2 if end == "handover" else 5)
            ]
            assert (await lag(other))["dying"] == 1
            open_.set()
            await buried(other, messages=1)
            (letter,) = await dead(other)
            assert (letter["value"], letter["headers"]["dead-letter-detail"]) == (1, "why")
        assert topic


@pytest.mark.brokers
@pytest.mark.parametrize("end", ["handover", later("crash")])
async def test_the_next_dispatcher_repeats_the_batch_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its messages are in other pieces by then, and others are dying that come before and between."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.02)
    monkeypatch.setattr(module, "TICK_S", 0.02)
    bury, publish, published, open_ = AckHandler.ack_dead_letters, Publisher.batch, list[Any](), asyncio.Event()

    async def failing(self: AckHandler, *more: Any) -> None:
        if not open_.is_set():
            raise Unavailable("the journal takes nothing")
        await bury(self, *more)

    async def noting(self: Publisher, topic: Any, rows: Any, producer: Any, *more: Any) -> Any:
        if topic.name == "dead":
            published.append((producer.id, producer.sequence, rows.num_rows))
        return await publish(self, topic, rows, producer, *more)

    monkeypatch.setattr(AckHandler, "ack_dead_letters", failing)
    monkeypatch.setattr(Publisher, "batch", noting)
    async with in_loop(tmp_path, 2) as together, at(together, together.brokers[0]) as http:
        await made(http, *({"value": n} for n in range(3)), mode="shared")
        assert (await http.post(f"{TOPIC}/flush")).status_code == 200
        await http.post(f"{TOPIC}/messages", json={"messages": [{"value": n} for n in range(3, 6)]})
        assert [message["value"] for message in await pulled(http)] == [*range(6)]
        await http.post(f"{TOPIC}/messages", json={"messages": [{"value": 6}, {"value": 7}]})
        await nacked(http, "0-3", "0-5", reject=True, reason="first")
        async with asyncio.timeout(30):
            while not published:
                await asyncio.sleep(0.01)
        await nacked(http, "0-0", "0-4", reject=True, reason="then")
        topics = [inside.topic(broker, "t") for broker in together.brokers]
        dispatchers = [inside.dispatcher(broker) for broker in together.brokers]
        (before,) = [at_ for at_, one_ in enumerate(dispatchers) if one_.has(topics[at_], "s")]
        assert (await http.post(f"{TOPIC}/flush")).status_code == 200
        if end == "handover":
            await dispatchers[before].hand_over(topics[before], "s")
        else:
            await dispatchers[before].checkpoint()
            await together.crash(together.brokers[before])
        open_.set()
        async with at(together, together.brokers[before if end == "handover" else 1 - before]) as other:
            await pulled(other, wait_s=5)
            await buried(other, messages=4)
            letters = [(letter["value"], letter["headers"]["dead-letter-detail"]) for letter in await dead(other)]
            assert letters == [(3, "first"), (5, "first"), (0, "then"), (4, "then")]
    again = published.count(published[0])
    assert again > 1, "the same identity, and as many"
    assert published[0][0] not in [producer for producer, *_ in published[again:]], "what is new has another one"


@pytest.mark.brokers
async def test_a_batch_without_ack_is_repeated_behind_those_of_other_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of all segments had one producer, of which a topic remembers few requests: a repeat was a new letter."""
    monkeypatch.setattr(module, "LONGEST_PAUSE_S", 0.02)
    bury, open_ = AckHandler.ack_dead_letters, asyncio.Event()

    async def failing(self: AckHandler, subscription: Any, segment: int, *more: Any) -> None:
        if segment == 0 and not open_.is_set():
            raise Unavailable("the journal takes nothing")
        await bury(self, subscription, segment, *more)

    monkeypatch.setattr(AckHandler, "ack_dead_letters", failing)
    async with one(tmp_path) as (_, http):
        await http.put(TOPIC, json={"initial_segments": 2})
        await made(http, *({"value": n, "key": f"k{n}"} for n in range(20)), mode="shared")
        ids = [message["id"] for message in await pulled(http, max_messages=100)]
        held, *_ = [id for id in ids if id.startswith("0-")]
        others = [id for id in ids if id.startswith("1-")]
        await nacked(http, held, reject=True)
        for count, id in enumerate(others[:5], 2):  # more than the topic remembers of a producer
            await nacked(http, id, reject=True)
            async with asyncio.timeout(30):
                while len(await dead(http)) < count:
                    await asyncio.sleep(0.01)
        open_.set()
        await buried(http, messages=14)
        letters = [letter["headers"]["dead-letter-id"] for letter in await dead(http)]
        assert sorted(letters) == sorted([held, *others[:5]])


async def test_what_cannot_be_read_now_waits() -> None:
    """A reader that does not know of the rows yet returns none: to ask it again at once would hold up all others."""

    class Behind:
        id = 0
        asked = 0

        async def read(self, *_: int) -> list[Any]:
            self.asked += 1
            assert self.asked == 1
            return []

    readable: Any = Behind()
    for is_whole in (True, False):
        readable.asked = 0
        with pytest.raises(Unavailable, match="offset 5"):
            await privates.read(module)(readable, np.array([5]), is_whole)


@pytest.mark.brokers
async def test_a_batch_of_many_pieces_is_read_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a successor reads lies in files, of which each has some."""
    async with one(tmp_path) as (together, http):
        await made(http)
        for n in range(4):
            await http.post(f"{TOPIC}/messages", json={"messages": [{"value": n, "key": "k" if n % 2 else None}]})
            assert (await http.post(f"{TOPIC}/flush")).status_code == 200
        broker = together.brokers[0]
        topic = inside.topic(broker, "t")
        readable = (await inside.readables(broker).every(topic, [0]))[0]
        offsets, rows = await privates.read(module)(readable, np.array([0, 1, 3]), is_whole=True)
        assert (offsets.tolist(), rows.column("_key").to_pylist()) == ([0, 1, 3], [None, "k", "k"])
        offsets, rows = await privates.read(module)(readable, np.array([0, 1, 3]), is_whole=False)
        assert (offsets.tolist(), rows.num_rows) == ([0], 1)


def test_a_checkpoint_has_the_batch_only_while_its_ack_is_on_its_way() -> None:
    """It had nothing of what was being acked: a crash then had it delivered, and published, again."""
    cursor = SegmentCursor(Versioned.new(CursorRecord(7, 0, delivered_to=0)))
    offsets = np.arange(3)
    cursor.delivery.leases.lease(offsets, 1, 1, 9.0)
    cursor.delivery.reject(offsets, 0.0, "no")
    cursor.delivery.dead_letters.sent = DeadLetterBatch("~letter.b.1", 40, (0, 2))
    for begins in (False, True):
        if begins:
            cursor.delivery.begin_ack(np.array([0, 2]))
        record = cursor.changed(7)
        assert record is not None
        after = SegmentCursor(Versioned.new(unpack_cursor(pack_cursor(record))))
        after.take_over(0, 9, 0.0)
        assert after.delivery.dead_letters.pending_batch() == DeadLetterBatch("~letter.b.1", 40, (0, 2))
        assert after.delivery.dead_letters.dying().tolist() == [0, 1, 2]
        assert after.delivery.dead_letters.reason_of(2) == ("rejected", "no")
    cursor.delivery.end_ack(np.array([0, 2]), durable=True)
    record = cursor.changed(7)
    assert record is not None
    assert record.held == (HeldLease("", "", 0.0, ((1, 2),), ("rejected", "no")),)


def test_a_batch_stays_in_a_record_that_its_reasons_do_not_fit_into() -> None:
    cursor = SegmentCursor(Versioned.new(CursorRecord(7, 0, delivered_to=0)))
    cursor.delivery.leases.lease(np.arange(2_000), 1, 1, 9.0)
    for offset in range(2_000):
        cursor.delivery.reject(np.array([offset]), 0.0, f"{offset} {'x' * 240}")
    cursor.delivery.dead_letters.sent = sent = DeadLetterBatch("~letter.b.1", 0, tuple(range(1, 2_000, 20)))
    record = cursor.changed(7)
    assert record is not None
    after = SegmentCursor(Versioned.new(unpack_cursor(pack_cursor(record))))
    after.take_over(0, 9, 0.0)
    assert after.delivery.dead_letters.pending_batch() == sent
    assert 100 < len(after.delivery.dead_letters.dying()) < 2_000


def topic_of(together: InLoop, number: int) -> Any:
    return inside.topic(together.brokers[number], "t")


def test_a_seek_keeps_what_is_dying_where_the_cursor_stays() -> None:
    dying = HeldLease("", "", 0.0, ((3, 4),), ("rejected", "why"))
    held = (HeldLease("mine", "c", 9.0, ((2, 3),)), dying)
    before = CursorRecord(7, 2, delivered_to=5, held=held)
    kept, moved = (cursor_after(SegmentSeek(0, 9, to), 8, before) for to in (None, 0))
    assert kept is not None
    assert moved is not None
    assert (kept.held, moved.held) == ((dying,), ())
    cursor = SegmentCursor(Versioned.new(kept))
    cursor.take_over(0, 8, 0.0)
    assert (cursor.delivery.dead_letters.dying().tolist(), cursor.delivery.window.count(HELD)) == ([3], 0)


def test_dying_messages_outlive_dispatchers_dead_before_a_checkpoint() -> None:
    """It was delivered again, and its consumer had to reject it once more. Leases are those of the epoch before."""
    dying = HeldLease("", "", 0.0, ((3, 4),), ("rejected", "why"))
    before = CursorRecord(7, 2, delivered_to=5, held=(HeldLease("mine", "c", 9.0, ((2, 3),)), dying))
    cursor = SegmentCursor(Versioned.new(before))
    cursor.take_over(0, 9, 0.0)
    assert (cursor.delivery.dead_letters.dying().tolist(), cursor.delivery.window.count(HELD)) == ([3], 0)
    replayed = replay.with_dying(CursorRecord(8, 3, delivered_to=5), before)
    assert replayed.held == (dying,)


@pytest.mark.brokers
async def test_nothing_dies_while_its_topic_is_taken_away(tmp_path: Path) -> None:
    """It was dying for ever: the subscription had no topic to which it could go."""
    async with one(tmp_path) as (together, http):
        await made(http, {"value": 1})
        (message,) = await pulled(http)
        gate, coordination = Gate(), together.coordination
        commit = coordination.commit

        async def held(*arguments: Any) -> Any:
            await gate()
            return await commit(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coordination, "commit", held)
            changing = asyncio.create_task(http.patch(SUB, json={"dead_letter_topic": None}))
            await gate.reached.wait()
            refused = await http.post(f"{SUB}/nack", json={"ids": [message["id"]], "reject": True})
            gate.open.set()
            assert (await changing).status_code == 200
        problem_of(refused, 409, "no-dead-letter-topic", "dead_letter_topic")
        assert (await lag(http))["dying"] == 0


@pytest.mark.brokers
async def test_a_topic_is_taken_away_once_though_the_answer_was_lost(tmp_path: Path) -> None:
    """What was rejected meanwhile died without a topic, and the repetition was refused since it was dying."""
    async with one(tmp_path) as (together, http):
        await made(http, {"value": 1})
        (message,) = await pulled(http)
        commit = together.coordination.commit

        async def lost(*arguments: Any) -> Any:
            await commit(*arguments)
            raise CoordinationUnavailable("the answer was lost")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(together.coordination, "commit", lost)
            assert (await http.patch(SUB, json={"dead_letter_topic": None})).status_code == 503
        refused = await http.post(f"{SUB}/nack", json={"ids": [message["id"]], "reject": True})
        problem_of(refused, 409, "no-dead-letter-topic", "dead_letter_topic")
        again = await http.patch(SUB, json={"dead_letter_topic": None})
        assert (again.status_code, again.json()["dead_letter_topic"]) == (200, None)
        assert (await lag(http))["dying"] == 0
        assert (await http.patch(SUB, json={"dead_letter_topic": "dead"})).status_code == 200
        await nacked(http, message["id"], reject=True)
        await buried(http)


@pytest.mark.brokers
async def test_letters_of_a_cursor_that_cannot_be_moved_up_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read each 20 ms."""
    async with one(tmp_path) as (together, http):
        await made(http, {"value": 1})
        (message,) = await pulled(http)
        broker, reads = together.brokers[0], 0
        subscription = await inside.dispatcher(broker).open(inside.topic(broker, "t"), "s")

        async def below(*arguments: Any) -> Any:
            nonlocal reads
            reads += 1
            subscription.unreadable.add(0)
            raise BelowRetention("gone", offset=0, start_offset=1)

        monkeypatch.setattr(inside.reader(broker), "read", below)
        await nacked(http, message["id"], reject=True)
        await until(lambda: reads)
        await asyncio.sleep(0.4)
        assert reads <= 4, "the pauses grow from half a second on"


@pytest.mark.brokers
async def test_two_changes_at_once_leave_no_attempts_without_a_topic(tmp_path: Path) -> None:
    """Each of them was right by itself; both together let messages die that had no topic."""
    async with one(tmp_path) as (_, http):
        await made(http)
        changes = {"max_attempts": 3}, {"dead_letter_topic": None}
        answers = await asyncio.gather(*(http.patch(SUB, json=change) for change in changes))
        assert sorted(answer.status_code for answer in answers) == [200, 422]
        found = (await http.get(SUB)).json()
        assert (found["max_attempts"] == 0) == (found["dead_letter_topic"] is None)
