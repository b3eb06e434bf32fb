"""A world in which every step of uploads waits for its turn, so that a test decides what happens in which order.

Two brokers, one coordination, one store. Whoever asks coordination or the store stands at a gate first; `World.run`
lets one after another through it, as the test's choices say, and kills some of them where they stand.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any

from seaweedq.broker.cluster.periodic_tasks import UploadSweep
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads.broker_urls import BrokerUrls, LinkKeys
from seaweedq.broker.uploads.records import UploadRecords
from seaweedq.broker.uploads.uploads import Uploads
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import BadRequest, InvalidUpload
from seaweedq.settings import Settings
from seaweedq.storage.interface import Part, SignedRequest
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.stored import record_of

DAY_S = 86_400
SETTLE = 12  # turns of the loop in which everybody comes to the next gate
BYTES = b"0123456789" * 3
SHA256 = hashlib.sha256(BYTES).hexdigest()


class Hands:
    """A clock that a test turns, and ids in a row."""

    def __init__(self) -> None:
        self.us = 1_800_000_000 * 1_000_000
        self._drawn = 0

    def now_us(self) -> int:
        return self.us

    def monotonic_s(self) -> float:
        return self.us / 1e6

    def nonce(self) -> str:
        self._drawn += 1
        return f"{self._drawn:032x}"


class Gate:
    """Where tasks wait for their turn; open before and after a run."""

    def __init__(self) -> None:
        self.shut = False
        self.waiting: dict[asyncio.Task[Any], asyncio.Future[None]] = {}

    async def turn(self) -> None:
        task = asyncio.current_task()
        if not self.shut or task is None:
            return
        self.waiting[task] = asyncio.get_running_loop().create_future()
        try:
            await self.waiting[task]
        finally:
            del self.waiting[task]


class GatedCoordination(MemoryCoordination):
    """Coordination, a turn before each call, and one behind each commit: who is killed there was not told."""

    def __init__(self, clock: Hands, gate: Gate) -> None:
        super().__init__(clock)
        self._gate = gate
        self.published: set[str] = set()  # names of objects, since ever

    async def _run(self, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self._gate.turn()
        found = step(*args, **kwargs)
        if step.__name__ == "commit":
            if found:
                self.published |= {name for write in args[1] for name in _published(write)}
            await self._gate.turn()
        return found


class GatedStore(MemoryStore):
    """A store that presigns, and knows parts; clients put with `create` and `put_part`. A turn before each call."""

    presigns = True

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate
        self.multipart: dict[str, dict[int, bytes]] = {}

    async def size(self, name: str) -> int:
        await self._gate.turn()
        return await super().size(name)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        await self._gate.turn()
        return await super().read(name, start, end)

    async def delete(self, name: str) -> None:
        await self._gate.turn()
        await super().delete(name)

    async def create(self, name: str, data: Any) -> bool:
        await self._gate.turn()
        return await super().create(name, data)

    async def receive(self, name: str, chunks: Any, size: int, sha256: str | None) -> str | None:
        data = b"".join([chunk async for chunk in chunks])
        digest = hashlib.sha256(data).hexdigest()
        if len(data) != size or sha256 not in (None, digest):
            raise InvalidUpload("other bytes", field="size", value=len(data), bound=size)
        return digest if await self.create(name, data) else None

    async def presign_put(self, name: str, *more: Any) -> SignedRequest:
        return SignedRequest(name, "PUT", {})

    async def begin_parts(self, name: str, content_type: str) -> str:
        await self._gate.turn()
        self.multipart[name] = {}
        return name

    async def put_part(self, name: str, number: int, data: bytes) -> None:
        await self._gate.turn()
        if name in self.multipart:
            self.multipart[name][number] = data

    async def list_parts(self, name: str, parts: str) -> list[Part]:
        await self._gate.turn()
        if parts not in self.multipart:
            raise FileNotFoundError(name)
        return [Part(number, len(data), "") for number, data in sorted(self.multipart[parts].items())]

    async def end_parts(self, name: str, parts: str, found: Sequence[Part]) -> None:
        await self._gate.turn()
        if parts not in self.multipart:
            self._get(name)
            return
        there = self.multipart.pop(parts)
        self.objects.setdefault(name, b"".join(there[part.number] for part in found))

    async def abort_parts(self, name: str, parts: str) -> None:
        await self._gate.turn()
        self.multipart.pop(parts, None)


async def in_its_generation() -> None:
    """The store knows no other generation."""


class World:
    """Two brokers (`uploads`), their leader's sweep, and what was promised to whom."""

    def __init__(self, presigns: bool) -> None:
        self.clock, self.gate = Hands(), Gate()
        self.coordination = GatedCoordination(self.clock, self.gate)
        self.store = GatedStore(self.gate)
        self.store.presigns = presigns
        self.settings = Settings(multipart_bytes=5 * 1024 * 1024)
        self.secret = ""
        self.claimed: set[str] = set()
        self.aborted: set[str] = set()

    async def start(self) -> None:
        """A topic, and the brokers."""
        record = TopicRecord(0, "active", TopicConfig(), self.clock.us)
        await self.coordination.commit([], [Put(keys.TOPICS.key("t"), keys.TOPICS.encode(Versioned.new(record)))])
        self.catalog = Catalog(self.coordination, lambda topic: None)
        await self.catalog.load()
        self.uploads = [self.new_uploads() for _ in range(2)]
        self.sweep = self.new_sweep()

    def roots(self) -> list[bytes]:
        return [self.secret[::-1].encode()] if self.secret else []

    def new_uploads(self) -> Uploads:
        link_keys = LinkKeys(self.coordination, self.clock, self.roots)
        urls = BrokerUrls(link_keys, self.clock, "http://x", self.settings.upload_url_s)
        records = UploadRecords(self.catalog, self.coordination)
        return Uploads(records, urls, self.store, self.clock, self.clock, self.settings)

    def new_sweep(self) -> UploadSweep:
        """That of a leader who has just begun."""
        grace_s, leads = self.settings.upload_grace_s, Compare("leader", 0)
        return UploadSweep(
            self.catalog, self.coordination, self.store, self.clock, grace_s, lambda: leads, in_its_generation
        )

    @property
    def topic(self) -> Topic:
        """The one topic."""
        return self.catalog.topic("t")

    def pass_s(self, seconds: float) -> None:
        """Time goes by."""
        self.clock.us += int(seconds * 1_000_000)

    async def claim(self, broker: int, upload: str) -> None:
        """Publish: what is told from here has to be there for ever."""
        await self.uploads[broker].claim(self.topic, upload)
        self.claimed.add(upload)

    async def abort(self, broker: int, upload: str) -> None:
        """End it: what is told from here can never be published."""
        await self.uploads[broker].abort(self.topic, upload)
        self.aborted.add(upload)

    async def run(self, acts: Sequence[Coroutine[Any, Any, Any]], choose: Callable[[int], int], kills: int) -> None:
        """Let `acts` go on in the order of choices, up to `kills` of them killed where they stand. What a request is
        refused for is no matter."""
        self.gate.shut = True
        tasks = [asyncio.create_task(_quietly(act)) for act in acts]
        chosen = tasks[0]
        while not all(task.done() for task in tasks):
            for _ in range(SETTLE):
                await asyncio.sleep(0)
            waiting = list(self.gate.waiting)
            if not waiting:
                continue
            if chosen not in waiting or choose(4) == 0:  # mostly the same one for a while, so that others fall behind
                chosen = waiting[choose(len(waiting))]
            if kills and choose(6) == 5:
                kills -= 1
                chosen.cancel()
            elif not (turn := self.gate.waiting[chosen]).done():
                turn.set_result(None)
        self.gate.shut = False
        for turn in list(self.gate.waiting.values()):
            turn.set_result(None)
        await asyncio.gather(*tasks, *(one.close() for one in self.uploads))


def _published(write: Put | Delete) -> Iterator[str]:
    if isinstance(write, Put) and write.key.startswith(keys.UPLOADS.prefix()):
        record = record_of(keys.UPLOADS, write.value)
        if record.state == "published":
            yield record.name


async def inline(work: Callable[..., Any], *args: Any) -> Any:
    """In place of a thread, so that a failure comes again."""
    return work(*args)


async def _quietly(act: Awaitable[Any]) -> None:
    try:
        await act
    except (BadRequest, FileNotFoundError, asyncio.CancelledError):
        pass
