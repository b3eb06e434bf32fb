"""What the tests of reading over splits, merges and rolls share: a topic whose segments give way to others while
messages come, and a reader that follows segments by fetches."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from itertools import count, cycle
from typing import Any

import httpx
import pyarrow as pa

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import SegmentRecord, TopicConfig
from seaweedq.errors import NotOwner
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, until

TOPIC = "/v1/topics/t"
ARROW = "application/vnd.apache.arrow.stream"
Row = tuple[int, int, str, int]  # segment, offset, key, and the key's own number


def at(together: InLoop, broker: Broker) -> httpx.AsyncClient:
    """A client of one broker."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(together.apps[broker.process.url]),
        base_url=broker.process.url,
        timeout=60,
    )


async def make(broker: Broker, segments: int = 1) -> Topic:
    """The topic `t`."""
    await inside.topic_admin(broker).create("t", TopicConfig(initial_segments=segments))
    return inside.topic(broker, "t")


def records(broker: Broker) -> dict[int, SegmentRecord]:
    """The segments of `t` as a broker knows them."""
    return inside.catalog(broker).segments(inside.topic(broker, "t"))


def opened(broker: Broker) -> list[int]:
    """The open segments in the order of their ranges."""
    found = records(broker)
    return sorted((n for n in found if found[n].state == "open"), key=lambda n: found[n].low)


