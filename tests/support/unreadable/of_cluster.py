"""Records of the cluster and its brokers."""

from typing import Any

import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete
from seaweedq.coordination.records import (
    BrokerRecord,
    JournalRecord,
    LeaderRecord,
    MirrorsRecord,
    RevocationRecord,
    SuspicionRecord,
    WaitingRecord,
    WatermarkRecord,
)
from seaweedq.errors import NeedsNewerBroker
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.unreadable.world import Case, World, nothing

BROKER = BrokerRecord("http://b9", "b9", 0, draining=True, highest=99)


async def cluster_broken(world: World) -> None:
    with pytest.raises(NeedsNewerBroker):
        await world.together.begin()
    failed = world.together.brokers.pop()
    del world.together.apps[failed.process.url]
    await failed.stop()


async def broker_broken(world: World) -> None:
    for number, one in enumerate(world.living):
        await until(lambda one=one: "b9.x" in inside.roster(one).unreadable)
        assert inside.roster(one).alive("b9.x")
        assert not await inside.roster(one).gone("b9.x")
        async with world.http(number) as http:
            assert (await world.ask(http, "GET", "/v1/cluster", 200))["unreadable"] == ["b9.x"]


async def broker_whole(world: World) -> None:
    await until(lambda: all("b9.x" in inside.roster(one).brokers for one in world.living))
    assert not any(inside.roster(one).unreadable for one in world.living)


async def leader_broken(world: World) -> None:
    await until(lambda: not any(inside.election(one).is_leader for one in world.living))
    async with world.http() as http:
        assert (await world.ask(http, "GET", "/v1/cluster", 200))["leader"] is None


async def leader_whole(world: World) -> None:
    await world.coordination.commit([], [Delete(keys.LEADER.key())])
    await until(lambda: any(inside.election(one).is_leader for one in world.living))


async def journal_broken(world: World) -> None:
    for one in world.living:
        if inside.election(one).is_leader:
            await inside.leader(one).round()
        assert "b9.gone" not in inside.roster(one).journals
    assert await world.coordination.get("journals/b9.gone")


async def journal_whole(world: World) -> None:
    await until(lambda: all("b9.gone" in inside.roster(one).journals for one in world.living))


CASES: dict[keys.KeyKind[Any], Case] = {
    keys.CLUSTER: Case(lambda _: "cluster", cluster_broken, nothing),
    keys.BROKERS: Case(lambda _: "brokers/b9.x", broker_broken, broker_whole, BROKER),
    keys.SUSPICIONS: Case(
        lambda _: "suspicions/b9.x/b8.x", nothing, nothing, SuspicionRecord("http://b9"), noticed=False
    ),
    keys.REVOCATIONS: Case(lambda _: "revocations/b9.x", nothing, nothing, RevocationRecord("b8.x", (), 600.0)),
    keys.LEADER: Case(lambda _: "leader", leader_broken, leader_whole, LeaderRecord("b9.x")),
    keys.WATERMARK: Case(lambda _: "watermark", nothing, nothing, WatermarkRecord(), noticed=False),
    keys.WAITING: Case(lambda _: "waiting/b9.home", nothing, nothing, WaitingRecord("http://b9"), noticed=False),
    keys.MIRRORS: Case(lambda _: "mirrors/b9.x", nothing, nothing, MirrorsRecord("closed"), noticed=False),
    keys.JOURNALS: Case(lambda _: "journals/b9.gone", journal_broken, journal_whole, JournalRecord("file", "nowhere")),
}
