"""The sharing of segments among consumers: even, sticky, and never of what another one holds."""

import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.subscriptions import shares
from seaweedq.broker.subscriptions.shares import ACTIVE_S, SegmentShares, share
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, offsets, publish, pull, running, subscribe

SEGMENTS = st.sets(st.integers(0, 30), min_size=1)
COUNT = 240
CONSUMERS = st.sets(st.integers(1, 8), min_size=1)


@given(SEGMENTS, CONSUMERS, st.dictionaries(st.integers(0, 30), st.integers(1, 9)), st.data())
def test_shares_are_even_and_stay(
    segments: set[int], consumers: set[int], before: dict[int, int], data: st.DataObject
) -> None:
    held = data.draw(st.dictionaries(st.sampled_from(sorted(segments)), st.integers(1, 9), max_size=4))
    shares = share(segments, held, before, consumers)
    assert shares.keys() == segments
    assert held.items() <= shares.items()
    assert all(shares[segment] in consumers for segment in segments - held.keys())
    assert share(segments, held, shares, consumers) == shares
    counts = {consumer: sum(owner == consumer for owner in shares.values()) for consumer in consumers}
    by_hold = Counter(held.values())
    for consumer, count in counts.items():
        assert count <= max(by_hold[consumer], min(counts.values()) + 1), "who has more than its share holds it"
    fewer = set(list(consumers)[1:])
    if fewer and not held:
        after = share(segments, {}, shares, fewer)
        kept = sum(after[segment] == shares[segment] for segment in segments)
        assert kept == sum(shares[segment] in fewer for segment in segments), "what stays possible stays"


def test_an_excess_of_one_makes_the_shares_of_the_others_even() -> None:
    """Two free segments went to the second consumer, and the third had none: the share was counted as if the first
    would give back what it holds."""
    shares = share(range(5), {0: 1, 1: 1, 2: 1}, {}, {1, 2, 3})
    assert Counter(shares.values()) == {1: 3, 2: 1, 3: 1}


def test_a_consumer_counts_while_it_waits_and_shortly_after_a_pull() -> None:
    turns = SegmentShares()
    assert turns.share_of(1, range(4), {}, 10.0) == {0, 1, 2, 3}
    assert len(turns.share_of(2, range(4), {}, 10.5)) == 2
    assert turns.next_change_s() == 10.0 + ACTIVE_S
    assert turns.share_of(2, range(4), {}, 11.1) == {0, 1, 2, 3}, "the first has not pulled for a second"
    with turns.waiting(1):
        assert len(turns.share_of(2, range(4), {}, 20.0)) == 2
        with turns.waiting(2):
            assert turns.next_change_s() is None
    assert turns.share_of(2, range(4), {3: 1}, 20.1) == {0, 1, 2}, "held by the first"


async def test_who_pulls_first_leaves_the_others_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three consumers got 600, 0 and 0 messages, also where there were four segments."""
    monkeypatch.setattr(shares, "ACTIVE_S", 600.0)
    async with running(tmp_path) as broker:
        topic = await make_topic(broker, segments=4)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        for name in "abc":
            assert await pull(dispatcher, topic, "s", name, 1000, 0) == []
        await publish(broker, topic, *["1"] * COUNT)
        got = {name: await pull(dispatcher, topic, "s", name, 1000, 0) for name in "abc"}
        counts = {name: len(offsets(found)) for name, found in got.items()}
        assert sum(counts.values()) == COUNT
        assert min(counts.values()) >= COUNT / 8, counts
        assert sorted(len({one.segment.id for one in found}) for found in got.values()) == [1, 1, 2]


async def test_consumers_who_get_nothing_are_counted_and_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shares, "ACTIVE_S", 600.0)
    async with running(tmp_path) as broker:
        topic = await make_topic(broker)
        await subscribe(broker, topic)
        dispatcher = inside.dispatcher(broker)
        await pull(dispatcher, topic, "s", "a", 1, 0)
        await dispatcher.checkpoint()
        assert not caplog.records
        await pull(dispatcher, topic, "s", "b", 1, 0)
        await pull(dispatcher, topic, "s", None, 1, 0)
        (behind,) = inside.lag_meter(broker).furthest_behind(10)
        assert (behind.consumers, behind.idle_consumers) == (3, 2)
        await dispatcher.checkpoint()
        await dispatcher.checkpoint()
        assert [one.getMessage()[:62] for one in caplog.records] == [
            "subscription s of topic t has 2 more consumers than segments, "
        ]


def test_names_that_come_once_take_nothing_from_those_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counted for a second: two that waited had 2 of 16 segments, and each pull looked at all names (6 ms)."""
    turns, segments, now_s, sizes = SegmentShares(), range(16), 0.0, list[int]()
    shared = shares.share

    def noted(*asked: Any) -> dict[int, int]:
        sizes.append(len(asked[3]) + len(asked[4]))
        return shared(*asked)

    monkeypatch.setattr(shares, "share", noted)
    with turns.waiting(1), turns.waiting(2):
        for name in range(10, 5_010):
            now_s += 0.0005
            turns.share_of(name, segments, {}, now_s)
            turns.share_of(3, segments, {}, now_s)
        owners = Counter(turns.shares(segments, {}, now_s).values())
        assert set(owners) == {1, 2, 3}
        assert min(owners.values()) >= 5
        assert max(sizes) <= shares.CROWD
        assert len(privates.first_s(turns)) == len(turns.active(now_s) - {1, 2}) <= ACTIVE_S / 0.0005 + 1
    assert turns.active(now_s + ACTIVE_S) == set()
    assert (privates.first_s(turns), turns._again) == ({}, set())


