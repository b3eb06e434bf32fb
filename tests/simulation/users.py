"""Users of the Python client in a simulated world: the whole client runs there, over a simulated transport.

A producer and a pool of workers write the history. The others have topics of their own, and know by themselves what
must be there: payloads, imports, writes, topics and subscriptions that are made again under their names, retention.
"""

import asyncio
import hashlib
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from seaweedq.client.aio.client import AsyncClient
from seaweedq.client.aio.producer import AsyncReceipt
from seaweedq.client.core.held_messages import Reject
from seaweedq.client.core.message import AsyncMessage
from seaweedq.errors import SeaweedqError, SubscriptionNotFound, TopicNotFound
from tests.simulation.clients import TOPIC, Client
from tests.simulation.network import SimulatedTransport
from tests.support.brokers.machine import SeededIds
from tests.support.history.history import digest
from tests.support.history.load import message
from tests.support.history.terms import Terms

T = TypeVar("T")
DELIVERY_S = 20.0
AGE_S = 20  # of messages that retention keeps
GONE_S = 60.0
WORKED = Terms("keyed", 3, 60.0, 5, "dead-worked")


@dataclass
class User(Client):
    """A user. `strange` is what it found to be wrong."""

    strange: list[str] = field(default_factory=list)
    client: AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        ids = SeededIds(self.rng.getrandbits(32))
        urls = self.rng.sample(self.urls, len(self.urls))
        transport = SimulatedTransport(self.network)
        self.client = AsyncClient(urls, timeout_s=10, transport=transport, clock=self.story.loop, ids=ids)

    async def at_last(self) -> None:
        """Looks at everything, once all is healed. Raises SeaweedqError."""

    async def close(self) -> None:
        """Ends its client, which raises what was told already."""
        await self.tried(self.client.close())

    async def tried(self, call: Awaitable[T]) -> T | None:
        """What a call returns; None if it fails, as it may now."""
        try:
            return await call
        except SeaweedqError:
            await asyncio.sleep(0.2)
            return None

    async def messages(self, topic: str) -> AsyncIterator[AsyncMessage]:
        """Every message of a topic."""
        for segment in await self.client.segments(topic):
            offset = segment.get("start_offset") or 0
            while (page := await self.client.fetch(topic, segment["id"], offset, 1000)).next_offset != offset:
                for one in page.messages:
                    yield one
                offset = page.next_offset


@dataclass
class Producer(User):
    """Sends by one producer, straight to the owners of segments, and looks at each receipt."""

    is_source: ClassVar[bool] = True
    next: int = 0

    async def run(self) -> None:
        self.producer = self.client.producer(TOPIC, delivery_timeout_s=DELIVERY_S)
        await super().run()

    async def step(self) -> None:
        await self.rest()
        count = self.rng.choice([1, 5, 20])
        sent = [message(self.name, self.next + n, self.rng) for n in range(count)]
        self.next += count
        lines: list[dict[str, Any]] = [
            {
                "key": m.get("key"),
                "producer": self.name,
                "seq": m["value"]["n"],
                "hash": digest(m.get("key"), m["value"]),
            }
            for m in sent
        ]
        call = self.story.invoke(self.name, "publish", lines)
        receipts: list[AsyncReceipt | None] = []
        for one in sent:
            try:
                receipts.append(await self.producer.send(one["value"], one.get("key")))
            except SeaweedqError:  # of an earlier one; this one was not taken
                receipts.append(None)
        await asyncio.gather(*(self._tell(call, *one) for one in zip(lines, receipts, strict=True)))

    async def _tell(self, call: int, line: dict[str, Any], receipt: AsyncReceipt | None) -> None:
        """Tells of a message's answer when it comes, and not when those of earlier messages have come."""
        if receipt is None:
            self.story.told(self.name, "publish", "fail", call, [line])
            return
        try:
            line["segment"], line["offset"] = map(int, (await receipt.result()).split("-"))
            self.story.told(self.name, "publish", "ok", call, [line])
        except SeaweedqError:
            self.story.told(self.name, "publish", "info", call, [line])


@dataclass
class Worker(User):
    """Handles messages in a pool, as `work` does. The history says of no pull and of no ack that it was answered."""

    subscription: str = "worked"

    async def step(self) -> None:
        asked = {"subscription": self.subscription}
        lost = self.story.invoke(self.name, "deliver", [asked])
        call = self.story.invoke(self.name, "deliver", [asked])

        async def handle(one: AsyncMessage) -> None:
            place = {"segment": one.segment, "offset": one.offset, **asked}
            told = {**place, "hash": digest(one.key, one.value), "attempt": one.attempt}
            self.story.told(self.name, "deliver", "ok", call, [told])
            if one.value["n"] % 43 == 9:
                self.story.invoke(self.name, "reject", [place])
                raise Reject("poison")
            if not self.settling and one.value["n"] % 31 == 4 and one.attempt == 1:
                raise ValueError("it fails once")
            self.story.invoke(self.name, "ack", [place])

        work = self.client.work(TOPIC, self.subscription, handle, 4, "earliest", 2.0, ack_deadline_s=3, mode="keyed")
        await self.tried(work)
        self.story.told(self.name, "deliver", "info", lost, [asked])


