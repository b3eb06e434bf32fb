"""A file that lands in a topic's folder after the topic went: readers of the directory see it only for a while.

The leader: nothing that takes long, or hangs, keeps it from what must be done at once.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.cluster.periodic_tasks import LATE_S, LateFiles
from seaweedq.broker.recovery.journal_recovery import JournalRecovery
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import TopicConfig
from seaweedq.errors import Unavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers

LATE = "topics/t/segment=0/00000001-0000000000000007.parquet"


class Clock:
    now_s = 0.0

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.now_s


async def test_a_late_file_of_a_dead_topic_does_not_stay_in_its_namesake(tmp_path):
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        topics, catalog, clock = inside.topic_admin(broker), inside.catalog(broker), Clock()
        late = LateFiles(catalog, topics.sweep, clock)
        for name in ("t", "other"):
            await topics.create(name, TopicConfig())
        await late.sweep_recently_deleted()
        await inside.deletion(broker).delete(catalog.topic("t"))
        await topics.create("t", TopicConfig())
        await late.sweep_recently_deleted()
        await together.store.create(LATE, b"as of a broker that was cut off")
        clock.now_s += LATE_S - 1
        await late.sweep_recently_deleted()
        (left,) = await together.store.list("topics/t/")
        assert left.startswith("topics/t/segment=1/")  # the empty file of the new topic
        assert len(await together.store.list("topics/other/")) == 1


async def test_names_are_swept_for_a_while_and_only_those_whose_topic_went(tmp_path):
    swept, clock = [], Clock()

    async def sweep(names):
        swept.append(sorted(names))

    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        late = LateFiles(inside.catalog(broker), sweep, clock)
        for name in ("t", "other"):
            await inside.topic_admin(broker).create(name, TopicConfig())
        await late.sweep_recently_deleted()
        assert not swept
        await inside.deletion(broker).delete(inside.topic(broker, "t"))
        for _ in range(3):
            await late.sweep_recently_deleted()
            clock.now_s += LATE_S / 2
    assert swept == [["t"], ["t"]]


def leader(together: InLoop) -> Broker:
    (found,) = [broker for broker in together.brokers if inside.election(broker).is_leader]
    return found


async def fails_over(together: InLoop) -> None:
    """A broker that is not the leader dies, and its segment is another's soon."""
    here = leader(together)
    dead = next(broker for broker in together.brokers if broker is not here)
    await inside.topic_admin(here).create("t", TopicConfig(initial_segments=len(together.brokers)))
    topic = inside.topic(here, "t")
    await together.crash(dead)
    await until(lambda: not inside.catalog(here).owned_by(dead.id), "its segments are still the dead one's")
    await publish(here, topic, "1")


async def test_segments_are_given_under_the_leaders_key_and_without_their_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that is one no more gives nothing, nor does any leader while the broker is back."""
    async with in_loop(tmp_path, 3) as together:
        here = leader(together)
        catalog, seen = inside.catalog(here), list[set[Compare]]()
        commit = catalog.commit

        async def noted(compares: Sequence[Compare], writes: Sequence[Put]) -> int | None:
            seen.append(set(compares))
            return await commit(compares, writes)

        dead = next(broker for broker in together.brokers if broker is not here)
        await inside.topic_admin(here).create("t", TopicConfig(initial_segments=len(together.brokers)))
        monkeypatch.setattr(catalog, "commit", noted)
        await together.crash(dead)
        await until(lambda: not catalog.owned_by(dead.id))
        assert seen
        wanted = {inside.election(here).leader_compare(), Compare(keys.BROKERS.key(dead.id), 0)}
        assert all(wanted <= compares for compares in seen)


def do_at_once(chore: Any, work: Any) -> None:
    """Has a chore do that, and again whenever its leader looks."""
    chore._work, chore._every_s, chore._due_s = work, 0, 0


@pytest.mark.parametrize("chore", ["ending deletions", "balancing", "sweep"])
async def test_a_chore_that_hangs_keeps_no_segment_homeless(tmp_path: Path, chore: str) -> None:
    async with in_loop(tmp_path) as together:
        held = inside.leader(leader(together))
        assert held
        (found,) = [one for one in privates.tasks(held) if one._name == chore]
        hangs = Gate()
        do_at_once(found, hangs)
        held.wake()
        await hangs.reached.wait()
        await fails_over(together)


async def test_a_chore_that_fails_in_any_way_is_done_again(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        held = inside.leader(leader(together))
        assert held
        chore = privates.tasks(held)[0]
        errors = [Unavailable("first"), KeyError("second")]
        done = asyncio.Event()

        async def work() -> None:
            if errors:
                raise errors.pop(0)
            done.set()

        do_at_once(chore, work)
        for _ in range(3):
            held.wake()
            await asyncio.sleep(0.05)
        assert done.is_set()


async def test_recoveries_are_broken_off_when_the_broker_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path, 3, shutdown_s=60) as together:
        here = leader(together)
        hangs = Gate()
        monkeypatch.setattr(inside.recovery(here), "_replay_all", hangs)
        dead = next(broker for broker in together.brokers if broker is not here)
        await together.crash(dead)
        await hangs.reached.wait()
        async with asyncio.timeout(15):
            await here.stop()
        assert inside.leader(here)
        assert not inside.leader(here)._recovering


async def test_a_round_looks_at_no_segment_of_the_living(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path) as together:
        here = leader(together)
        await inside.topic_admin(here).create("t", TopicConfig(initial_segments=100))
        assert inside.leader(here)
        looked: list[str | None] = []
        owned_by = privates.owned_by(inside.leader(here))
        monkeypatch.setattr(inside.leader(here), "_owned_by", lambda owner: (looked.append(owner), owned_by(owner))[1])
        await inside.leader(here).round()
        assert looked == []


async def test_a_broker_that_is_still_starting_is_given_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path) as together:
        here = leader(together)
        gate = Gate()

        monkeypatch.setattr(JournalRecovery, "recover_own", gate)
        starting = asyncio.create_task(together.begin())
        await gate.reached.wait()
        await until(lambda: len(inside.roster(here).brokers) == 3)
        late = together.brokers[2]
        await inside.topic_admin(here).create("t", TopicConfig(initial_segments=6))
        await together.crash(next(broker for broker in together.brokers[:2] if broker is not here))
        await until(lambda: len(inside.catalog(here).owners()) == 1)
        assert not inside.catalog(here).owned_by(late.id)
        gate.open.set()
        await starting
        await until(lambda: bool(inside.catalog(here).owned_by(late.id)), "it gets its share once it serves")
        await late.stop()