def test_of_thousands_that_stay_as_many_share_as_may_get_something() -> None:
    turns, segments = SegmentShares(), range(4)
    for round in range(3):
        for name in range(1, 2_001):
            turns.share_of(name, segments, {}, round / 4)
    shares = turns.shares(segments, {}, 0.6)
    assert sorted(set(shares.values())) == [1, 2, 3, 4]
    assert len(turns.active(0.6)) == 2_000, "all are counted, and told that they get nothing"
    assert turns.share_of(2_000, segments, {}, 0.6) == set()
    for name in shares.values():
        turns.leave(name)
    assert turns.shares(segments, {}, 0.7) == {}, "nobody is there to get them"
    for name in range(1_001, 1_005):
        turns.share_of(name, segments, {}, 0.7)
    assert sorted(turns.shares(segments, {}, 0.7).values()) == [1_001, 1_002, 1_003, 1_004]


@dataclass
class Visitor:
    """A consumer that comes for a while, and when it asks next."""

    number: int
    gone_s: float
    asks_s: float


class Visitors:
    """As many consumers at a time as there are places, each of which comes once, on simulated time. They wait for all
    of their lives, and look once more at the end, as a pull does; or they ask now and then. Nothing is held: what they
    get is acked at once."""

    def __init__(self, segments: int, life_s: float, size: int, waits: bool) -> None:
        self.shares, self.segments, self.life_s, self.waits = SegmentShares(), range(segments), life_s, waits
        self.rng, self.now_s, self.made = random.Random(7), 0.0, 0
        self.waiting: dict[int, ExitStack] = {}
        self.here = [self._come(self.rng.random() * life_s) for _ in range(size)]
        self.given = 0  # how often another consumer, which was there, had a segment
        self.owners: dict[int, int] = {}
        self.since_s = dict.fromkeys(self.segments, 0.0)
        self.free_s = 0.0  # the longest time for which a segment was with nobody that was there

    def _come(self, life_s: float) -> Visitor:
        self.made += 1
        stack = self.waiting[self.made] = ExitStack()
        if self.waits:
            stack.enter_context(self.shares.waiting(self.made))
        return Visitor(self.made, self.now_s + life_s, self.now_s)

    def _ask(self, one: Visitor) -> None:
        for segment in self.shares.share_of(one.number, self.segments, {}, self.now_s):
            self._has(segment, one.number)
        one.asks_s = inf if self.waits else self.now_s + 0.1 + 0.1 * self.rng.random()

    def _has(self, segment: int, owner: int) -> None:
        self.given += self.owners.get(segment) != owner
        self.owners[segment], self.since_s[segment] = owner, self.now_s

    def run(self, until_s: float, step_s: float) -> None:
        while self.now_s < until_s:
            self.now_s += step_s
            for at, one in enumerate(self.here):
                if one.gone_s <= self.now_s:
                    self._ask(one)
                    self.waiting.pop(one.number).close()
                    self.here[at] = one = self._come(self.life_s)
                if one.asks_s <= self.now_s:
                    self._ask(one)
            there = {one.number for one in self.here}
            for segment, owner in self.shares.shares(self.segments, {}, self.now_s).items():
                if owner in there:
                    self._has(segment, owner)
            self.free_s = max(self.free_s, self.now_s - min(self.since_s.values()))


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "asking"])
@pytest.mark.parametrize("life_s", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(("segments", "size"), [(1, 5), (4, 20)])
def test_consumers_that_come_once_get_what_those_before_them_leave(
    segments: int, size: int, life_s: float, waits: bool
) -> None:
    """A free segment went to the lowest number seen within a second, which had mostly gone: once or twice in 60 s to
    one that was there."""
    visitors = Visitors(segments, life_s, size, waits)
    visitors.run(60.0, 0.05)
    assert visitors.free_s <= ACTIVE_S + 0.3, "with one that had gone, for longer than it may keep it"
    assert visitors.given >= 60 * segments / (life_s + ACTIVE_S + 0.3), "a life, a second, and who asks next"
