"""The Python client over splits, merges and rolls, in the brokers' own loop: table, fetch, subscriber, producer."""

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from seaweedq import AsyncClient
from seaweedq.client.core.effects import ARROW, NDJSON
from seaweedq.clock import SystemIds
from seaweedq.storage.local import LocalStore
from tests.support.brokers.in_process_cluster import InLoop, in_loop
from tests.support.brokers.reshaped import beside, change_all, make, opened, publishing, records, replace
from tests.support.client import kinds

pytestmark = pytest.mark.brokers


class ByHost(httpx.AsyncBaseTransport):
    """Requests go to the broker that their URL names. `kinds` are those of the publishes; of those each seventh is
    handled, and its answer lost."""

    def __init__(self, together: InLoop) -> None:
        self._together = together
        self.kinds: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As its base."""
        app = self._together.apps[f"http://{request.url.host}"]
        answer = await httpx.ASGITransport(app).handle_async_request(request)
        if "producer-id" in request.headers:
            self.kinds.append(request.headers["content-type"])
            if len(self.kinds) % 7 == 0:
                raise httpx.ReadError("connection reset", request=request)
        return answer


def client_of(together: InLoop) -> AsyncClient:
    """The client of all brokers."""
    return AsyncClient(list(together.apps), transport=ByHost(together))


def by_key(table: pa.Table) -> dict[str, list[int]]:
    """The keys' own numbers, sorted; no row may be there twice."""
    ids = set(zip(table["segment"].to_pylist(), table["_offset"].to_pylist(), strict=True))
    assert len(ids) == table.num_rows, "a row is there twice"
    found: dict[str, list[int]] = defaultdict(list)
    for key, value in zip(table["_key"].to_pylist(), table["value"].to_pylist(), strict=True):
        found[key].append(json.loads(value))
    return {key: sorted(numbers) for key, numbers in found.items()}


async def read_all(client: AsyncClient, taken: dict[str, int], changed: asyncio.Event) -> int:
    """Read the table again and again: every key's messages are there from 0 on, at least those acknowledged before."""
    times = 0
    while not changed.is_set():
        before = dict(taken)
        found = by_key(await client.read_table("t", live=True))
        for key, numbers in found.items():
            assert numbers == [*range(len(numbers))], f"{key} has a hole"
        assert all(len(found.get(key, [])) >= count for key, count in before.items())
        times += 1
    return times


@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_a_live_table_is_whole_amid_changes(tmp_path: Path, arrow: bool) -> None:
    store: Any = LocalStore(tmp_path / "store", SystemIds())
    for number in ("0", "1"):  # where each broker says that the store is
        (tmp_path / number).mkdir()
        (tmp_path / number / "store").symlink_to(tmp_path / "store")
    async with in_loop(tmp_path, store=store) as together, client_of(together) as client:
        await make(together.brokers[0], 2)
        changed = asyncio.Event()
        async with (
            publishing(together, arrow) as published,
            beside(read_all(client, published.taken, changed)) as tasks,
        ):
            await change_all(together)
            published.ending = True
            changed.set()
        assert tasks[0].result() > 5
        table = await client.read_table("t", live=True)
        assert by_key(table) == {key: [*range(n)] for key, n in published.taken.items()}


@pytest.mark.parametrize(("kind", "key_field"), [("lines", None), ("rows", None), ("rows", "k")])
async def test_producer_and_subscriber_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key_field: str | None
) -> None:
    kinds.use(kind, monkeypatch)
    async with in_loop(tmp_path) as together, client_of(together) as client:
        await client.create_topic("t", key_field=key_field)
        done = asyncio.Event()

        async def produce() -> dict[str, int]:
            sent: dict[str, int] = defaultdict(int)
            async with client.producer("t") as producer:
                while not done.is_set():
                    for key in map(str, range(20)):
                        value = {"k": int(key), "n": sent[key]} if key_field else sent[key]
                        await producer.send(value, key=None if key_field else key)
                        sent[key] += 1
                    await asyncio.sleep(0.002)
            return sent

        async def receive() -> dict[str, list[int]]:
            found: dict[str, list[int]] = defaultdict(list)
            async for message in client.subscribe("t", "s", start="earliest", idle_timeout_s=2):
                found[message.key or ""].append(message.value["n"] if key_field else message.value)
                message.ack()
            return found

        async with beside(produce(), receive()) as (sent, received):
            await change_all(together)
            done.set()
        assert received.result() == {key: [*range(n)] for key, n in sent.result().items()}
        assert set(client._transport._mock.kinds) == {ARROW if kind == "rows" else NDJSON}
        left = (await client.subscription("t", "s"))["lag"]
        assert {one["segment"] for one in left} == set(opened(together.brokers[0]))
        assert sum(one["messages"] for one in left) == 0


async def test_the_segment_map_and_pages_of_a_split_topic(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, client_of(together) as client:
        one = together.brokers[0]
        await make(one)
        await client.publish("t", [{"value": n} for n in range(3)])
        successors = await replace(together, [0], 2, together.brokers)
        await client.publish("t", {"value": 3})
        found: dict[int, dict[str, Any]] = {each["id"]: each for each in await client.segments("t")}
        assert [*found] == [0, *successors]
        sealed = found.pop(0)
        assert (sealed["state"], sealed["owner"], sealed["owner_url"]) == ("sealed", None, None)
        assert (sealed["predecessors"], sealed["successors"]) == ([], successors)
        assert (sealed["start_offset"], sealed["flushed_offset"], sealed["end_offset"]) == (0, 3, 3)
        for number, each in found.items():
            assert (each["state"], each["predecessors"], each["successors"]) == ("open", [0], [])
            assert each["owner"] == records(one)[number].owner
        assert sum(each["end_offset"] for each in found.values()) == 1
        shown = await client.topic("t")
        assert (shown["segments"], shown["messages"]) == (2, 4)
        assert shown["bytes"] > 0
        assert shown["tail_bytes"] > 0
        page = await client.fetch("t", 0, 0)
        assert (len(page.messages), page.next_offset, page.sealed, page.successors) == (3, 3, True, successors)
        page = await client.fetch("t", successors[0], 0)
        assert (page.sealed, page.successors) == (False, [])
