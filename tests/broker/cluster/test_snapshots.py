"""The leader puts a snapshot of coordination when something has changed, and then alone; its number rises, or the life
of a broker ends."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from seaweedq.broker.backups import Backups
from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster import snapshots as module
from seaweedq.broker.cluster.snapshots import Snapshots
from seaweedq.checks import using
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.backup import State
from seaweedq.coordination.interface import Compare, Delete, Page, Put
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import CoordinationUnavailable, Fenced, StoreUnavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.sealers import BARE, OWN_FOLDER, sealer

pytestmark = pytest.mark.brokers
HOUR_S = 3600.0


class Hands(SystemClock):
    """A clock that a test moves on."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


def leader(together: InLoop) -> Broker:
    return next(one for one in together.brokers if inside.election(one).is_leader)


def snapshots(broker: Broker, **changes: Any) -> Snapshots:
    """Those of a new leader, which its periodic task has not made."""
    return Snapshots(replace(broker.context, **changes))


async def state(broker: Broker) -> State:
    found = await broker.context.backups.newest(1)
    assert found
    return found.state


async def settled(together: InLoop) -> Snapshots:
    """Those of the leader, once a snapshot has all, and nothing changes any more."""
    broker = leader(together)
    mine = broker.leadership.snapshots
    await until(lambda: mine.made > 0)
    later = snapshots(broker)
    await later.put_if_changed()
    return later


