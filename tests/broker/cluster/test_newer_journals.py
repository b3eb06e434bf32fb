"""A journal that the leader cannot read: a broker that lives and reads it recovers it, within a few rounds. Without one
its segments alone answer that a newer broker is needed, which is said once.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.api.metrics.cluster import journal_metrics
from seaweedq.api.metrics.families import render
from seaweedq.broker.broker import Broker
from seaweedq.broker.recovery.journal_recovery import RequestedRecoveries
from seaweedq.clock import Clock, Ids
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Put
from seaweedq.coordination.records import JournalRecord
from seaweedq.errors import NeedsNewerBroker, NotOwner, PeerTooOld, Unavailable
from seaweedq.formats import Level, needs_newer
from seaweedq.journal.backends import JournalKinds, ObjectJournals
from seaweedq.journal.disk import Disk
from seaweedq.journal.holdings import Holdings
from seaweedq.journal.home_folder import HomeFolder
from seaweedq.journal.interface import Journals, JournalSetup, Mirrors, SeenNow
from seaweedq.journal.pacing import Pace
from seaweedq.settings import Settings
from seaweedq.storage.interface import ObjectStore
from tests.support import privates
from tests.support.brokers import environments, inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until

pytestmark = pytest.mark.brokers

WRITERS = {"b1"}  # brokers whose own journal is of a later version


class LaterJournals(ObjectJournals):
    """The object journals of a later version."""

    def describe(self, broker: str) -> JournalRecord:
        return replace(super().describe(broker), kind="later")


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the brokers that are of the later version."""
    names = set(WRITERS)

    def setup(
        settings: Settings, clock: Clock, ids: Ids, environ: Mapping[str, str], disk: Disk | None = None
    ) -> JournalSetup:
        home = HomeFolder(settings.home, disk or Disk(), ids)

        def opened(store: ObjectStore, level: Level, seen: SeenNow, mirrors: Mirrors) -> Journals:
            kinds: dict[str, Journals] = {"object": ObjectJournals(home, store, clock, ids, Pace(4), level, seen)}
            if settings.name in names:
                kinds["later"] = LaterJournals(home, store, clock, ids, Pace(4), level, seen)
            return JournalKinds(kinds, "later" if settings.name in WRITERS else "object")

        return JournalSetup(home, opened, Holdings(1 << 20, ids))

    monkeypatch.setattr(environments, "journal_setup", setup)
    return names


async def left_behind(together: InLoop) -> tuple[str, int]:
    """Messages in the journal of a broker of the later version, which dies; its id, and the end of its one segment."""
    leader, dead, *_ = together.brokers
    assert inside.election(leader).is_leader
    broker = dead.id
    await publish(dead, await make_topic(dead, "theirs"), "1", "2", "3")
    topic = inside.topic(dead, "theirs")
    if inside.catalog(dead).segment(topic, 0).record.owner != broker:
        pytest.skip("another broker was given the segment")
    await together.crash(dead)
    return broker, 3


async def end_of(broker: Broker) -> int:
    """The end of the segment where it was recovered to."""
    opened = await inside.ownership(broker).mine(inside.topic(broker, "theirs"))
    return sum(segment.end for segment in opened)


async def given(together: InLoop, dead: str) -> int:
    """Wait until a living broker has the segment, and return its end."""
    leader, living = together.brokers[0], [one for one in together.brokers if one.process.url in together.apps]
    topic = inside.topic(leader, "theirs")
    await until(lambda: inside.catalog(leader).segment(topic, 0).record.owner not in (dead, None))
    owner = inside.catalog(leader).segment(topic, 0).record.owner
    await until(lambda: all(inside.catalog(one).segment(topic, 0).record.owner == owner for one in living))
    return await end_of(next(one for one in living if one.id == owner))


async def test_a_broker_that_reads_it_recovers_what_the_leader_cannot(
    tmp_path: Path, readers: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "seaweedq.broker")
    readers.add("b3")
    async with in_loop(tmp_path, 4) as together:
        dead, end = await left_behind(together)
        assert await given(together, dead) == end
        await until(lambda: dead not in inside.roster(together.brokers[0]).journals)
        reads = together.brokers[3].id
        assert (
            f"asking broker {reads} to recover the journal of broker {dead}, because this broker cannot read the"
            in caplog.text
        )
        assert "no running broker can read" not in caplog.text
        assert not any(one.lost.is_set() for one in together.brokers)


