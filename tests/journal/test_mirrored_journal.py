"""The owner of a mirrored journal waits for its mirrors and not for the store, and loses nothing with any of them."""

import asyncio

import pytest

from seaweedq.errors import CoordinationUnavailable, Fenced, RequestTooLarge, StoreUnavailable, Unavailable
from seaweedq.journal.holdings import HoldAnswer
from seaweedq.journal.mirrored_journal import MirrorRules
from tests.support.journal.mirrored import BROKER, Mirrored, until
from tests.support.journal.sim_disk import acks

pytestmark = pytest.mark.default


async def test_with_mirrors_a_commit_asks_the_store_for_nothing() -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")

    def refuse(moment: str, name: str) -> None:
        raise StoreUnavailable("as told")

    world.store.faults = refuse
    assert [await journal.append(acks(b"%d" % n)) for n in range(5)] == list(range(5))
    assert journal.exposed == 5
    for mirror in world.mirrors.all.values():
        assert [len(one) for one in mirror.holdings.look(BROKER)] == [5]
    await journal.close()


async def test_a_commit_that_no_mirror_can_take_goes_into_the_store_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for the patience, which is for mirrors that do not answer."""
    world = Mirrored(MirrorRules(exposure_s=None, patience_s=60.0))
    journal = await world.begin("m1", "m2")
    hold = world.mirrors.hold

    async def refuse_large(broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        if len(data) > 10_000:
            raise RequestTooLarge("the body is too large", limit_bytes=10_000)
        return await hold(broker, data, timeout_s)

    monkeypatch.setattr(world.mirrors, "hold", refuse_large)
    async with asyncio.timeout(10):
        assert await journal.append(acks(bytes(20_000))) == 0
    assert journal.mirrors == ()
    await journal.close()
    assert await world.recovered() == [bytes(20_000)]


async def test_what_is_in_memory_for_long_goes_into_one_slot() -> None:
    world = Mirrored(MirrorRules(exposure_s=0.3))
    journal = await world.begin("m1", "m2")
    for number in range(20):
        await journal.append(acks(b"%d" % number))
    assert world.slots == []
    await until(lambda: journal.exposed == 0)
    assert len(world.slots) == 1
    await until(lambda: all(one.holdings.size_bytes == 0 for one in world.mirrors.all.values()))
    assert await world.recovered() == [b"%d" % number for number in range(20)]
    await journal.close()


async def test_a_slot_under_way_is_not_stored_yet() -> None:
    world = Mirrored(MirrorRules(exposure_s=0.05))
    journal = await world.begin("m1", "m2")
    begun = asyncio.Event()

    def refuse(moment: str, name: str) -> None:
        begun.set()
        raise StoreUnavailable("as told")

    world.store.faults = refuse
    await journal.append(acks(b"0"))
    await begun.wait()
    await asyncio.sleep(0.2)
    assert journal.exposed == 1
    assert [len(one) for one in world.mirrors.all["m1"].holdings.look(BROKER)] == [1]
    await journal.close()
    world.store.faults = lambda moment, name: None
    assert await world.recovered() == [b"0"]


@pytest.mark.parametrize("how", ["dead", "silent", "forgetful", "draining"])
async def test_a_mirror_in_trouble_is_replaced(how: str) -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    world.mirrors.add("m3")
    if how == "dead":
        world.kill("m1")
    elif how == "silent":
        world.mirrors.all["m1"].silent = True
    elif how == "draining":
        world.mirrors.all["m1"].takes_more = False
    else:
        world.mirrors.all["m1"].holdings.forget(BROKER)
    async with asyncio.timeout(5):
        await journal.append(acks(b"1"))
    await until(lambda: set(journal.mirrors) == {"m2", "m3"})
    world.kill("m2")
    assert await world.recovered() == [b"0", b"1"]
    await journal.close()


async def test_one_that_is_full_is_no_mirror() -> None:
    world = Mirrored()
    world.mirrors.add("m1", limit=1000)
    journal = await world.begin("m2", "m3")
    await until(lambda: len(journal.mirrors) == 2)
    for _ in range(10):
        await journal.append(acks(b"x" * 500))
    await until(lambda: set(journal.mirrors) == {"m2", "m3"})
    await journal.close()


async def test_without_mirrors_all_is_in_the_store() -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    world.kill("m1", "m2")
    async with asyncio.timeout(5):
        await journal.append(acks(b"1"))
    assert journal.exposed == 0
    await until(lambda: journal.mirrors == ())
    assert await world.recovered() == [b"0", b"1"]
    await journal.close()


async def test_while_coordination_is_away_the_store_answers_for_dead_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")

    async def away(*_: object) -> None:
        raise CoordinationUnavailable("as told")

    with monkeypatch.context() as patch:
        patch.setattr(world.mirrors.coordination, "commit", away)
        world.kill("m1", "m2")
        async with asyncio.timeout(5):
            await journal.append(acks(b"0"))
        assert journal.mirrors == ("m1", "m2") or set(journal.mirrors) == {"m1", "m2"}
    await until(lambda: journal.mirrors == ())
    assert await world.recovered() == [b"0"]
    await journal.close()


async def test_while_a_change_is_in_doubt_both_sets_have_to_have_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The change has landed, and its answer is lost: the old set alone must not be enough."""
    world = Mirrored(MirrorRules(count=1, exposure_s=None, patience_s=4))
    journal = await world.begin("m1")
    world.mirrors.add("m2")
    commit, told = world.mirrors.coordination.commit, asyncio.Event()

    async def lost(*given: object) -> None:
        await commit(*given)  # type: ignore[arg-type]
        told.set()
        raise CoordinationUnavailable("the answer is lost")

    with monkeypatch.context() as patch:
        patch.setattr(world.mirrors.coordination, "commit", lost)
        world.mirrors.all["m1"].takes_more = False
        await told.wait()
        world.mirrors.all["m2"].silent = True
        appending = asyncio.create_task(journal.append(acks(b"0")))
        await asyncio.sleep(0.3)
        assert not appending.done(), "the new set counts, and lacks it"
        world.mirrors.all["m2"].silent = False
        await appending
    await until(lambda: journal.mirrors == ("m2",))
    world.kill("m1")
    assert await world.recovered() == [b"0"]
    await journal.close()


