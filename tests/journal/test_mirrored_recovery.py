"""The recovery of a mirrored journal: one holding is enough, one copy counts, and what is unknown is never empty."""

import asyncio
import json

import msgspec
import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put
from seaweedq.coordination.records import MirrorMember, MirrorsRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Fenced, StoreUnavailable
from seaweedq.journal import mirrored_recovery
from seaweedq.journal.interface import FoundHolding, JournalUnreachable
from seaweedq.journal.mirrored_journal import MirrorRules
from seaweedq.journal.mirroring import Span
from seaweedq.journal.object_format import list_slots
from seaweedq.journal.object_recovery import DeadObjectJournal
from tests.support.journal.claims import unbounded
from tests.support.journal.mirrored import BROKER, KEY, Mirrored, until
from tests.support.journal.sim_disk import acks

pytestmark = pytest.mark.default


async def filled(world: Mirrored, *mirrors: str, commits: int = 3) -> None:
    """A journal whose owner has died."""
    journal = await world.begin(*mirrors)
    for number in range(commits):
        await journal.append(acks(b"%d" % number))
    await journal.close()


@pytest.mark.parametrize("left", ["m1", "m2"])
async def test_any_holding_of_the_set_is_enough(left: str) -> None:
    world = Mirrored()
    await filled(world, "m1", "m2")
    world.kill({"m1": "m2", "m2": "m1"}[left])
    assert await world.recovered() == [b"0", b"1", b"2"]
    world.kill(left)
    assert await world.recovered() == [b"0", b"1", b"2"], "the store has it by now"


async def test_without_any_the_journal_is_unknown_and_never_empty() -> None:
    world = Mirrored()
    await filled(world, "m1", "m2")
    world.mirrors.all["m1"].silent = True
    world.kill("m2")
    for _ in range(2):
        with pytest.raises(JournalUnreachable, match="m1"):
            await world.recovered()
    world.mirrors.all["m1"].silent = False
    assert await world.recovered() == [b"0", b"1", b"2"]


async def test_a_mirror_that_began_again_has_nothing_to_say() -> None:
    world = Mirrored()
    await filled(world, "m1", "m2")
    world.mirrors.add("m1", "m2")
    with pytest.raises(JournalUnreachable):
        await world.recovered()


async def test_a_lossy_copy_is_not_taken_for_the_whole() -> None:
    """Another recovery may not know yet that the loss was accepted."""
    world = Mirrored()
    await filled(world, "m1", "m2")
    world.mirrors.add("m1", "m2")
    assert await world.recovered(is_given_up=True) == []
    record = await world.set_of()
    assert record is not None
    assert (record.state, record.is_lossy) == ("decided", True)
    with pytest.raises(JournalUnreachable, match="the loss of this journal was accepted"):
        await world.recovered()
    assert await world.recovered(is_given_up=True) == []


async def test_of_a_journal_that_is_given_up_any_holding_counts() -> None:
    """One that no set names any more has what was not stored when it left."""
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    await journal.close()
    record = await world.set_of()
    assert record is not None
    left = msgspec.structs.replace(record, members=(MirrorMember("m3", "gone"),))
    await world.mirrors.coordination.commit([], [Put(KEY, keys.MIRRORS.encode(Versioned.new(left)))])
    with pytest.raises(JournalUnreachable):
        await world.recovered()
    assert await world.recovered(is_given_up=True) == [b"0"]


async def test_a_mirror_that_came_back_makes_a_copy_whole() -> None:
    world = Mirrored()
    await filled(world, "m1", "m2")
    assert await world.recovered(is_given_up=True) == [b"0", b"1", b"2"]
    assert await world.recovered() == [b"0", b"1", b"2"], "nothing is lost of it"


async def test_slots_are_left_of_a_journal_whose_set_coordination_has_lost() -> None:
    world = Mirrored(MirrorRules(count=0, least=0, exposure_s=None))
    journal = await world.begin()
    await journal.append(acks(b"0"))
    await journal.close()
    await world.mirrors.coordination.commit([], [Delete(KEY)])
    with pytest.raises(JournalUnreachable, match="coordination has lost"):
        await world.recovered()
    assert await world.recovered(is_given_up=True) == [b"0"]
    dead = world.dead(is_given_up=True)
    await dead.fence()
    await dead.remove()
    assert await world.set_of() is None


