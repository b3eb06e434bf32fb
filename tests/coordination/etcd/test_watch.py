"""Watches on a real etcd: compaction, lost connections, black holes, slow readers."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.interface import Change, Put, WatchLost, read_all
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.relay import Relay

pytestmark = pytest.mark.service

DETECTED_S = 12.0  # pings at 5.5 s, answered within 2.5 s, and a busy machine


class Follower:
    """Reads a watch in a task of its own and keeps what it saw."""

    def __init__(self, watch: AsyncIterator[Sequence[Change]]) -> None:
        self.seen: list[Change] = []
        self._more = asyncio.Event()
        self._task = asyncio.create_task(self._follow(watch))

    async def until(self, value: bytes, within_s: float = 10) -> list[bytes | None]:
        """All values seen, as soon as the last one is `value`."""
        async with asyncio.timeout(within_s):
            while not self.seen or self.seen[-1].value != value:
                self._more.clear()
                await self._more.wait()
        return [change.value for change in self.seen]

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _follow(self, watch: AsyncIterator[Sequence[Change]]) -> None:
        async for group in watch:
            self.seen += group
            self._more.set()


@pytest.fixture
async def direct(etcd_server: EtcdServer) -> AsyncIterator[EtcdCoordination]:
    coordination = EtcdCoordination(Access([etcd_server.endpoint]), "watches/")
    yield coordination
    await coordination.close()


async def write(coordination: EtcdCoordination, numbers: range) -> int:
    revision = 0
    for number in numbers:
        revision = await coordination.commit([], [Put("n", b"%d" % number)]) or 0
    return revision


def values(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def test_after_a_compaction_everything_is_read_again(etcd_server: EtcdServer, direct: EtcdCoordination) -> None:
    first = await write(direct, range(1))
    last = await write(direct, range(1, 9))
    etcd_server.compact(last)
    with pytest.raises(WatchLost, match=f"after revision {first}, up to {last}"):
        await anext(direct.watch("n", first))
    entries, revision = await read_all(direct, "n")
    assert [entry.value for entry in entries] == [b"8"]
    await write(direct, range(9, 10))
    assert [change.value for change in await anext(direct.watch("n", revision))] == [b"9"]


async def test_a_watch_that_lives_does_not_mind_compaction(etcd_server: EtcdServer, direct: EtcdCoordination) -> None:
    follower = Follower(direct.watch("n", await write(direct, range(1))))
    await write(direct, range(1, 6))
    await follower.until(b"5")
    etcd_server.compact(await write(direct, range(6, 9)))
    await write(direct, range(9, 10))
    assert await follower.until(b"9") == values(range(1, 10))
    await follower.stop()


async def test_a_watch_goes_on_over_a_restart_without_a_hole(etcd_servers: Any) -> None:
    server = etcd_servers()
    watching = EtcdCoordination(Access([server.endpoint]), "")
    follower = Follower(watching.watch("n", await write(watching, range(1))))
    await write(watching, range(1, 5))
    await follower.until(b"4")
    for begin in (5, 10):
        server.kill()
        server.start()
        fresh = EtcdCoordination(Access([server.endpoint]), "")
        await write(fresh, range(begin, begin + 5))
        await fresh.close()
        assert await follower.until(b"%d" % (begin + 4)) == values(range(1, begin + 5))
    await follower.stop()
    await watching.close()


async def test_a_connection_that_is_reset_again_and_again_leaves_no_hole(
    etcd_server: EtcdServer, direct: EtcdCoordination
) -> None:
    async with Relay(etcd_server.endpoint) as relay:
        watching = EtcdCoordination(Access([relay.endpoint]), "watches/")
        follower = Follower(watching.watch("n", await write(direct, range(1))))
        for begin in range(1, 61, 20):
            await write(direct, range(begin, begin + 10))
            relay.cut()
            await write(direct, range(begin + 10, begin + 20))
            await follower.until(b"%d" % (begin + 19))
        assert [change.value for change in follower.seen] == values(range(1, 61))
        assert relay.connections >= 3
        await follower.stop()
        await watching.close()


async def test_a_black_hole_is_noticed_and_the_next_endpoint_taken(
    etcd_server: EtcdServer, direct: EtcdCoordination
) -> None:
    async with Relay(etcd_server.endpoint) as relay:
        watching = EtcdCoordination(Access([relay.endpoint, etcd_server.endpoint]), "watches/")
        follower = Follower(watching.watch("n", await write(direct, range(1))))
        await write(direct, range(1, 3))
        await follower.until(b"2")
        relay.swallow()
        began = time.monotonic()
        await write(direct, range(3, 6))
        assert await follower.until(b"5", DETECTED_S) == values(range(1, 6))
        print(f"noticed after {time.monotonic() - began:.1f} s")
        await follower.stop()
        await watching.close()


async def test_a_slow_reader_misses_nothing_and_holds_little(direct: EtcdCoordination) -> None:
    watch = aiter(direct.watch("n", await write(direct, range(1))))
    await write(direct, range(1, 2))
    found = list(await anext(watch))
    await write(direct, range(2, 101))
    while len(found) < 100:
        found += await anext(watch)
    assert [change.value for change in found] == values(range(1, 101))
    assert [change.revision for change in found] == sorted({change.revision for change in found})


async def test_a_reader_that_stands_still_holds_up_nobody(direct: EtcdCoordination) -> None:
    watch = aiter(direct.watch("n", await write(direct, range(1))))
    await write(direct, range(1, 2))
    found = list(await anext(watch))
    for number in range(2, 202):
        assert await direct.commit([], [Put("n", b"%d" % number + bytes(50_000))])
    while len(found) < 201:
        found += await anext(watch)
    assert [(change.value or b"").rstrip(b"\0") for change in found] == values(range(1, 202))


async def test_an_etcd_with_an_older_state_is_a_lost_watch(etcd_servers: Any) -> None:
    server = etcd_servers()
    coordination = EtcdCoordination(Access([server.endpoint]), "")
    revision = await write(coordination, range(3))
    with pytest.raises(WatchLost, match=f"went back from revision {revision + 9} to {revision}"):
        await anext(coordination.watch("n", revision + 9))
    await coordination.close()
