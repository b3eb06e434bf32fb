"""Sealing: the whole tail comes into the chain, whose last entry has the seal; an entry that breaks it is refused."""

import asyncio

import pytest

from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.log.flusher import Flusher
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.clock import SystemIds
from seaweedq.errors import NotOwner
from seaweedq.invariants import InvariantViolated
from seaweedq.journal.memory_journal import MemoryJournal
from seaweedq.segments.entry import Seal
from tests.support.brokers.commit_parts import StillClock, append, give, running, segment
from tests.support.levels import newest

SEAL = Seal((1,), ((0, 7),))
WRITER = EntryWriter("cluster", "broker.1", StillClock(), SystemIds(), newest)


async def filled(*commits: tuple[bytes, ...]) -> OpenSegment:
    """A segment with rows in its tail."""
    one = segment()
    async with running(MemoryJournal()) as commit:
        for values in commits:
            await give(commit, append(one, *values))
    return one


@pytest.fixture
def grown() -> list[int]:
    """The chain's end after each entry."""
    return []


@pytest.fixture
def flusher(grown: list[int]) -> Flusher:
    return Flusher(WRITER, lambda of: grown.append(of.chain.end), lambda *about: None, StillClock())


@pytest.mark.parametrize("is_flushed_ahead", [False, True])
async def test_the_seal_stands_in_the_last_entry(flusher: Flusher, grown: list[int], is_flushed_ahead: bool) -> None:
    one = await filled((b"a", b"b"), (b"c",))
    if is_flushed_ahead:
        await flusher.flush(one)
    one.pause(NotOwner("it is being replaced"))
    await flusher.seal(one, SEAL)
    assert one.sealed
    assert one.chain.last is not None
    assert (one.chain.last.seal, one.chain.end, one.tail.start) == (SEAL, 3, 3)
    assert grown == ([3, 3] if is_flushed_ahead else [3])
    await flusher.seal(one, SEAL)
    assert len(grown) == 1 + is_flushed_ahead, "who asks again finds it done"


async def test_entries_before_the_last_have_no_seal(
    flusher: Flusher, grown: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seaweedq.broker.log.flusher.ENTRY_BYTES", 1)
    one = await filled((b"a",), (b"b",), (b"c",))
    one.pause(NotOwner("it is being replaced"))
    await flusher.seal(one, SEAL)
    seals = [one.chain.metadata(name).seal for name in await one.chain.names()]
    assert (seals, grown) == ([None, None, SEAL], [1, 2, 3])


async def test_a_flush_under_way_is_waited_for_and_nobody_seals_twice(flusher: Flusher, grown: list[int]) -> None:
    one = await filled((b"a",), (b"b",))
    flushing = asyncio.create_task(flusher.flush(one))
    await asyncio.sleep(0)
    one.pause(NotOwner("it is being replaced"))
    gone = asyncio.create_task(flusher.seal(one, SEAL))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(flusher.seal(one, SEAL), flusher.seal(one, SEAL), flushing)
    assert grown == [2, 2]
    assert one.sealed


async def test_rows_that_are_not_behind_the_chain_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    one = await filled((b"a",), (b"b",))
    head = [(rows.first, rows.rows) for rows in one.tail.head(1 << 20)]
    for torn in (head[1:], [head[0], head[0]]):
        with pytest.raises(InvariantViolated, match="are written to topics/t/segment=0/, which ends at"):
            await WRITER.append(one.source, one.chain, torn, one.producers, 0)
    assert await one.chain.names() == []
    assert caplog.text.count("invariant violated") == 2
    await WRITER.append(one.source, one.chain, head, one.producers, 0)
    assert one.chain.end == 2