@pytest.mark.parametrize("at_once", [False, True])
async def test_of_two_recoveries_one_copy_counts(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two mirrors, of which one has more: both recoveries replay the same, also if both have fenced a mirror before
    either copy counts."""
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    world.mirrors.all["m1"].silent = True
    sending = asyncio.create_task(journal.append(acks(b"1")))
    await until(lambda: any(len(one) == 2 for one in world.mirrors.all["m2"].holdings.look(BROKER)))
    await journal.close()
    await asyncio.gather(sending, return_exceptions=True)
    one, other = world.dead(), world.dead()
    fence, begun, decided = world.mirrors.fence, asyncio.Event(), asyncio.Event()

    async def fence_and_wait(owner: str) -> tuple[list[FoundHolding], list[str]]:
        found = await fence(owner)
        begun.set()
        await decided.wait()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(world.mirrors, "fence", fence_and_wait)
        late = asyncio.create_task(other.fence()) if at_once else None
        if late:
            await begun.wait()
    world.mirrors.all["m1"].silent, world.mirrors.all["m2"].silent = False, True
    await one.fence()
    world.mirrors.all["m1"].silent, world.mirrors.all["m2"].silent = True, False
    decided.set()
    await (late or other.fence())
    for dead in (one, other):
        found = [bytes(frame.payload) async for commit in dead.commits(unbounded) for frame in commit.frames]
        assert found == [b"0"]


async def test_a_change_that_is_late_finds_the_key_closed() -> None:
    world = Mirrored()
    journal = await world.begin("m1")
    await journal.append(acks(b"0"))
    assert await world.recovered() == [b"0"]
    world.mirrors.add("m2")
    with pytest.raises(Fenced):
        await journal.append(acks(b"1"))
    record = await world.set_of()
    assert record is not None
    assert (record.state, len(record.members)) == ("decided", 1)
    await journal.close()


async def test_no_change_lands_behind_the_look_of_a_recovery(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was on its way when its owner died."""
    world = Mirrored()
    await filled(world, "m1")
    coordination, fence = world.mirrors.coordination, world.mirrors.fence
    there = await coordination.get(KEY)
    assert there is not None
    late = Put(KEY, keys.MIRRORS.encode(Versioned.new(MirrorsRecord("open", (), 9))))

    async def land_and_fence(owner: str) -> tuple[list[FoundHolding], list[str]]:
        assert await coordination.commit([Compare(KEY, there.revision)], [late]) is None
        return await fence(owner)

    monkeypatch.setattr(world.mirrors, "fence", land_and_fence)
    assert await world.recovered() == [b"0", b"1", b"2"]


async def test_a_holding_that_left_the_set_is_not_enough() -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    world.mirrors.all["m1"].silent = True
    await journal.append(acks(b"1"))
    await until(lambda: journal.mirrors == ("m2",))
    await journal.close()
    world.mirrors.all["m1"].silent, world.mirrors.all["m2"].silent = False, True
    assert world.mirrors.all["m1"].holdings.of(BROKER)
    with pytest.raises(JournalUnreachable):
        await world.recovered()
    world.mirrors.all["m2"].silent = False
    assert await world.recovered() == [b"0", b"1"]


async def test_a_copy_is_in_the_store_before_the_key_names_it() -> None:
    world = Mirrored()
    await filled(world, "m1")

    def refuse(moment: str, name: str) -> None:
        if "~" in name:
            raise StoreUnavailable("as told")

    world.store.faults = refuse
    with pytest.raises(StoreUnavailable):
        await world.recovered()
    record = await world.set_of()
    assert record is not None
    assert record.state == "closed"
    world.store.faults = lambda moment, name: None
    assert await world.recovered() == [b"0", b"1", b"2"]


async def test_a_fence_answers_with_what_is_there_as_of_the_fence() -> None:
    world = Mirrored()
    await filled(world, "m1")
    held = world.mirrors.all["m1"].holdings
    (fenced,) = held.fence(BROKER)
    assert Span(fenced.first, fenced.end) == Span(0, 3)
    journal = await world.begin()
    await journal.close()
    assert [len(one) for one in held.look(BROKER)] == [3]


async def test_slots_that_another_recovery_deletes_meanwhile_end_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader's look ended with a FileNotFoundError, and with it the leader's task."""
    world = Mirrored()
    await filled(world, "m1", "m2")

    async def gone(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(mirrored_recovery, "read_header", gone)
    monkeypatch.setattr(DeadObjectJournal, "numbers", range(3))  # as of a listing before
    with pytest.raises(JournalUnreachable, match="is deleting it"):
        await world.dead().fence()


async def test_a_removal_leaves_no_copy_and_no_set() -> None:
    world = Mirrored()
    await filled(world, "m1", "m2")
    dead = world.dead()
    await dead.fence()
    assert any("~" in name for name in world.slots)
    for _ in range(2):
        await dead.remove()
    assert not any("~" in name for name in world.slots)
    assert await world.set_of() is None
    assert len(await list_slots(world.store, BROKER)) == 1, "the fence"
    assert await world.recovered() == [], "it is done, whatever coordination says"


async def test_members_that_a_later_version_added_stay() -> None:
    world = Mirrored()
    record = {"state": "open", "members": [], "change": 1, "later": [1]}
    await world.mirrors.coordination.commit([], [Put(KEY, json.dumps(record).encode())])
    assert await world.recovered() == []
    there = await world.mirrors.coordination.get(KEY)
    assert there is not None
    assert json.loads(there.value)["later"] == [1]
    assert keys.MIRRORS.require(there).record.state == "decided"
