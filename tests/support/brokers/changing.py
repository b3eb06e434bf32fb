"""What the tests of changes by hand share: a topic of several brokers, and publishes that go on meanwhile."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from seaweedq.broker.broker import Broker
from seaweedq.coordination.records import SegmentRecord, TopicConfig
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop

TOPIC = "/v1/topics/t"


def at(together: InLoop, broker: Broker) -> httpx.AsyncClient:
    """A client of one broker."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(together.apps[broker.process.url]), base_url=broker.process.url
    )


async def make(broker: Broker, segments: int = 1) -> None:
    """The topic `t`; its segments go to this broker and the others in turn."""
    await inside.topic_admin(broker).create("t", TopicConfig(initial_segments=segments))


def records(broker: Broker) -> dict[int, SegmentRecord]:
    """The segments as a broker knows them."""
    return inside.catalog(broker).segments(inside.topic(broker, "t"))


async def ask(http: httpx.AsyncClient, segment: Any, change: str, body: Any = None) -> httpx.Response:
    """Ask for a change."""
    return await http.post(f"{TOPIC}/segments/{segment}/{change}", **({} if body is None else {"json": body}))


def refused(answer: httpx.Response, status: int, slug: str, *says: object) -> dict[str, Any]:
    """The problem, which must be of this kind and say these things."""
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    assert found["type"] == f"/problems/{slug}"
    for one in says:
        assert str(one) in found["detail"], found["detail"]
    return found


class Publishing:
    """Publishes of some producers with several keys each, at all brokers; `ids` of what was taken, by key, in order."""

    def __init__(self, together: InLoop) -> None:
        self.ids: dict[str, list[str]] = defaultdict(list)
        self.ending = False
        self._together = together

    async def run(self, broker: Broker, producer: str, keys: int = 8) -> None:
        """Publish until the end, each request with its sequence, some twice."""
        async with at(self._together, broker) as http:
            sequence = 0
            while not self.ending:
                body = {"messages": [{"key": f"{producer}-{k}", "value": sequence + k} for k in range(keys)]}
                headers = {"Producer-Id": producer, "Producer-Sequence": str(sequence)}
                answer = await http.post(f"{TOPIC}/messages", json=body, headers=headers)
                assert answer.status_code == 200, answer.text
                again = await http.post(f"{TOPIC}/messages", json=body, headers=headers)
                assert again.json()["ids"] == answer.json()["ids"]
                for k, id in enumerate(answer.json()["ids"]):
                    self.ids[f"{producer}-{k}"].append(id)
                sequence += keys
                await asyncio.sleep(0)


@asynccontextmanager
async def publishing(together: InLoop) -> AsyncIterator[Publishing]:
    """Publishes at all brokers while the block runs; none may fail."""
    work = Publishing(together)
    tasks = [asyncio.create_task(work.run(broker, f"p{at}")) for at, broker in enumerate(together.brokers)]
    try:
        yield work
        before = sum(map(len, work.ids.values()))
        while sum(map(len, work.ids.values())) < before + 50 and not any(task.done() for task in tasks):
            await asyncio.sleep(0.01)
    finally:
        work.ending = True
        await asyncio.gather(*tasks)


def in_order(ids: list[str], lineage: dict[int, SegmentRecord]) -> None:
    """One key's ids rise within each segment, and go from a segment only to those that follow it."""
    at: tuple[int, int] | None = None
    for id in ids:
        segment, offset = map(int, id.split("-"))
        assert at is None or (at[1] < offset if segment == at[0] else segment in heirs(at[0], lineage)), ids
        at = segment, offset


def heirs(segment: int, lineage: dict[int, SegmentRecord]) -> set[int]:
    """All that follow a segment."""
    return set().union(*({n} | heirs(n, lineage) for n in lineage[segment].successors))
