"""The owner of a mirrored journal waits for its mirrors and not for the store, and loses nothing with any of them."""

import asyncio
from collections.abc import Sequence

import pytest

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Delete, Put
from seaweedq.errors import CoordinationUnavailable, Fenced, RequestTooLarge, StoreUnavailable, Unavailable
from seaweedq.journal.holdings import HoldAnswer, HoldState
from seaweedq.journal.interface import MirrorBroker
from seaweedq.journal.mirrored_journal import TICK_S, MirrorRules
from tests.support.brokers.simulated_loop import clock as loop_clock
from tests.support.brokers.simulated_loop import simulate
from tests.support.http.serving_protocol import Shifted
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
    async with asyncio.timeout(30):
        assert await journal.append(acks(bytes(20_000))) == 0
    assert journal.mirrors == ()
    await journal.close()
    assert await world.recovered() == [bytes(20_000)]


async def test_what_is_in_memory_for_long_goes_into_one_slot() -> None:
    world = Mirrored(MirrorRules(exposure_s=60.0), clock=(clock := Shifted()))
    journal = await world.begin("m1", "m2")
    for number in range(20):
        await journal.append(acks(b"%d" % number))
    assert world.slots == []
    clock.more_s += 60.0
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


async def test_a_call_that_was_lost_is_made_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the mirror's process has ended, the next connection is refused, and publishes wait for that."""
    monkeypatch.setattr("seaweedq.journal.mirrored_journal.AGAIN_S", 60.0)
    world = Mirrored(MirrorRules(exposure_s=None, patience_s=60.0))
    journal = await world.begin("m1", "m2")
    hold, lost = world.mirrors.hold, list[str]()

    async def killed(broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        if broker == "m1" and not lost:
            lost.append(broker)
            raise Unavailable("the connection was closed")
        return HoldAnswer(HoldState.UNKNOWN) if broker == "m1" else await hold(broker, data, timeout_s)

    monkeypatch.setattr(world.mirrors, "hold", killed)
    async with asyncio.timeout(30):
        await journal.append(acks(b"0"))
    assert (lost, journal.mirrors) == (["m1"], ("m2",))
    await journal.close()


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
    async with asyncio.timeout(15):
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
    async with asyncio.timeout(15):
        await journal.append(acks(b"1"))
    assert journal.exposed == 0
    await until(lambda: journal.mirrors == ())
    assert await world.recovered() == [b"0", b"1"]
    await journal.close()


def test_a_broker_that_starts_alone_has_its_mirrors_soon() -> None:
    """Nothing is refused on the way, and the set grows once a second at most."""

    async def work() -> None:
        world = Mirrored(clock=loop_clock())
        journal = await world.begin()
        sent = [b"alone"]
        await journal.append(acks(b"alone"))
        assert (journal.mirrors, journal.exposed) == ((), 0)
        grown_s = []
        for mirror in ("m1", "m2"):
            world.mirrors.add(mirror)
            began_s, count = loop_clock().time(), len(journal.mirrors)
            while len(journal.mirrors) == count:
                sent.append(b"%d" % len(sent))
                await journal.append(acks(sent[-1]))
                await asyncio.sleep(TICK_S / 5)
            grown_s.append(loop_clock().time() - began_s)
        assert grown_s[0] < 0.2
        assert 0.9 < grown_s[1] < 1.2
        assert journal.exposed
        assert await world.recovered() == sent
        await journal.close()

    simulate(work())


async def test_a_call_and_a_piece_of_a_copy_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("holdings", "mirrored_journal"):
        monkeypatch.setattr(f"seaweedq.journal.{module}.CALL_BYTES", 1500)
    world = Mirrored()
    journal = await world.begin("m1")
    hold, sizes = world.mirrors.hold, list[int]()

    async def counted(broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        sizes.append(len(data))
        return await hold(broker, data, timeout_s)

    monkeypatch.setattr(world.mirrors, "hold", counted)
    sent = [bytes([number]) * 600 for number in range(4)]
    await asyncio.gather(*(journal.append(acks(one)) for one in sent))
    assert len(sizes) > 1
    assert max(sizes) < 1600
    assert await world.recovered() == sent
    assert len(world.slots) > 1, "a slot for each piece"
    await journal.close()


async def test_while_coordination_is_away_the_store_answers_for_dead_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Mirrored()
    journal = await world.begin("m1", "m2")

    async def away(*_: object) -> None:
        raise CoordinationUnavailable("as told")

    with monkeypatch.context() as patch:
        patch.setattr(world.mirrors.coordination, "commit", away)
        world.kill("m1", "m2")
        async with asyncio.timeout(15):
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


def overtake(monkeypatch: pytest.MonkeyPatch, world: Mirrored, write: Put | Delete) -> None:
    """Has this write come just before the next transaction that is sent."""
    commit, writes_before = world.mirrors.coordination.commit, [write]

    async def overtaken(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        if writes_before:
            await commit([], [writes_before.pop()])
        return await commit(compares, writes)

    monkeypatch.setattr(world.mirrors.coordination, "commit", overtaken)


async def test_an_owner_whose_lease_has_ended_takes_no_mirror_out_of_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """It believes that m2 has left, and does not know yet that m1 is dead."""
    world = Mirrored(MirrorRules(exposure_s=None, patience_s=9))
    journal = await world.begin("m1", "m2")
    await journal.append(acks(b"0"))
    world.mirrors.all["m1"].silent = True
    overtake(monkeypatch, world, Delete(keys.BROKERS.key(BROKER)))
    with monkeypatch.context() as patch:
        patch.setattr(world.mirrors, "brokers", lambda: {"m1": MirrorBroker("", True)})
        with pytest.raises(Fenced, match="lease has ended"):
            await journal.append(acks(b"1"))
    world.kill("m1")
    assert (await world.recovered())[:1] == [b"0"]
    await journal.close()


async def test_a_change_is_sent_again_if_the_broker_has_written_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that begins to drain."""
    world = Mirrored()
    journal = await world.begin()
    own = await world.mirrors.coordination.get(keys.BROKERS.key(BROKER))
    assert own is not None
    overtake(monkeypatch, world, Put(own.key, own.value))
    world.mirrors.add("m1", "m2")
    await until(lambda: len(journal.mirrors) == 2)
    await journal.append(acks(b"0"))
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


async def test_a_mirror_that_was_dropped_is_asked_again_ever_later() -> None:
    """After 10 s, then after twice as long each time, up to 5 min."""
    world = Mirrored(clock=(clock := Shifted()))
    journal = await world.begin("m1", "m2")
    for pause_s in (10, 20, 40, 80, 160, 300, 300):
        world.mirrors.all["m1"].holdings.forget(BROKER)
        await journal.append(acks(b"0"))
        await until(lambda: journal.mirrors == ("m2",))
        clock.more_s += pause_s / 2  # less than the pause before, or as much
        await asyncio.sleep(3 * TICK_S)
        assert journal.mirrors == ("m2",), pause_s
        clock.more_s += pause_s / 2 + 1
        await until(lambda: set(journal.mirrors) == {"m1", "m2"})
    await journal.close()


async def test_one_that_cannot_be_called_yet_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that starts is in the roster a little before it listens: it is no mirror that was dropped."""
    world = Mirrored(clock=(clock := Shifted()))
    hold, refused = world.mirrors.hold, 0

    async def refuse(broker: str, data: bytes, timeout_s: float) -> HoldAnswer:
        nonlocal refused
        if broker == "m2" and refused < 3:
            refused += 1
            return HoldAnswer(HoldState.UNKNOWN)
        return await hold(broker, data, timeout_s)

    monkeypatch.setattr(world.mirrors, "hold", refuse)
    begun_s = clock.monotonic_s()
    journal = await world.begin("m1", "m2")
    assert refused == 3
    assert clock.monotonic_s() - begun_s < 8, "10 s are for one that was dropped"
    world.mirrors.all["m2"].holdings.forget(BROKER)
    await journal.append(acks(b"0"))
    await until(lambda: journal.mirrors == ("m1",))
    await asyncio.sleep(1.5)
    assert journal.mirrors == ("m1",), "this one was"
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