@dataclass
class Payloads(User):
    """Uploads, publishes by reference, and reads again what was published."""

    published: dict[str, str] = field(default_factory=dict)  # digests by id

    async def step(self) -> None:
        await self.rest()
        await self.tried(self._bring())
        if self.published:
            await self.tried(self._look(self.rng.choice([*self.published])))

    async def _bring(self) -> None:
        """Publishes an upload by reference."""
        content = self.rng.randbytes(self.rng.choice([1, 1000, 200_000]))
        upload = await self.client.upload("payloads", content)
        found = await self.client.publish("payloads", {"reference": {"upload_id": upload}})
        if found.ids:
            self.published[found.ids[0]] = hashlib.sha256(content).hexdigest()

    async def at_last(self) -> None:
        await self._bring()
        for id in self.published:
            await self._look(id)

    async def _look(self, id: str) -> None:
        segment, offset = map(int, id.split("-"))
        messages = (await self.client.fetch("payloads", segment, offset, 1)).messages
        if not messages or messages[0].id != id:
            self.strange.append(f"{id} was published by reference, and is not there")
            return
        async with messages[0].open() as payload:
            if hashlib.sha256(await payload.read()).hexdigest() != self.published[id]:
                self.strange.append(f"the payload of {id} is another one")


@dataclass
class Imports(User):
    """Imports and writes files of rows: of one that is done each row is there once, of any other at most once."""

    rows: dict[int, tuple[int, bool]] = field(default_factory=dict)  # by file: its rows, and whether it was done

    async def step(self) -> None:
        await self.rest()
        await self.tried(self._bring())

    async def _bring(self) -> None:
        """Imports a file, or writes one."""
        number, count = len(self.rows), self.rng.choice([1, 20, 300])
        lines = (json.dumps({"key": f"k{n % 7}", "value": {"file": number, "n": n}}) + "\n" for n in range(count))
        content = "".join(lines).encode()
        self.rows[number] = count, False
        await (self._write(number, content) if number % 2 else self._import(content))
        self.rows[number] = count, True

    async def _import(self, content: bytes) -> Any:
        return await self.client.import_file("imports", io.BytesIO(content), "ndjson")

    async def _write(self, number: int, content: bytes) -> Any:
        half = content.index(b"\n") + 1
        pieces = [content[:half], content[half:] or None]
        write = f"{self.name}/{number}"
        uploads = [await self.client.upload("imports", one, write=write) for one in pieces if one]
        for _ in range(self.rng.choice([0, 0, 1])):  # as if its answer had been lost
            await self.tried(self.client.write("imports", self.name, number, uploads, "ndjson", wait_s=0))
        return await self.client.write("imports", self.name, number, uploads, "ndjson")

    async def at_last(self) -> None:
        for _ in range(2):  # one of each kind ends, whatever became of those before
            await self._bring()
        found = Counter([(one.value["file"], one.value["n"]) async for one in self.messages("imports")])
        for number, (rows, done) in self.rows.items():
            counts = [found[number, n] for n in range(rows)]
            if max(counts) > 1:
                self.strange.append(f"file {number}: a row is there {max(counts)} times")
            if done and min(counts) == 0:
                self.strange.append(f"file {number} was done, and {counts.count(0)} of {rows} rows are missing")