async def test_a_mirror_that_has_not_answered_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Mirrored(MirrorRules(exposure_s=None, patience_s=9))
    journal = await world.begin("m1", "m2")
    hold = world.mirrors.hold

    async def lost(broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        if broker == "m1":
            raise Unavailable("as told")
        return await hold(broker, data, timeout_s)

    with monkeypatch.context() as patch:
        patch.setattr(world.mirrors, "hold", lost)
        appending = asyncio.create_task(journal.append(acks(b"0")))
        await asyncio.sleep(0.2)
        assert not appending.done()
    await appending
    assert [len(one) for one in world.mirrors.all["m1"].holdings.look(BROKER)] == [1]
    await journal.close()


async def test_what_was_sent_is_never_refused_while_nobody_answers() -> None:
    """Its offset would be given out again, and a recovery may find it."""
    world = Mirrored(MirrorRules(exposure_s=None, patience_s=0.1))
    journal = await world.begin("m1")

    def refuse(moment: str, name: str) -> None:
        raise StoreUnavailable("as told")

    world.store.faults = refuse
    world.mirrors.all["m1"].silent = True
    appending = asyncio.create_task(journal.append(acks(b"0")))
    await asyncio.sleep(0.6)
    assert not appending.done()
    world.store.faults = lambda moment, name: None
    assert await appending == 0
    await journal.close()


async def test_a_recovery_ends_the_journal() -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    assert await world.recovered() == [b"0"]
    with pytest.raises(Fenced):
        await journal.append(acks(b"1"))
    with pytest.raises(Fenced):
        await journal.append(acks(b"2"))
    assert await world.recovered() == [b"0"]
    await journal.close()


async def test_a_slot_that_lands_behind_a_fence_answers_nobody() -> None:
    """The slot has a commit that was refused meanwhile."""
    world = Mirrored(MirrorRules(exposure_s=0.05, patience_s=0.6))
    journal = await world.begin("m1")
    begun, unseen = asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: unseen.append(context))

    def refuse(moment: str, name: str) -> None:
        begun.set()
        raise StoreUnavailable("as told")

    world.store.faults = refuse
    mirror = world.mirrors.all["m1"]
    mirror.silent = True
    appending = asyncio.create_task(journal.append(acks(b"0")))
    await begun.wait()
    mirror.holdings.fence(BROKER)
    mirror.silent = False
    with pytest.raises(Fenced):
        await appending
    world.store.faults = lambda moment, name: None
    await until(lambda: len(world.slots) == 1)
    await asyncio.sleep(0.1)
    assert not unseen
    await journal.close()


@pytest.mark.parametrize("commits", [0, 1])
async def test_a_removal_by_the_owner_leaves_no_set(commits: int) -> None:
    world = Mirrored()
    journal = await world.begin("m1")
    for number in range(commits):
        await journal.append(acks(b"%d" % number))
    journal.release(commits)
    await journal.close()
    await journal.remove()
    assert await world.set_of() is None


async def test_an_owner_that_was_paused_blames_nobody() -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    for broker in world.mirrors.all.values():
        broker.silent = True
    appending = asyncio.create_task(journal.append(acks(b"0")))
    await asyncio.sleep(0.06)
    blocked_s = 1.0
    end_s = asyncio.get_running_loop().time() + blocked_s
    while asyncio.get_running_loop().time() < end_s:
        pass  # the whole loop stands still
    for broker in world.mirrors.all.values():
        broker.silent = False
    await appending
    assert set(journal.mirrors) == {"m1", "m2"}
    await journal.close()


async def test_holdings_are_told_that_they_are_over() -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"x" * 1000))
    world.mirrors.add("m3")
    world.mirrors.all["m1"].takes_more = False
    await until(lambda: set(journal.mirrors) == {"m2", "m3"})
    await until(lambda: world.mirrors.all["m1"].holdings.size_bytes == 0)
    assert world.mirrors.all["m1"].holdings.of(BROKER) == set()
    await journal.close()
