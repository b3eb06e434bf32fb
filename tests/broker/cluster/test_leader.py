"""What the leader says of a recovery that fails: a line for what may happen, a traceback for what nobody foresaw; and
of a journal that can not be reached, that it is so and that it is over.

A dead broker's segments that the leader has replayed are given away while it still replays the others.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.recovery import replay
from seaweedq.broker.recovery.recovery_memory import RecoveryMemory
from seaweedq.broker.recovery.replay import Left, Place, RemainingSegments, Replay, ReplayRun
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Delete, Entry, Put
from seaweedq.coordination.records import TopicConfig
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import StoreUnavailable, Unavailable
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import FolderLock
from seaweedq.segments.frames import Commit, Frame, FrameKind, empty_entry_frame
from seaweedq.segments.terms import FIRST_TERM
from tests.broker.cluster.test_periodic_tasks import leader
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import at

EACH, COUNT = 3, 9  # segments of a broker, and of all
KEYS = [f"k{n}" for n in range(100)]


@pytest.mark.brokers
@pytest.mark.parametrize("error", [StoreUnavailable("the store is away"), RecursionError("too deep")])
async def test_only_an_unforeseen_failure_has_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        leader, dead = together.brokers

        async def fail(*_: object) -> bool:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(inside.recovery(leader), "recover", fail)
            await together.crash(dead)
            await until(lambda: any("has not been recovered yet" in r.getMessage() for r in caplog.records))
        said = next(r for r in caplog.records if "has not been recovered yet" in r.getMessage())
        assert bool(said.exc_info) is isinstance(error, RecursionError)


@pytest.mark.brokers
@pytest.mark.parametrize("end", ["reached again", "recovered by another"])
async def test_a_journal_out_of_reach_is_told_when_that_begins_and_when_it_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    caplog.set_level(logging.INFO, "seaweedq.broker.recovery.journal_recovery")

    def said(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    async with in_loop(tmp_path, 2) as together:
        leader, dead = together.brokers
        broker = dead.id
        await together.crash(dead)
        lock = FolderLock(dead.process.settings.home, Disk())  # as a process does that stands still
        lock.acquire()
        await until(lambda: said("cannot be reached"))
        journal = inside.roster(leader).journals[broker]
        for _ in range(3):
            assert not await inside.recovery(leader).recover(broker, journal)
        assert said("cannot be reached") == 1
        if end == "reached again":
            lock.release()
            assert await inside.recovery(leader).recover(broker, journal)
        else:
            key = keys.JOURNALS.key(broker)
            done = keys.JOURNALS.encode(Versioned.new(replace(journal.record, recovered=True)))
            await together.coordination.commit([], [Put(key, done)])
            await together.coordination.commit([], [Delete(key)])
        await until(lambda: said(end))
        await until(lambda: broker not in inside.roster(leader).journals)
        lock.release()
        assert (said("cannot be reached"), said(end)) == (1, 1)


class Slow:
    """Holds up the replay of one segment, until it is `free`; then it fails as often as told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int = 0) -> None:
        self.free, self.held = asyncio.Event(), -1
        self._failures = failures
        self._append = Replay._append
        monkeypatch.setattr(replay, "LEAST", 1)
        monkeypatch.setattr(Replay, "_append", lambda *given: self._slow(*given))

    async def _slow(self, replay: Replay, broker: str, topic: Topic, segment: int, frames: list[Frame]) -> int:
        self.held = segment if self.held < 0 else self.held
        if segment == self.held:
            await self.free.wait()
            if self._failures:
                self._failures -= 1
                raise Unavailable("the store is away")
        return await self._append(replay, broker, topic, segment, frames)


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[tuple[InLoop, Broker, set[int]]]:
    """Three brokers with rows in all segments; one of them is dead, and not the leader. With its segments."""
    async with in_loop(folder, 3, journal="object") as together:
        await inside.topic_admin(leader(together)).create("t", TopicConfig(initial_segments=COUNT))
        await send(together, leader(together), "before")
        dead = next(broker for broker in together.brokers if broker is not leader(together))
        mine = {number for _, _, number in inside.catalog(dead).owned_by(dead.id)}
        assert len(mine) == EACH
        await together.crash(dead)
        yield together, dead, mine