async def test_without_one_only_its_segments_need_a_newer_broker_until_one_comes(
    tmp_path: Path, readers: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with in_loop(tmp_path, 2, publish_timeout_s=2) as together:
        leader = together.brokers[0]
        dead, end = await left_behind(together)
        await until(lambda: inside.roster(leader).journals[dead].record.needs_newer)
        with pytest.raises(NeedsNewerBroker, match=f"{dead} is no longer running, and no running broker can read its"):
            await publish(leader, inside.topic(leader, "theirs"), "4")
        await publish(leader, await make_topic(leader, "others"), "1")
        assert "\nseaweedq_journals_needing_newer 1.0" in render(journal_metrics(leader)).decode()
        for _ in range(3):  # tried again, and not said again
            assert not await privates.recoveries(inside.leader(leader)).recover(
                dead, inside.roster(leader).journals[dead]
            )
        assert caplog.text.count("no running broker can read the journal of") == 1
        assert caplog.text.count("could not be recovered completely") == 1

        readers.add("b2")
        newer = await together.begin()
        try:
            assert await given(together, dead) == end
            await until(lambda: dead not in inside.roster(leader).journals)
        finally:
            await newer.stop()


@pytest.mark.parametrize("answer", ["too old", "silent"])
async def test_one_that_is_too_old_is_asked_once_and_one_that_is_silent_again(
    tmp_path: Path, readers: set[str], monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    async with in_loop(tmp_path, 3) as together:
        leader = together.brokers[0]
        asked = []

        async def call(url: str, path: str, *_: Any) -> bool:
            asked.append((url, path))
            raise PeerTooOld("x") if answer == "too old" else Unavailable("x")

        dead, _ = await left_behind(together)
        recoveries = privates.recoveries(inside.leader(leader))
        monkeypatch.setattr(leader.process.peers, "call", call)
        recoveries._unable.clear()
        asked.clear()
        for _ in range(3):
            await recoveries.recover(dead, inside.roster(leader).journals[dead])
        recovers = [url for url, path in asked if path == "recover"]
        assert set(recovers) == {"http://b2"}
        assert len(recovers) == 1 if answer == "too old" else len(recovers) >= 3


async def test_a_journal_of_a_later_version_of_slots_is_left_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker that lives and reads it has the same code here: the leader's own reading is what is cut short."""
    async with in_loop(tmp_path, 3, journal="object") as together:
        leader = together.brokers[0]

        async def fence(self: Any) -> None:
            raise needs_newer("_journals/x/00000000 has version 3 of the format of slots")

        opened = inside.journals(leader).open_dead

        def open_dead(broker: str, record: JournalRecord) -> Any:
            dead = opened(broker, record)
            monkeypatch.setattr(dead, "fence", fence.__get__(dead))
            return dead

        monkeypatch.setattr(inside.journals(leader), "open_dead", open_dead)
        dead, end = await left_behind(together)
        assert await given(together, dead) == end
        assert "has version 3 of the format of slots" in caplog.text


async def test_a_broker_that_is_asked_looks_itself_whether_the_other_is_gone(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        one, other = together.brokers
        requested = RequestedRecoveries(inside.recovery(one), together.coordination)
        with pytest.raises(NotOwner, match=f"broker {other.id} is running"):
            await requested.recover(other.id)
        assert await requested.recover("nobody"), "there is nothing to recover"
        assert await together.coordination.get(keys.JOURNALS.key(other.id))
        await requested.stop()


async def test_a_journal_of_its_folder_that_it_cannot_read_ends_no_start(
    tmp_path: Path, readers: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1, journal="file") as together:
        (one,) = together.brokers

        def is_exclusive(record: JournalRecord) -> bool:
            return True

        async def own() -> Any:
            return {"gone": keys.JOURNALS.read(there)}

        there = await together.coordination.get(keys.JOURNALS.key(one.id))
        assert there
        monkeypatch.setattr(inside.recovery(one), "_own_journals", own)
        monkeypatch.setattr(inside.journals(one), "is_exclusive", is_exclusive)
        monkeypatch.setattr(inside.journals(one), "_backends", {})
        await inside.recovery(one).recover_own()
        assert inside.recovery(one).left("gone")


async def test_a_journal_whose_record_the_leader_cannot_read_is_for_others_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_loop(tmp_path, 3, journal="object") as together:
        leader, writer, other = together.brokers
        key, requested = keys.JOURNALS.key(writer.id), inside.requested_recoveries(other)
        there = await together.coordination.get(key)
        assert there
        known, recover, asked = keys.JOURNALS.require(there), requested._recover, []

        async def as_a_later_version(broker: str) -> bool:
            asked.append(broker)
            await together.coordination.commit([], [Put(key, keys.JOURNALS.encode(known))])
            return await recover(broker)

        monkeypatch.setattr(requested, "_recover", as_a_later_version)
        await together.coordination.commit([], [Put(key, b'{"needs_level": 99}')])
        await until(lambda: writer.id in inside.roster(leader).unreadable_journals)
        dead, end = await left_behind(together)
        assert await given(together, dead) == end
        assert asked == [dead]
        await until(lambda: dead not in inside.roster(leader).journals)