@dataclass
class Deletions(User):
    """Makes a topic and a subscription, publishes, pulls, deletes one or both, and makes them again under their names:
    nothing of an earlier life is in a later one, and of a later one nothing is missing or acked."""

    next: int = 0
    here: set[int] = field(default_factory=set)  # what was acknowledged in this life of the topic
    gone: set[int] = field(default_factory=set)  # in earlier ones
    acked: set[int] = field(default_factory=set)  # or about to be, in this life of the subscription
    unsure: bool = False  # a deletion is under way

    async def step(self) -> None:
        await self.rest()
        if self.unsure and not await self._delete():
            return
        made = await self.tried(self.client.create_topic("deletions", initial_segments=2))
        if made is None or await self.tried(self._subscribe()) is None:
            return
        for _ in range(self.rng.randrange(1, 4)):
            numbers = [*range(self.next, self.next + 10)]
            self.next += 10
            sent = [{"key": f"k{n}", "value": n} for n in numbers]
            if await self.tried(self.client.publish("deletions", sent)) is not None:
                self.here.update(numbers)
            await self.tried(self._pull())
        await self.tried(self.at_last())
        if self.rng.random() < 0.5:
            self.unsure = True
            await self._delete()
        elif self.rng.random() < 0.5:
            while not await self._forget():
                pass

    async def at_last(self) -> None:
        if self.unsure:
            return
        try:
            found = {one.value async for one in self.messages("deletions")}
        except TopicNotFound:
            if self.here:
                self.strange.append("the topic is not there")
            return
        if earlier := found & self.gone:
            self.strange.append(f"{len(earlier)} messages of deleted topics are there: {sorted(earlier)[:5]}")
        if missing := self.here - found:
            self.strange.append(f"{len(missing)} of {len(self.here)} messages are missing: {sorted(missing)[:5]}")
        if self.settling:
            await self._subscribe()
            for _ in range(100):
                if await self._pull() == 0:
                    break
            if left := self.here - self.acked:
                self.strange.append(f"{len(left)} messages came to no consumer of the subscription: {sorted(left)[:5]}")

    async def _subscribe(self) -> Any:
        return await self.client.create_subscription("deletions", "s", start="earliest", ack_deadline_s=2)

    async def _pull(self) -> int | None:
        """Pulls and acks; how many came, None if nobody answered."""
        path = "/v1/topics/deletions/subscriptions/s"
        body = json.dumps({"max_messages": 50, "wait_s": 2.5, "consumer": self.name})
        found = await self.answer_of("POST", f"{path}/pull", body)
        if found is None:
            return None
        messages = found["messages"]
        if old := [m["value"] for m in messages if m["value"] in self.gone]:
            self.strange.append(f"messages of a deleted topic are delivered: {old[:5]}")
        self.acked.update(m["value"] for m in messages)
        if messages:
            await self.answer_of("POST", f"{path}/ack", json.dumps({"ids": [m["id"] for m in messages]}))
        return len(messages)

    async def answer_of(self, method: str, path: str, body: str) -> Any:
        """An answer's JSON; None for any but 200."""
        try:
            found = await self.answer(method, path, body)
        except ConnectionError:
            return None
        return json.loads(found.body) if found and found.status == 200 else None

    async def _forget(self) -> bool:
        """Deletes the subscription."""
        try:
            await self.client.delete_subscription("deletions", "s")
        except (SubscriptionNotFound, TopicNotFound):
            pass
        except SeaweedqError:
            await asyncio.sleep(0.2)
            return False
        self.acked.clear()
        return True

    async def _delete(self) -> bool:
        try:
            await self.client.delete_topic("deletions")
        except TopicNotFound:
            pass
        except SeaweedqError:
            await asyncio.sleep(0.2)
            return False
        self.gone |= self.here
        self.here.clear()
        self.acked.clear()
        self.unsure = False
        return True


@dataclass
class Retention(User):
    """A topic that keeps messages for some seconds: the newest are there, in order, and the oldest go in the end."""

    ages: bool = True  # no clock is so wrong that retention waits
    sent: dict[str, float] = field(default_factory=dict)  # when they were acknowledged, by id

    async def step(self) -> None:
        await self.rest()
        config: dict[str, Any] = {"retention": {"max_age_s": AGE_S, "grace_s": 60}, "flush": {"max_age_s": 1}}
        if not self.sent and await self.tried(self.client.create_topic("retained", **config)) is None:
            return
        found = await self.tried(self.client.publish("retained", {"key": "k", "value": len(self.sent)}))
        if found is not None and found.ids:
            self.sent[found.ids[0]] = asyncio.get_running_loop().time()
        if self.rng.random() < 0.2:
            await self.tried(self._look())

    async def at_last(self) -> None:
        """Within a minute, what is older than its bound is gone, but for the newest of each segment."""
        end_s = self.story.loop.time() + GONE_S
        while (old := await self._look()) and self.ages:
            if self.story.loop.time() > end_s:
                self.strange.append(f"retention has left old messages: {old[:5]}")
                break
            await asyncio.sleep(2)

    async def _look(self) -> list[str]:
        """Looks at all; the messages that are older than they may be, but for the newest of each segment."""
        begun_s = asyncio.get_running_loop().time()
        found = [one.id async for one in self.messages("retained")]
        young = [id for id, sent_s in self.sent.items() if begun_s - sent_s < 15 and sent_s < begun_s]
        if missing := [id for id in young if id not in found]:
            self.strange.append(f"retention has taken young messages: {missing[:5]}")
        by_segment: dict[str, list[int]] = {}
        for id in found:
            segment, _, offset = id.partition("-")
            by_segment.setdefault(segment, []).append(int(offset))
        for segment, offsets in by_segment.items():
            if offsets != [*range(offsets[0], offsets[0] + len(offsets))]:
                self.strange.append(f"segment {segment} has a hole: {offsets[:20]}")
        newest = {f"{segment}-{offsets[-1]}" for segment, offsets in by_segment.items()}
        return [id for id in found if id not in newest and self.sent.get(id, begun_s) < begun_s - AGE_S - GONE_S]
