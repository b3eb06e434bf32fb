"""The flusher: which tails are due and which of them first, flushes for which nobody waits any more, and seals, which
stand in the last entry of a chain.
"""

import asyncio
import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.log.entry_writer import EntryWriter, known_producers
from seaweedq.broker.log.flusher import SMALL_TAIL_AGE_S, Flusher, FlushLimits, TailFacts, due, pinning
from seaweedq.broker.log.open_segment import OpenSegment
from seaweedq.checks import InvariantViolated
from seaweedq.clock import SystemIds
from seaweedq.errors import NotOwner
from seaweedq.segments.entry import Seal
from seaweedq.segments.producers import Duplicate, New
from tests.support.brokers.commit_parts import StillClock, append, give, running, segment
from tests.support.journal.memory_journal import MemoryJournal
from tests.support.levels import newest

MIB = 1024 * 1024
LIMITS = FlushLimits(max_bytes=64 * MIB, min_bytes=MIB, max_age_s=300, patient=True)
LARGE = TailFacts(2 * MIB, at_s=1000.0, commit=5, limits=LIMITS)
SMALL = replace(LARGE, size_bytes=1000)


def is_due(tail: TailFacts, now_s: float) -> bool:
    return due({"it": tail}, now_s, 0, 0) == ["it"]


@pytest.mark.parametrize(
    ("tail", "age_s", "expected"),
    [
        (LARGE, 299, False),
        (LARGE, 300, True),
        (SMALL, 300, False),
        (SMALL, SMALL_TAIL_AGE_S - 1, False),
        (SMALL, SMALL_TAIL_AGE_S, True),
        (replace(SMALL, limits=replace(LIMITS, patient=False)), 300, True),
        (replace(SMALL, limits=replace(LIMITS, max_age_s=86_400)), SMALL_TAIL_AGE_S, False),
        (replace(SMALL, limits=replace(LIMITS, min_bytes=0)), 300, True),
        (replace(LARGE, size_bytes=64 * MIB), 0, True),
        (replace(LARGE, size_bytes=64 * MIB - 1), 0, False),
    ],
)
def test_age_and_size(tail: TailFacts, age_s: float, expected: bool) -> None:
    assert is_due(tail, 1000.0 + age_s) is expected


def tails(*sizes_and_commits: tuple[int, int]) -> dict[str, TailFacts]:
    return {
        f"{at}": TailFacts(size, at_s=0.0, commit=commit, limits=LIMITS)
        for at, (size, commit) in enumerate(sizes_and_commits)
    }


def test_over_the_memory_the_largest_go_until_it_is_covered() -> None:
    facts = tails((10, 1), (30, 2), (20, 3), (5, 4))
    assert due(facts, 0.0, excess_bytes=1, unreleased_excess_bytes=0) == ["1"]
    assert due(facts, 0.0, excess_bytes=31, unreleased_excess_bytes=0) == ["1", "2"]
    assert due(facts, 0.0, excess_bytes=1000, unreleased_excess_bytes=0) == ["1", "2", "0", "3"]
    assert due(facts, 0.0, excess_bytes=0, unreleased_excess_bytes=-5) == []


def test_over_the_journal_those_that_pin_the_oldest_commits_go() -> None:
    facts = tails((10, 7), (30, 2), (20, 3))
    assert due(facts, 0.0, excess_bytes=0, unreleased_excess_bytes=31) == ["1", "2"]


SIZES = st.lists(st.tuples(st.integers(1, 100), st.integers(0, 50)), max_size=8)


@given(SIZES, st.integers(-10, 300), st.integers(-10, 300))
def test_none_twice_and_enough(sizes: list[tuple[int, int]], excess: int, unreleased: int) -> None:
    facts = tails(*sizes)
    chosen = due(facts, 0.0, excess, unreleased)
    assert len(chosen) == len(set(chosen))
    assert sum(facts[name].size_bytes for name in chosen) >= min(
        max(excess, unreleased, 0), sum(size for size, _ in sizes)
    )


def test_who_pins_old_commits_is_found():
    found = tails((1, 3), (1, 10), (1, 9))
    assert pinning(found, 10) == ["0", "2"]
    assert pinning(found, 0) == []


class Moved:
    """What a flusher asks of a segment with a row in its tail that is another broker's by now."""

    end, tail, empty_entry, sealed, paused = 1, SimpleNamespace(start=0), None, False, False

    def check_open(self) -> None:
        raise NotOwner("it has moved")


async def test_the_error_of_a_flush_that_was_forsaken_is_no_news() -> None:
    strange: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strange.append(context))

    segment: Any = Moved()
    nobody: Any = None
    flusher = Flusher(nobody, nobody, nobody, StillClock(), workers=1)
    async with flusher._ordinary:
        waiting = asyncio.create_task(flusher.flush(segment))
        await asyncio.sleep(0)
        assert flusher.is_flushing(segment)
        waiting.cancel()
        await asyncio.wait([waiting])
        del waiting  # its frame knows the flush
    while flusher.is_flushing(segment):
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    assert strange == []
    with pytest.raises(NotOwner, match="moved"):
        await flusher.flush(segment)


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
        with pytest.raises(InvariantViolated, match="cannot be written to topics/t/segment=0/, which ends at offset"):
            await WRITER.append(one.source, one.chain, torn, one.producers, 0)
    assert await one.chain.names() == []
    assert caplog.text.count("invariant violated") == 2
    await WRITER.append(one.source, one.chain, head, one.producers, 0)
    assert one.chain.end == 2


async def test_the_requests_of_a_tail_that_is_lost_are_new_again() -> None:
    """A file's tables know those of the tail, and only an accepted loss of the journal takes its rows."""
    one, nobody = await filled((b"a",), (b"b",)), cast(Any, None)
    for number in (0, 1):
        one.producers.record(0, "p", number, number, number, 1, 0)
    head = [(rows.first, rows.rows) for rows in one.tail.head(1 << 20)]
    await WRITER.append(one.source, one.chain, head[:1], one.producers, 0)
    known = await known_producers(nobody, one.source, one.chain, nobody)
    assert known.judge(0, "p", 0, 0, 1) == Duplicate(0, 0)
    assert known.judge(0, "p", 1, 1, 1) == New()
