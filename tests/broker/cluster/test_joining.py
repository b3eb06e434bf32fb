"""A store, a coordination and a secret that are not of each other are found out before any harm is done."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.balancing import Rebalancer
from seaweedq.broker.cluster.joining import cluster_of
from seaweedq.broker.load import Reports
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Put
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.records import ClusterRecord, TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest, StoreUnavailable, UnfitStore
from seaweedq.settings import Settings
from seaweedq.storage.generations import Generation, create_generation, newest_generation
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers import inside
from tests.support.brokers.environments import environment
from tests.support.brokers.in_process_cluster import DirectPeers, InLoop, in_loop, until


async def join(coordination: Coordination, store: MemoryStore) -> ClusterRecord:
    return await cluster_of(coordination, store, SystemIds(), SystemClock(), "these")


async def claim(coordination: Coordination, store: MemoryStore) -> str:
    return (await join(coordination, store)).cluster


async def test_all_that_begin_at_once_are_of_one_cluster_and_so_ever_after() -> None:
    coordination, store = MemoryCoordination(SystemClock()), MemoryStore()
    found = await asyncio.gather(*(claim(coordination, store) for _ in range(8)))
    assert set(found) == {await claim(coordination, store)}


async def test_a_fresh_store_under_a_used_coordination_is_refused_and_left_empty() -> None:
    coordination, store = MemoryCoordination(SystemClock()), MemoryStore()
    await claim(coordination, store)
    other = MemoryStore()
    with pytest.raises(UnfitStore, match=r"these: .*the store does not belong to that cluster"):
        await claim(coordination, other)
    assert await other.list("") == []
    await claim(coordination, store)


async def test_a_fresh_coordination_under_a_store_that_has_one_is_refused() -> None:
    store = MemoryStore()
    await claim(MemoryCoordination(SystemClock()), store)
    with pytest.raises(UnfitStore, match="the store belongs to cluster"):
        await claim(MemoryCoordination(SystemClock()), store)


async def test_of_two_fresh_stores_begun_at_once_one_is_the_clusters_for_ever() -> None:
    coordination, stores = MemoryCoordination(SystemClock()), [MemoryStore(), MemoryStore()]
    for _ in range(2):
        found = await asyncio.gather(*(claim(coordination, one) for one in stores), return_exceptions=True)
        assert sorted(type(one).__name__ for one in found) == ["UnfitStore", "str"]
    wrong = stores[[isinstance(one, str) for one in found].index(False)]
    with pytest.raises(UnfitStore, match="a different store"):
        await claim(coordination, wrong)


async def test_a_start_cut_off_behind_the_stores_identity_is_gone_on_with() -> None:
    def reset(moment: str, name: str) -> None:
        if moment == "after create" and name == "_cluster.json":
            raise StoreUnavailable("reset")

    coordination, store = MemoryCoordination(SystemClock()), MemoryStore(reset)
    with pytest.raises(StoreUnavailable):
        await claim(coordination, store)
    assert await claim(coordination, store) == await claim(coordination, store)


@pytest.mark.parametrize("name", ["_cluster.json", "_generations/0000000001"])
@pytest.mark.parametrize("moment", ["before create", "after create"])
async def test_a_start_cut_off_anywhere_ends_with_one_generation(moment: str, name: str) -> None:
    def reset(now: str, what: str) -> None:
        if (now, what) == (moment, name):
            raise StoreUnavailable("reset")

    coordination, store = MemoryCoordination(SystemClock()), MemoryStore(reset)
    with pytest.raises(StoreUnavailable):
        await join(coordination, store)
    store.faults = lambda moment, name: None
    record = await join(coordination, store)
    assert await newest_generation(store) == Generation(1, record.nonce)
    assert record == await join(coordination, store)


async def known_to(coordination: Coordination, store: MemoryStore, **changes: Any) -> None:
    """A cluster whose record says something else."""
    record = msgspec.structs.replace(await join(coordination, store), **changes)
    put = Put(keys.CLUSTER.key(), keys.CLUSTER.encode(Versioned.new(record)))
    await coordination.commit([], [put])


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        (Generation(3, "n"), "the store has generation 3, but coordination has 2"),
        (Generation(2, "n"), "different generations with the number 2"),
        (None, "generation 2, but the store has only 1: the store is an older copy"),
    ],
)
async def test_a_coordination_of_another_generation_is_refused(theirs: Generation | None, told: str) -> None:
    coordination, store = MemoryCoordination(SystemClock()), MemoryStore()
    await known_to(coordination, store, generation=2, nonce="ours")
    if theirs:
        await create_generation(store, theirs)
    with pytest.raises(UnfitStore, match=f"^these: .*{told}"):
        await join(coordination, store)
    await store.delete("_generations/0000000002")
    await create_generation(store, Generation(2, "ours"))
    if theirs and theirs.number > 2:
        await store.delete("_generations/0000000003")
    assert (await join(coordination, store)).generation == 2


async def test_a_store_that_lacks_its_generation_is_refused() -> None:
    coordination, store = MemoryCoordination(SystemClock()), MemoryStore()
    await join(coordination, store)
    await store.delete("_generations/0000000001")
    with pytest.raises(UnfitStore, match="the store has no folder _generations/"):
        await join(coordination, store)


@pytest.mark.brokers
@pytest.mark.parametrize("changes", [{"state": "restored"}, {"generation": 2}, {"nonce": "another"}])
async def test_a_life_ends_and_none_begins_once_the_cluster_does_not_serve(tmp_path: Path, changes: Any) -> None:
    async with in_loop(tmp_path) as together:
        broker = together.brokers[0]
        await known_to(together.coordination, together.store, **changes)
        await until(broker.lost.is_set)
        assert not inside.membership(broker).valid()
        mine = broker.generations.mine
        with pytest.raises(UnfitStore, match="but now coordination's generation is"):
            await broker.level.admit(mine.number, mine.nonce)


async def stranger(together: InLoop, folder: Path, secret: str) -> Broker:
    """A broker with a secret of its own, not started."""
    settings = Settings(data_dir=folder)
    peers = DirectPeers(together.apps, set(), set())
    broker = Broker(environment(settings, together.store, together.coordination, "http://x", peers, secret))
    broker.lock()
    return broker


@pytest.mark.long
@pytest.mark.brokers
async def test_a_broker_with_another_secret_does_not_join(tmp_path: Path) -> None:
    async with in_loop(tmp_path, lease_s=5) as together:  # for so long it waits for the others' records to go
        broker = await stranger(together, tmp_path / "x", "sesame-sesame-sesame")
        with pytest.raises(InvalidRequest, match="a different cluster_secret") as caught:
            await broker.start()
        assert "sesame" not in str(caught.value)
        assert len((await together.coordination.range("brokers/")).entries) == 2
        await broker.stop()


@pytest.mark.brokers
async def test_a_broker_that_answers_nobody_is_given_nothing_for_balance(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        leads = next(one for one in together.brokers if inside.election(one).is_leader)
        await inside.topic_admin(leads).create("t", TopicConfig(initial_segments=12))
        mute = await stranger(together, tmp_path / "x", "secret")
        await mute.start()
        await until(lambda: mute.id in inside.roster(leads).brokers)
        reports = Reports(
            inside.catalog(leads), inside.roster(leads), leads.process.peers, leads.id, inside.loads(leads)
        )
        await reports.ask()
        await Rebalancer(
            inside.catalog(leads), inside.roster(leads), reports, leads.process.peers, leads.process.clock
        ).rebalance()
        assert not inside.catalog(leads).owned_by(mute.id)
        together.apps[mute.process.url] = Application(mute)
        await reports.ask()
        await Rebalancer(
            inside.catalog(leads), inside.roster(leads), reports, leads.process.peers, leads.process.clock
        ).rebalance()
        await until(lambda: len(inside.catalog(leads).owned_by(mute.id)) >= 3)
        await mute.stop()