async def test_a_snapshot_has_all_keys_but_leased_ones_and_a_few(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker = leader(together)
        await inside.topic_admin(broker).create("t", TopicConfig())
        await together.coordination.commit([], [Put("later/kind", b"\x00\xff"), Put("url-secret", b"{}")])
        await settled(together)
        found = await state(broker)
        page = await together.coordination.dump()
        left_out = {"url-secret", keys.SNAPSHOTS.key(), keys.WATERMARK.key()}
        expected = {one.key: one.value for one in page.entries if not one.lease and one.key not in left_out}
        assert found.keys == expected
        assert {"cluster", "topics/t", "later/kind"} <= found.keys.keys()
        assert {key.partition("/")[0] for key in found.keys}.isdisjoint({"brokers", "leader"})


async def test_none_is_put_while_nothing_changes_nor_by_a_new_leader(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker, mine = leader(together), await settled(together)
        before = await together.store.list("_coordination/")
        revision = (await together.coordination.range("")).revision
        for one in (mine, snapshots(broker), mine):
            made = one.made
            await one.put_if_changed()
            assert one.made == made
        assert await together.store.list("_coordination/") == before
        assert (await together.coordination.range("")).revision == revision


async def test_leases_and_the_secret_of_links_alone_make_no_snapshot(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        mine = await settled(together)
        made = mine.made
        lease = (await together.coordination.leases.grant(60)).lease
        await together.coordination.commit([], [Put("later/leased", b"{}", lease), Put("url-secret", b"{}")])
        await mine.put_if_changed()
        assert mine.made == made
        await together.coordination.commit([], [Put("later/kind", b"1")])
        await mine.put_if_changed()
        assert mine.made == made + 1
        assert (await state(leader(together))).keys["later/kind"] == b"1"


async def test_a_snapshot_that_another_leader_put_is_compared(tmp_path: Path) -> None:
    """Else a state that was there before would not be put again."""
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker, mine = leader(together), await settled(together)
        await together.coordination.commit([], [Put("later/kind", b"1")])
        await mine.put_if_changed()
        await together.coordination.commit([], [Put("later/kind", b"2")])
        await snapshots(broker).put_if_changed()
        await together.coordination.commit([], [Put("later/kind", b"1")])
        there = await together.coordination.get("leader")
        assert there
        await together.coordination.commit([Compare("leader", there.revision)], [Put("leader", there.value)])
        await inside.election(broker).campaign()
        await mine.put_if_changed()
        assert (await state(broker)).keys["later/kind"] == b"1"


async def test_one_that_does_not_lead_puts_none(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        await settled(together)
        follower = next(one for one in together.brokers if one is not leader(together))
        before = await together.store.list("_coordination/")
        with pytest.raises(Fenced):
            await snapshots(follower).put_if_changed()
        assert await together.store.list("_coordination/") == before
        assert follower.leadership.snapshots.age_s == 0.0


async def test_a_leader_that_was_replaced_puts_none(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        mine, number = await settled(together), await leader(together).context.backups.newest_number(1)
        there = await together.coordination.get("leader")
        assert there
        await together.coordination.commit([], [Put("leader", there.value), Put("later/kind", b"1")])
        with pytest.raises(Fenced, match="another broker is the leader"):
            await mine.put_if_changed()
        assert await leader(together).context.backups.newest_number(1) == number


async def test_rights_are_read_with_the_clusters_secret_alone(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        token = {"tokens/t": b'{"digest":"of a token"}', "principals/p": b'{"uid":"of ann"}'}
        await together.coordination.commit([], [Put(key, value) for key, value in token.items()])
        await settled(together)
        broker = leader(together)
        assert token.items() <= (await state(broker)).keys.items()
        follower = next(one for one in together.brokers if one is not broker)
        assert await follower.context.backups.newest(1) == await broker.context.backups.newest(1)
        for stranger in (BARE, OWN_FOLDER, sealer("another")):
            found = await Backups(together.store, stranger, broker.generations, lambda: 1).newest(1)
            assert found
            assert not found.state.verified
            assert "cluster" in found.state.keys
            assert token.keys().isdisjoint(found.state.keys)
        await together.coordination.commit([], [Delete(key) for key in token])


async def test_a_number_is_in_coordination_before_the_store_has_it(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker, mine = leader(together), await settled(together)
        before = await broker.context.backups.newest_number(1)
        await together.coordination.commit([], [Put("later/kind", b"1")])

        def away(moment: str, name: str) -> None:
            if moment == "before create" and name.startswith("_coordination/"):
                raise StoreUnavailable("away")

        together.store.faults = away
        with pytest.raises(StoreUnavailable):
            await mine.put_if_changed()
        together.store.faults = lambda moment, name: None
        there = await together.coordination.get(keys.SNAPSHOTS.key())
        assert there
        assert msgspec.json.decode(there.value) == {"next": before + 1}
        assert await broker.context.backups.newest_number(1) == before
        await mine.put_if_changed()
        assert await broker.context.backups.newest_number(1) == before + 2
        assert (await state(broker)).keys["later/kind"] == b"1"


@pytest.mark.parametrize("place", ["snapshot.number", "snapshot.numbered", "snapshot.made"])
async def test_whatever_a_crash_leaves_the_next_leader_goes_on(tmp_path: Path, place: str) -> None:
    class Killed(Exception):
        pass

    def kill(reached: str) -> None:
        if reached == place:
            raise Killed

    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker, _ = leader(together), await settled(together)
        await together.coordination.commit([], [Put("later/kind", b"1")])
        with using(kill), pytest.raises(Killed):
            await snapshots(broker).put_if_changed()
        await snapshots(broker).put_if_changed()
        assert (await state(broker)).keys["later/kind"] == b"1"
        there = await together.coordination.get(keys.SNAPSHOTS.key())
        assert there
        assert msgspec.json.decode(there.value)["next"] >= await broker.context.backups.newest_number(1)


async def test_the_newest_three_stay(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S, journal="object") as together:
        mine = await settled(together)
        for number in range(5):
            await together.coordination.commit([], [Put("later/kind", b"%d" % number)])
            await mine.put_if_changed()
        assert len(await together.store.list("_coordination/")) == 3


async def test_a_large_state_comes_less_often(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker, clock = leader(together), Hands()
        mine = snapshots(broker, clock=clock, settings=broker.context.settings.model_copy(update={"snapshot_s": 3.0}))
        await together.coordination.commit([], [Put("later/kind", bytes(5 * module.BYTES_PER_S))])
        await mine.put_if_changed()
        made = mine.made
        await together.coordination.commit([], [Put("later/more", b"1")])
        for passed_s, more in ((4.0, 0), (1.5, 1)):
            clock.ahead_s += passed_s
            await mine.put_if_changed()
            assert mine.made == made + more


async def test_its_age_counts_from_when_the_store_had_all(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        broker, clock = leader(together), Hands()
        mine = snapshots(broker, clock=clock)
        await mine.put_if_changed()
        clock.ahead_s += 100
        assert 100 <= mine.age_s < 150
        await mine.put_if_changed()
        assert mine.age_s < 50
        clock.ahead_s += 100
        together.store.faults = _refuse
        await together.coordination.commit([], [Put("later/kind", b"1")])
        with pytest.raises(StoreUnavailable):
            await mine.put_if_changed()
        assert 100 <= mine.age_s < 150
        together.store.faults = lambda moment, name: None


def _refuse(moment: str, name: str) -> None:
    if name.startswith("_coordination/"):
        raise StoreUnavailable("away")


async def test_a_life_ends_if_a_snapshots_number_does_not_rise(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        await settled(together)
        key = keys.SNAPSHOTS.key()
        there = await together.coordination.get(key)
        assert there
        again = Put(key, there.value)  # as a leader over a restored coordination writes it
        assert await together.coordination.commit([], [again])
        await until(lambda: all(broker.lost.is_set() for broker in together.brokers))


async def test_a_life_ends_if_the_store_has_its_snapshot_already(tmp_path: Path) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        mine, broker = await settled(together), leader(together)
        there = await state(broker)
        assert await broker.context.backups.put_snapshot(replace(there, number=there.number + 1))
        await together.coordination.commit([], [Put("later/kind", b"1")])
        with pytest.raises(Fenced, match=f"the store already has its snapshot {there.number + 1}"):
            await mine.put_if_changed()
        assert broker.lost.is_set()


async def test_a_life_ends_if_a_revision_falls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path, snapshot_s=HOUR_S) as together:
        await settled(together)
        broker = together.brokers[0]
        seen = broker.coordination.seen
        assert seen > 1

        async def restored(*_: Any) -> Page:
            return Page((), seen - 1, False)

        with monkeypatch.context() as back:
            back.setattr(together.coordination, "range", restored)
            with pytest.raises(CoordinationUnavailable, match="coordination went back"):
                await broker.coordination.range("")
        assert broker.lost.is_set()
        assert not inside.membership(broker).valid()
