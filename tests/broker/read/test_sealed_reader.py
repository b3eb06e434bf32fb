"""Sealed segments where brokers cache files: one reads the files for all, and others if it is away."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.storage.cache_plan import FileRange
from seaweedq.storage.ranges import TAIL_BYTES
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, replace
from tests.support.brokers.retained import fill

pytestmark = pytest.mark.brokers

MESSAGES = 6


async def begin(together: InLoop) -> None:
    """A topic of one segment, with three files of two messages."""
    await make(together.brokers[0])
    await until(lambda: all(inside.catalog(one).get("t") for one in together.brokers))
    await fill(together.brokers[0], MESSAGES // 2)


async def values(together: InLoop, broker: Broker, segment: int, offset: int = 0) -> list[Any]:
    async with at(together, broker) as http:
        answer = await http.get(f"{TOPIC}/segments/{segment}/messages?offset={offset}")
        assert answer.status_code == 200, answer.text
        return [each["value"] for each in answer.json()["messages"]]


def holders(together: InLoop, file: str) -> list[Broker]:
    """The brokers whose caches have a file."""
    caches = [(one, one.process.cache) for one in together.brokers]
    return [one for one, cache in caches if cache and cache.plan.find(FileRange(file, -TAIL_BYTES, 0), 0.0)]


async def test_the_caches_of_a_cluster_hold_each_file_once(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 3, cache_dir=str(tmp_path / "cache"), memory_cache_bytes=0) as together:
        await begin(together)
        await replace(together, [0])
        files = sorted(name for name in together.store.objects if name.startswith("topics/t/segment=0/"))
        for _ in range(2):
            for broker in together.brokers:
                assert await values(together, broker, 0) == [*range(MESSAGES)]
        assert [len(holders(together, file)) for file in files[1:-1]] == [1] * len(files[1:-1])
        (holder,) = holders(together, files[1])
        opened = [one.process.store.requests["open"] for one in together.brokers]
        for broker in together.brokers:
            assert await values(together, broker, 0) == [*range(MESSAGES)]
        assert [one.process.store.requests["open"] for one in together.brokers] == opened
        together.silent.add(holder.process.url)
        other = next(one for one in together.brokers if one is not holder)
        assert await values(together, other, 0) == [*range(MESSAGES)], "nobody reads for one that is away"
        together.silent.remove(holder.process.url)
        asked, app = [], together.apps[holder.process.url]

        async def counted(scope: Any, receive: Any, send: Any) -> None:
            asked.append(scope["path"])
            await app(scope, receive, send)

        together.apps[holder.process.url] = counted
        assert await values(together, other, 0) == [*range(MESSAGES)]
        assert "/internal/read" not in asked, "one that gave no answer is asked again at once"


async def test_a_topic_that_is_created_anew_has_none_of_the_old_bytes(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2, cache_dir=str(tmp_path / "cache"), memory_cache_bytes=0) as together:
        await begin(together)
        await replace(together, [0])
        for broker in together.brokers:
            assert await values(together, broker, 0) == [*range(MESSAGES)]
        async with at(together, together.brokers[0]) as http:
            assert (await http.delete(TOPIC)).status_code in (200, 202, 204)
            await until(lambda: not any(inside.catalog(one).get("t") for one in together.brokers))
            caches = [cache for one in together.brokers if (cache := one.process.cache)]
            assert [cache.plan.held_blocks for cache in caches] == [0, 0]
            assert (await http.put(TOPIC)).status_code == 201
            for value in ("new", "newer"):
                assert (await http.post(f"{TOPIC}/messages", json={"value": value})).status_code == 200
                assert (await http.post(f"{TOPIC}/flush")).status_code == 200
            (segment,) = [each["id"] for each in (await http.get(f"{TOPIC}/segments")).json()["segments"]]
        for broker in together.brokers:
            async with at(together, broker) as http:
                assert (await http.get(f"{TOPIC}/segments/0/messages?offset=0")).status_code == 404
        owner = next(o for o in together.brokers if inside.topic(o, "t").opened)
        assert await values(together, owner, segment) == ["new", "newer"]
