"""A segment has one holder at a time: all of its segments or none, and only who holds a lock releases it.

The opening of a segment: those who wait get its error, and nobody is left with one that nobody has got.
"""

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.topics.ownership import Holder, SegmentLocks
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import StoreUnavailable
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.http.with_tokens import Http

MOVE, INTENT = Holder("it moves"), Holder("an intent replaces it")


def topic(incarnation: int = 0) -> Topic:
    return Topic.of("t", Versioned(TopicRecord(incarnation, "active", TopicConfig(), 0), 1))


def test_a_locked_segment_is_refused_to_all_others() -> None:
    locks, one = SegmentLocks(), topic()
    assert locks.take(one, [1], MOVE)
    assert locks.holder(one, 1) is MOVE
    assert not locks.take(one, [1], INTENT)
    assert not locks.take(one, [1], Holder("it moves")), "another move is another holder"
    assert locks.take(one, [2], INTENT)


def test_all_are_locked_or_none() -> None:
    locks, one = SegmentLocks(), topic()
    locks.take(one, [2], MOVE)
    assert not locks.take(one, [1, 2, 3], INTENT)
    assert locks.held() == [(one, 2)]
    locks.release(one, [2], MOVE)
    assert locks.take(one, [1, 2, 3], INTENT)
    assert locks.held(INTENT) == [(one, 1), (one, 2), (one, 3)]


def test_who_has_a_lock_gets_it_again_and_releases_it_once() -> None:
    locks, one = SegmentLocks(), topic()
    assert locks.take(one, [1], INTENT)
    assert locks.take(one, [1, 2], INTENT)
    locks.release(one, [1, 2], INTENT)
    locks.release(one, [1, 2], INTENT)
    assert locks.held() == []
    assert locks.holder(one, 1) is None


def test_nobody_releases_what_another_one_holds() -> None:
    locks, one = SegmentLocks(), topic()
    locks.take(one, [1], MOVE)
    locks.release(one, [1, 2], INTENT)
    assert locks.holder(one, 1) is MOVE
    assert locks.held(INTENT) == []


def test_topics_of_one_name_have_locks_of_their_own_which_go_with_them() -> None:
    locks, old, new = SegmentLocks(), topic(0), topic(7)
    locks.take(old, [1], MOVE)
    assert locks.holder(new, 1) is None
    assert locks.take(new, [1], INTENT)
    del old
    gc.collect()
    assert locks.held() == [(new, 1)]


@pytest.mark.brokers
async def test_an_opening_that_fails_when_nobody_waits_is_told_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context))
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        assert await Http(together, "").status("PUT", "/v1/topics/t", None) == 201
        ownership, topic = inside.ownership(broker), await inside.catalog(broker).known("t")
        topic.opened.clear()
        begun, fails = asyncio.Event(), asyncio.Event()

        async def failing(*_: object) -> None:
            """Fails once it may."""
            begun.set()
            await fails.wait()
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(ownership, "_open", failing)
        asking = [asyncio.create_task(ownership.open(topic, 0)) for _ in range(2)]
        await begun.wait()
        (opening,) = privates.openings(ownership).values()
        for one in asking:
            one.cancel()
        await asyncio.wait(asking)
        fails.set()
        await asyncio.wait([opening])
        assert not privates.openings(ownership)
        asking.clear()
        del opening, one  # nothing else holds the error
        gc.collect()
        assert not heard
        monkeypatch.undo()
        assert await ownership.open(topic, 0) is not None
