"""Coordination on a real etcd that is missing, slow, killed, paused or replaced. The contract runs over it as well."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.interface import Compare, Put
from seaweedq.errors import CoordinationUnavailable
from tests.support.processes.broker_process import free_port
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.relay import Relay

TIMEOUT_S = 1.0
SLACK_S = 2.0  # a busy machine


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
        async with asyncio.timeout(10):
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
    longest = 0.0
    while not calls.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    assert {type(answer) for answer in await calls} == {CoordinationUnavailable}
    assert TIMEOUT_S * 0.9 < time.monotonic() - began < TIMEOUT_S + SLACK_S
    assert longest < 0.5
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
        async with asyncio.timeout(5):
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
    async with asyncio.timeout(5):
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
