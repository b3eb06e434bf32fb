"""Coordination on a real etcd that is missing, slow, killed, paused, compacted or replaced; the contract runs over it,
too."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.etcd import BEHIND_ALL, Access, EtcdCoordination, KeySpace
from seaweedq.coordination.interface import Change, Compare, Put, WatchLost, read_all
from seaweedq.coordination.membership import BrokerIdentity, LeaseThread, Membership
from seaweedq.errors import CoordinationUnavailable
from tests.support.processes.broker_process import free_port
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.relay import Relay
from tests.support.processes.tcp_proxy import LoopThread, TcpProxy

SPACES = st.sampled_from(["", "seaweedq/", "ü", "\U0010ffff"]).map(KeySpace)
TEXTS = st.text(st.sampled_from("a/0ä\U0001f600\U0010ffff") | st.characters(codec="utf-8"), max_size=4)
TIMEOUT_S = 1.0
SLACK_S = 10.0  # a busy machine
# etcd looks for leases that are over each 0.5 s, and ends them through a transaction.
END_S = 1.5
LATE_S = 1.2
LEASE_S = 5
DETECTED_S = 12.0  # pings at 5.5 s, answered within 2.5 s, and a busy machine


@given(space=SPACES, prefix=TEXTS, after=TEXTS, key=TEXTS.filter(bool))
def test_an_interval_holds_what_begins_with_the_prefix_and_sorts_behind(
    space: KeySpace, prefix: str, after: str, key: str
) -> None:
    start, end = space.interval(prefix, after)
    inside = start <= space.full(key) and (end == BEHIND_ALL or space.full(key) < end)
    assert inside == (key.startswith(prefix) and key > after)


@given(space=SPACES, other=TEXTS.filter(bool))
def test_keys_of_another_space_are_outside(space: KeySpace, other: str) -> None:
    start, end = space.interval("")
    if not other.startswith(space.prefix):
        assert not (start <= other.encode() < end)


@given(space=SPACES, key=TEXTS)
def test_the_prefix_is_put_on_and_taken_off(space: KeySpace, key: str) -> None:
    assert space.full(key).startswith(space.prefix.encode())
    assert space.short(space.full(key)) == key


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., EtcdCoordination]]:
    made: list[EtcdCoordination] = []

    def connect(*endpoints: str, prefix: str = "test/", **more: Any) -> EtcdCoordination:
        made.append(EtcdCoordination(Access(endpoints), prefix, **{"timeout_s": TIMEOUT_S, **more}))
        return made[-1]

    yield connect
    for coordination in made:
        await coordination.close()


async def until_it_answers(coordination: EtcdCoordination) -> None:
    async with asyncio.timeout(15):
        while True:
            try:
                await coordination.get("")
            except CoordinationUnavailable:
                await asyncio.sleep(0.05)
            else:
                return


async def what_it_says_last(coordination: EtcdCoordination, awaited: str) -> str:
    said = ""
    with suppress(TimeoutError):
        async with asyncio.timeout(30):
            while awaited not in said:
                (answer,) = await asyncio.gather(coordination.get("n"), return_exceptions=True)
                said = str(answer)
    return said


@pytest.mark.service
async def test_two_prefixes_do_not_see_one_another(etcd_server: EtcdServer, connect: Any) -> None:
    one, other = connect(etcd_server.endpoint, prefix="one/"), connect(etcd_server.endpoint, prefix="one0")
    revision = await one.commit([], [Put("a", b"one")])
    changes = other.watch("", revision)
    assert await other.get("a") is None
    assert await other.commit([Compare("a", 0)], [Put("a", b"other")])
    assert [change.value for change in await anext(changes)] == [b"other"]
    for coordination, value in ((one, b"one"), (other, b"other")):
        assert [(entry.key, entry.value) for entry in (await coordination.range("")).entries] == [("a", value)]
    assert "one/a\n" in etcd_server.control("get", "one/", "--prefix", "--keys-only")


def test_no_endpoint_is_an_error_at_once() -> None:
    with pytest.raises(ValueError, match="at least one endpoint"):
        EtcdCoordination(Access([]), "")


async def test_an_etcd_that_is_not_there_is_named(connect: Any) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    coordination = connect(endpoint)
    for call in (coordination.get("a"), coordination.range(""), coordination.commit([], []), coordination.grant(5)):
        began = time.monotonic()
        with pytest.raises(CoordinationUnavailable, match=f"{endpoint}.*refused"):
            await call
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S


@pytest.mark.service
async def test_a_transaction_over_etcds_limit_says_so(etcd_server: EtcdServer, connect: Any) -> None:
    with pytest.raises(CoordinationUnavailable, match="request is too large"):
        await connect(etcd_server.endpoint).commit([], [Put("a", bytes(1_700_000))])


@pytest.mark.service
async def test_a_killed_etcd_comes_back_with_everything(etcd_servers: Any, connect: Any) -> None:
    server = etcd_servers()
    coordination = connect(server.endpoint)
    lease = (await coordination.grant(60)).lease
    revision = await coordination.commit([], [Put("a", b"1"), Put("b", b"2", lease)])
    server.kill()
    began = time.monotonic()
    with pytest.raises(CoordinationUnavailable):
        await coordination.get("a")
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    server.start()
    await until_it_answers(coordination)
    assert (await coordination.get("a")).revision == revision
    assert await coordination.renew(lease)
    assert await coordination.commit([Compare("b", revision)], [Put("b", b"3", lease)])


@pytest.mark.service
async def test_a_paused_etcd_blocks_neither_the_loop_nor_calls_for_ever(etcd_servers: Any, connect: Any) -> None:
    server = etcd_servers()
    coordination = connect(server.endpoint)
    await coordination.commit([], [Put("a", b"")])
    server.pause()
    began = time.monotonic()
    calls = asyncio.gather(
        *(coordination.get("a") for _ in range(200)), coordination.commit([], [Put("a", b"")]), return_exceptions=True
    )
    turns = 0
    while not calls.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert {type(answer) for answer in await calls} == {CoordinationUnavailable}
    assert TIMEOUT_S * 0.9 < time.monotonic() - began < TIMEOUT_S + SLACK_S
    assert turns > 5, "a call in the loop's own thread would have held it for all of that"
    server.resume()
    await until_it_answers(coordination)


@pytest.mark.service
async def test_what_waits_for_an_answer_ends_when_the_handle_closes(etcd_servers: Any, connect: Any) -> None:
    server = etcd_servers()
    coordination = connect(server.endpoint, timeout_s=60)
    await coordination.get("a")
    server.pause()
    waiting = asyncio.create_task(coordination.get("a"))
    await asyncio.sleep(0.1)
    await coordination.close()
    with pytest.raises(CoordinationUnavailable, match="closed"):
        async with asyncio.timeout(15):
            await waiting
    with pytest.raises(CoordinationUnavailable, match="closed"):
        await anext(coordination.watch("", 0))


@pytest.mark.service
async def test_closing_ends_all_threads(etcd_server: EtcdServer) -> None:
    before = set(threading.enumerate())
    coordination = EtcdCoordination(Access([etcd_server.endpoint]), "threads/")
    revision = await coordination.commit([], [Put("a", b"")])
    watches = [coordination.watch("", revision - 1) for _ in range(3)]
    for watch in watches:
        await anext(watch)
    assert len({thread for thread in threading.enumerate() if thread.name == "etcd-watch"} - before) == 3
    await coordination.close()
    async with asyncio.timeout(15):
        while new := {thread for thread in set(threading.enumerate()) - before if "asyncio" not in thread.name}:
            assert not {thread.name for thread in new} & {"etcd-watch"}
            await asyncio.sleep(0.05)  # gRPC's own end a moment later
    for watch in watches:
        assert [group async for group in watch] == []


@pytest.mark.service
async def test_reads_go_to_the_next_endpoint_at_once_when_one_is_gone(etcd_server: EtcdServer, connect: Any) -> None:
    coordination = connect(f"127.0.0.1:{free_port()}", etcd_server.endpoint)
    assert await coordination.get("missing") is None
    assert await coordination.commit([], [Put("a", b"")])


@pytest.mark.service
async def test_a_silent_endpoint_costs_one_time_limit(etcd_server: EtcdServer, connect: Any) -> None:
    async with Relay(etcd_server.endpoint) as relay:
        coordination = connect(relay.endpoint, etcd_server.endpoint)
        await coordination.get("a")
        assert relay.connections == 1
        relay.swallow()
        with pytest.raises(CoordinationUnavailable, match=f"{relay.endpoint} did not answer within {TIMEOUT_S} s"):
            await coordination.get("a")
        assert await coordination.get("missing") is None


@pytest.mark.service
async def test_many_calls_that_fail_together_leave_the_endpoint_once(etcd_server: EtcdServer, connect: Any) -> None:
    async with Relay(etcd_server.endpoint) as first, Relay(etcd_server.endpoint) as third:
        coordination = connect(first.endpoint, etcd_server.endpoint, third.endpoint)
        await coordination.get("a")
        first.swallow()
        await asyncio.gather(*(coordination.get("a") for _ in range(4)), return_exceptions=True)
        await coordination.get("a")
        assert third.connections == 0


@pytest.mark.service
async def test_a_commit_whose_answer_is_lost_is_not_repeated(etcd_server: EtcdServer, connect: Any) -> None:
    async with Relay(etcd_server.endpoint) as relay:
        coordination, other = connect(relay.endpoint, etcd_server.endpoint), connect(etcd_server.endpoint)
        revision = await coordination.commit([], [Put("lost", b"0")])
        relay.hold_answers()
        committing = asyncio.create_task(coordination.commit([], [Put("lost", b"1")]))
        changes = other.watch("lost", revision)
        (change,) = await anext(changes)
        assert change.value == b"1"
        relay.cut()
        with pytest.raises(CoordinationUnavailable):
            await committing
        entry = await coordination.get("lost")
        assert (entry.value, entry.revision) == (b"1", change.revision)


@pytest.mark.service
async def test_a_cluster_goes_on_without_its_leader(etcd_servers: Any, connect: Any) -> None:
    servers = [etcd_servers(start=False) for _ in range(3)]
    for server in servers:
        server.members = ",".join(f"{each.name}={each.peer}" for each in servers)
        server.start(wait=False)
    for server in servers:
        server.wait_ready()
    coordination = connect(*(server.endpoint for server in servers))
    await until_it_answers(coordination)
    revision = await coordination.commit([], [Put("n", b"0")])
    watch = coordination.watch("n", revision)
    leader = next(server for server in servers if "true" in server.control("endpoint", "status").split(", ")[4])
    leader.kill()
    await until_it_answers(coordination)
    assert await coordination.commit([Compare("n", revision)], [Put("n", b"1")])
    assert [change.value for change in await anext(watch)] == [b"1"]
    next(server for server in servers if server.process).kill()
    (alone,) = (server for server in servers if server.process)
    assert "no leader" in await what_it_says_last(connect(alone.endpoint), "no leader")


@pytest.fixture
async def coordination(etcd_server: EtcdServer) -> AsyncIterator[EtcdCoordination]:
    coordination = EtcdCoordination(Access([etcd_server.endpoint]), "leases/")
    yield coordination
    await coordination.close()


@pytest.mark.service
async def test_a_lease_that_is_not_renewed_ends_with_its_keys(coordination: EtcdCoordination) -> None:
    granted_s = time.monotonic()
    lease = (await coordination.grant(1)).lease
    revision = await coordination.commit([], [Put("a", b"", lease), Put("b", b"", lease), Put("c", b"")])
    assert revision
    async with asyncio.timeout(20):
        changes = await anext(coordination.watch("", revision))
    assert time.monotonic() - granted_s >= 1
    assert list(changes) == [Change("a", None, revision + 1), Change("b", None, revision + 1)]
    assert not await coordination.renew(lease)
    assert [entry.key for entry in (await coordination.range("")).entries] == ["c"]
    assert await coordination.commit([], [Put("a", b"", lease)]) is None


@pytest.mark.service
async def test_a_lease_that_is_renewed_lives_on(coordination: EtcdCoordination) -> None:
    lease = (await coordination.grant(3)).lease
    await coordination.commit([], [Put("a", b"", lease)])
    end_s = time.monotonic() + 3 + END_S
    while time.monotonic() < end_s:
        assert await coordination.renew(lease)
        await asyncio.sleep(0.1)
    assert await coordination.get("a") is not None
    await coordination.revoke(lease)


@pytest.mark.service
async def test_a_part_of_a_second_is_a_whole_one(etcd_server: EtcdServer, coordination: EtcdCoordination) -> None:
    for asked_s, given_s in ((0.2, 1), (1.0, 1), (4.1, 5)):
        lease = (await coordination.grant(asked_s)).lease
        assert f"granted with TTL({given_s}s)" in etcd_server.control("lease", "timetolive", f"{lease:x}")
        await coordination.revoke(lease)


@pytest.mark.service
async def test_a_lease_survives_a_restart_of_etcd(etcd_servers: Any) -> None:
    server = etcd_servers()
    coordination = EtcdCoordination(Access([server.endpoint]), "")
    lease = (await coordination.grant(30)).lease
    await coordination.commit([], [Put("a", b"", lease)])
    await coordination.close()
    server.kill()
    server.start()
    coordination = EtcdCoordination(Access([server.endpoint]), "")
    entry = await coordination.get("a")
    assert entry is not None
    assert entry.lease == lease
    assert await coordination.renew(lease)
    await coordination.close()


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[TcpProxy]:
    thread = LoopThread()
    proxy = TcpProxy(thread, etcd_server.endpoint).start()
    yield proxy
    proxy.stop()
    thread.close()


@pytest.mark.service
@pytest.mark.long
async def test_an_etcd_that_answers_late_ends_no_life(proxy: TcpProxy, tmp_path: Path) -> None:
    proxy.delay(LATE_S / 2)  # in each way
    coordination = EtcdCoordination(Access([f"127.0.0.1:{proxy.port}"]), f"{tmp_path}/")
    await coordination.get("x")  # to connect takes three times as long
    lost: list[str] = []
    member = Membership(
        coordination,
        SystemClock(),
        BrokerIdentity.new(SystemIds(), "b", ""),
        LEASE_S,
        lambda: lost.append("lost"),
        background=LeaseThread,
    )
    await member.start()
    end_s = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < end_s:
        assert member.valid()
        await asyncio.sleep(0.05)
    assert not lost
    assert member.missed_renewals == 0
    await member.stop()
    await coordination.close()


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


@pytest.mark.service
async def test_after_a_compaction_everything_is_read_again(etcd_server: EtcdServer, direct: EtcdCoordination) -> None:
    first = await write(direct, range(1))
    last = await write(direct, range(1, 9))
    etcd_server.compact(last)
    with pytest.raises(WatchLost, match=f"after revision {first} can no longer .* up to revision {last}"):
        await anext(direct.watch("n", first))
    entries, revision = await read_all(direct, "n")
    assert [entry.value for entry in entries] == [b"8"]
    await write(direct, range(9, 10))
    assert [change.value for change in await anext(direct.watch("n", revision))] == [b"9"]


@pytest.mark.service
async def test_a_watch_that_lives_does_not_mind_compaction(etcd_server: EtcdServer, direct: EtcdCoordination) -> None:
    follower = Follower(direct.watch("n", await write(direct, range(1))))
    await write(direct, range(1, 6))
    await follower.until(b"5")
    etcd_server.compact(await write(direct, range(6, 9)))
    await write(direct, range(9, 10))
    assert await follower.until(b"9") == values(range(1, 10))
    await follower.stop()


@pytest.mark.service
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


@pytest.mark.service
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


@pytest.mark.long
@pytest.mark.service
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


@pytest.mark.service
async def test_a_slow_reader_misses_nothing_and_holds_little(direct: EtcdCoordination) -> None:
    watch = aiter(direct.watch("n", await write(direct, range(1))))
    await write(direct, range(1, 2))
    found = list(await anext(watch))
    await write(direct, range(2, 101))
    while len(found) < 100:
        found += await anext(watch)
    assert [change.value for change in found] == values(range(1, 101))
    assert [change.revision for change in found] == sorted({change.revision for change in found})


@pytest.mark.service
async def test_a_reader_that_stands_still_holds_up_nobody(direct: EtcdCoordination) -> None:
    watch = aiter(direct.watch("n", await write(direct, range(1))))
    await write(direct, range(1, 2))
    found = list(await anext(watch))
    for number in range(2, 202):
        assert await direct.commit([], [Put("n", b"%d" % number + bytes(50_000))])
    while len(found) < 201:
        found += await anext(watch)
    assert [(change.value or b"").rstrip(b"\0") for change in found] == values(range(1, 202))


@pytest.mark.service
async def test_an_etcd_with_an_older_state_is_a_lost_watch(etcd_servers: Any) -> None:
    server = etcd_servers()
    coordination = EtcdCoordination(Access([server.endpoint]), "")
    revision = await write(coordination, range(3))
    with pytest.raises(WatchLost, match=f"went back from {revision + 9} to {revision}"):
        await anext(coordination.watch("n", revision + 9))
    await coordination.close()