async def replace(
    together: InLoop, segments: Sequence[int], parts: int = 1, owners: Sequence[Broker] = ()
) -> list[int]:
    """Have these segments, neighbours, give way to `parts` equal ones, which these brokers own: their ids."""
    known = records(together.brokers[0])
    low, high = known[segments[0]].low, known[segments[-1]].high
    points = [low + (high - low) * part // parts for part in range(1, parts)]
    while True:
        owner = await gathered(together, segments)
        topic, ids = inside.topic(owner, "t"), [b.id for b in owners]
        try:
            intent = await inside.planner(owner).plan(topic, segments, points, ids)
        except NotOwner:  # the leader has just moved one, to even out the load
            await asyncio.sleep(0.05)
            continue
        await until(lambda at=owner: records(at)[segments[0]].intent is None)
        if records(owner)[segments[0]].state == "sealed":
            break  # else a move of the leader has undone the plan
    await until(lambda: all(records(b).get(segments[0], UNKNOWN).state == "sealed" for b in together.brokers))
    return [successor.id for successor in intent.successors]


async def gathered(together: InLoop, segments: Sequence[int]) -> Broker:
    """Move all to the owner of the first one."""
    known = records(together.brokers[0])
    owner, *others = [by_id(together, known[number].owner) for number in segments]
    for number, other in zip(segments[1:], others, strict=True):
        if other is not owner:
            await inside.mover(other).move(inside.topic(other, "t"), number, owner.id)
    return owner


UNKNOWN = SegmentRecord(0, 1, "open", (), (), None, None, 0)


def by_id(together: InLoop, broker: str | None) -> Broker:
    """The living broker of that id."""
    return next(one for one in together.brokers if one.id == broker)


def messages_of(prefix: str, n: int, keys: int) -> list[dict[str, Any]]:
    """The n-th message of each key."""
    return [{"key": f"{prefix}-{k}", "value": n} for k in range(keys)]


def as_request(messages: Sequence[dict[str, Any]], arrow: bool) -> dict[str, Any]:
    """The publish of these messages, for httpx."""
    if not arrow:
        return {"json": {"messages": list(messages)}}
    batch = pa.record_batch(
        {"value": [json.dumps(m["value"]) for m in messages], "_key": [m["key"] for m in messages]},
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {"content": sink.getvalue().to_pybytes(), "headers": {"content-type": ARROW}}


class Publishing:
    """Publishes at all brokers; `taken` says how many messages of each key were acknowledged, numbered from 0."""

    def __init__(self, together: InLoop, arrow: bool) -> None:
        self.taken: dict[str, int] = defaultdict(int)
        self.ending = False
        self._together, self._arrow = together, arrow

    async def run(self, broker: Broker, prefix: str, keys: int = 16) -> None:
        """Publish one message a key after another until the end."""
        async with at(self._together, broker) as http:
            for n in count():
                if self.ending:
                    return
                messages = messages_of(prefix, n, keys)
                answer = await http.post(f"{TOPIC}/messages", **as_request(messages, self._arrow))
                assert answer.status_code == 200, answer.text
                for message in messages:
                    self.taken[message["key"]] = n + 1
                await asyncio.sleep(0.01)  # else who reads meanwhile never comes to the end

    @property
    def total(self) -> int:
        """How many messages were acknowledged."""
        return sum(self.taken.values())


@asynccontextmanager
async def publishing(together: InLoop, arrow: bool = False) -> AsyncIterator[Publishing]:
    """Publishes at all brokers while the block runs; none may fail."""
    work = Publishing(together, arrow)
    async with beside(*(work.run(broker, f"p{n}") for n, broker in enumerate(together.brokers))):
        yield work
        work.ending = True


@asynccontextmanager
async def beside(*work: Coroutine[Any, Any, Any]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """These run beside the block, and are waited for behind it; where one fails, or the block does, all end."""
    async with asyncio.TaskGroup() as group:
        yield [group.create_task(one) for one in work]


async def change_all(together: InLoop, rounds: int = 2) -> None:
    """Split, merge and roll what there is, with owners in turn."""
    owners = cycle(together.brokers)
    for _ in range(rounds):
        await replace(together, opened(together.brokers[0])[:1], 3, [next(owners), next(owners), next(owners)])
        await asyncio.sleep(0.1)
        await replace(together, opened(together.brokers[0])[1:3], 1, [next(owners)])
        await asyncio.sleep(0.1)
        await replace(together, opened(together.brokers[0])[:1], 1, [next(owners)])
        await replace(together, opened(together.brokers[0])[:2], 2, [next(owners), next(owners)])
        await asyncio.sleep(0.1)


class Following:
    """Reads a topic by fetches from its first segments on, each segment behind all its predecessors."""

    def __init__(self, clients: Sequence[httpx.AsyncClient], arrow: bool) -> None:
        self.rows: list[Row] = []
        self._clients = cycle(clients)
        self._arrow = arrow

    async def run(self, enough: Callable[[], bool]) -> None:
        """Read until there is nothing more and `enough` was true before."""
        offsets = dict.fromkeys(await self._roots(), 0)
        done: set[int] = set()
        while True:
            last_round, came = enough(), False
            for segment, offset in list(offsets.items()):
                rows, after, sealed, successors = await self._fetch(segment, offset)
                self.rows += rows
                offsets[segment] = after
                came = came or after > offset
                if sealed and after == offset:
                    came = True
                    del offsets[segment]
                    done.add(segment)
                    before = await self._predecessors()
                    offsets |= {n: 0 for n in successors if n not in offsets and before[n] <= done}
            if last_round and not came:
                return
            await asyncio.sleep(0 if came else 0.01)

    async def _roots(self) -> list[int]:
        return [number for number, before in (await self._predecessors()).items() if not before]

    async def _predecessors(self) -> dict[int, set[int]]:
        found = (await next(self._clients).get(f"{TOPIC}/segments")).json()
        return {one["id"]: set(one["predecessors"]) for one in found["segments"]}

    async def _fetch(self, segment: int, offset: int) -> tuple[list[Row], int, bool, list[int]]:
        path = f"{TOPIC}/segments/{segment}/messages?offset={offset}&limit=50"
        if not self._arrow:
            answer = await next(self._clients).get(path)
            assert answer.status_code == 200, answer.text
            page = answer.json()
            rows = [(m["segment"], m["offset"], m["key"], m["value"]) for m in page["messages"]]
            return rows, page["next_offset"], page["sealed"], page["successors"]
        answer = await next(self._clients).get(path, headers={"accept": ARROW})
        assert answer.status_code == 200, answer.text
        table = pa.ipc.open_stream(answer.content).read_all()
        rows = [(segment, m["_offset"], m["_key"], json.loads(m["value"])) for m in table.to_pylist()]
        successors = [int(n) for n in answer.headers.get("successors", "").split(",") if n]
        return rows, int(answer.headers["next-offset"]), answer.headers.get("sealed") == "true", successors


def check_all_once_in_order(rows: Sequence[Row], taken: dict[str, int]) -> None:
    """Every acknowledged message is there once, each key's in the order in which they were acknowledged."""
    ids = [(segment, offset) for segment, offset, _, _ in rows]
    assert len(set(ids)) == len(ids), "a message came twice"
    found: dict[str, list[int]] = defaultdict(list)
    for _, _, key, n in rows:
        found[key].append(n)
    assert found == {key: list(range(n)) for key, n in taken.items()}