async def send(together: InLoop, broker: Broker, text: str) -> None:
    async with at(together, broker) as http:
        messages = [{"key": key, "value": text} for key in KEYS]
        answer = await http.post("/v1/topics/t/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text


async def rows(together: InLoop, broker: Broker) -> list[tuple[str, str]]:
    found = []
    async with at(together, broker) as http:
        for number in range(COUNT):
            page = (await http.get(f"/v1/topics/t/segments/{number}/messages?limit=1000")).json()
            found += [(one["value"], one["key"]) for one in page["messages"]]
    return sorted(found)


def owned(broker: Broker, dead: Broker) -> set[int]:
    return {number for _, _, number in inside.catalog(broker).owned_by(dead.id)}


@pytest.mark.brokers
async def test_all_but_the_one_that_is_slow_take_messages_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    async with cluster(tmp_path) as (together, dead, _):
        here = leader(together)
        await until(lambda: owned(here, dead) == {slow.held}, "nothing is given before all is replayed")
        assert dead.id in inside.roster(here).journals
        slow.free.set()
        await until(lambda: not owned(here, dead))
        await send(together, here, "behind")
        await until(lambda: dead.id not in inside.roster(here).journals)
        assert await rows(together, here) == sorted((text, key) for text in ("before", "behind") for key in KEYS)


@pytest.mark.brokers
async def test_rounds_ask_for_nothing_while_the_replay_shows_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    async with cluster(tmp_path) as (together, dead, _):
        here = leader(together)
        await until(lambda: owned(here, dead) == {slow.held})
        held = inside.leader(here)
        asked: list[str] = []
        get = privates.coordination(held).get

        async def note(key: str) -> Entry | None:
            asked.append(key)
            return await get(key)

        monkeypatch.setattr(privates.coordination(held), "get", note)
        for _ in range(20):
            await held.round()
        assert not [key for key in asked if dead.id in key]
        slow.free.set()
        await until(lambda: not owned(here, dead))


@pytest.mark.brokers
async def test_what_a_failed_recovery_has_given_the_next_one_passes_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch, failures=1)
    async with cluster(tmp_path) as (together, dead, mine):
        here = leader(together)
        await until(lambda: owned(here, dead) == {slow.held})
        seen: list[int] = []
        append = privates.append_entry(Replay)

        async def note(self: Replay, source, *given) -> int:
            seen.append(source.segment)
            return await append(self, source, *given)

        monkeypatch.setattr(Replay, "_append_entry", note)
        slow.free.set()
        await until(lambda: not owned(here, dead))
        assert seen == [slow.held]
        await send(together, here, "behind")
        assert await rows(together, here) == sorted((text, key) for text in ("before", "behind") for key in KEYS)
        assert slow.held in mine


@pytest.mark.brokers
async def test_a_leader_that_dies_midway_leaves_the_rest_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    async with cluster(tmp_path) as (together, dead, _):
        first = leader(together)
        (last,) = (broker for broker in together.brokers if broker not in (first, dead))
        await until(lambda: owned(last, dead) == {slow.held})
        await together.crash(first)
        await until(lambda: inside.election(last).is_leader)
        slow.free.set()
        await until(lambda: not owned(last, dead) and not owned(last, first))
        await send(together, last, "behind")
        assert await rows(together, last) == sorted((text, key) for text in ("before", "behind") for key in KEYS)


def test_nothing_is_free_before_the_journal_was_read_to_its_end() -> None:
    told: list[int] = []
    left = RemainingSegments(lambda: told.append(1))
    assert ("t", 0) in left
    left.done(("t", 0))
    assert ("t", 0) in left
    left.know({("t", number) for number in range(100)})
    assert ("t", 100) not in left
    for number in range(80):
        left.done(("t", number))
    assert ("t", 79) not in left
    assert ("t", 80) in left
    assert len(told) == 3, "once it is known, and twice behind 40"


async def test_what_an_early_batch_has_left_for_a_newer_broker_is_not_given_away() -> None:
    """Its record may be readable again by then: whoever got the segment would give the same offsets out anew."""

    async def append(rows: dict[Place, list[Frame]], left: Left, done: Callable[[Place], None]) -> int:
        for place in rows:
            if place[0] == "unreadable":
                left.setdefault("unreadable", set()).add("topics/unreadable")
            else:
                done(place)
        return 0

    async def look(places: Iterable[Place]) -> None:
        pass

    frame = replace(empty_entry_frame("", 0, 1, 0, FIRST_TERM), kind=FrameKind.ROWS)
    with RecoveryMemory(Budget(1 << 30)).recovery() as held:
        run, there = ReplayRun(held, append, look), RemainingSegments(lambda: None)
        for number, topic in enumerate(("unreadable", "t")):
            await run.claim(1)
            run.add(Commit(number, (replace(frame, topic=topic),)))
            await run.end_batch(there if topic == "t" else None)
    assert ("unreadable", 0) in there
    assert ("t", 0) not in there
