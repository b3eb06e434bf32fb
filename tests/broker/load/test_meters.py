"""What a broker reports of its segments' loads: counts, and where the keys of what is in the tail fall."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from seaweedq.balancer.load import WINDOWS_S
from seaweedq.broker.load.meters import Loads
from seaweedq.broker.log.open_segment import BufferedRows
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.keyhash import hash_key
from seaweedq.segments.keyrange import KEY_SPACE

ONE, OTHER = ("t", 1, 0), ("t", 1, 1)
BYTES = 10


class Sampled:
    """A broker with one topic; each step is so many seconds, in which segments take so many messages a second."""

    def __init__(self):
        self.now_s = 0.0
        self.opened = {}
        record = TopicRecord(1, "active", TopicConfig(scaling={"target_messages_per_s": 100}), 0)
        topic = Topic("t", Versioned(record, 1), None, opened=self.opened)
        self.owned = {ONE}
        catalog = SimpleNamespace(
            find=lambda name: topic,
            owned_by=lambda broker: self.owned,
            segment=lambda topic, number: Versioned(SimpleNamespace(low=0, high=KEY_SPACE), 1),
        )
        self.loads = Loads(catalog, "me", SimpleNamespace(monotonic_s=lambda: self.now_s))

    def step(self, seconds, keys=None, **rates):
        self.now_s += seconds
        for name, rate in rates.items():
            number = {"one": 0, "other": 1}[name]
            self.owned.add(("t", 1, number))
            segment = self.opened.setdefault(number, _segment())
            count = rate * seconds
            segment.taken_messages += count
            segment.taken_bytes += BYTES * count
            segment.end += count
            segment.pieces = (
                [BufferedRows(segment.end - count, _rows(count, keys), BYTES * count, 0, 0)] if count else []
            )
        self.loads.tick()
        return self.loads.report().all()


def _segment():
    segment = SimpleNamespace(taken_messages=0, taken_bytes=0, end=0, pieces=[])
    segment.tail = SimpleNamespace(since=lambda offset: [p for p in segment.pieces if p.end > offset])
    return segment


def _rows(count, keys):
    chosen = [keys[n % len(keys)] for n in range(count)] if keys else [None] * count
    return pa.record_batch({"_timestamp": range(count), "_key": pa.array(chosen, pa.string())})


@pytest.fixture
def sampled():
    sampled = Sampled()
    sampled.step(1, one=0)
    return sampled


def test_a_steady_rate_is_reported_from_the_first_look_on(sampled):
    for _ in range(5):
        load = sampled.step(1, one=1000)[ONE]
        assert load.corrected_messages_per_s == pytest.approx([1000] * len(WINDOWS_S))
        assert load.corrected_bytes_per_s == pytest.approx([1000 * BYTES] * len(WINDOWS_S))


def test_one_that_takes_nothing_is_reported_as_observed(sampled):
    load = sampled.step(7, one=0)[ONE]
    assert load.observed_s == 7
    assert not any(load.messages_per_s)


def test_what_was_taken_before_the_first_look_counts_for_nothing(sampled):
    assert not any(sampled.step(1, one=1, other=10**6)[OTHER].messages_peaks)
    assert sampled.step(1, one=1, other=10)[OTHER].corrected_messages_per_s == pytest.approx([10] * len(WINDOWS_S))


def test_a_segment_that_nobody_needed_yet_is_known_to_be_idle(sampled):
    sampled.owned.add(OTHER)
    assert sampled.step(1)[OTHER].observed_s == 0
    assert sampled.step(5)[OTHER].observed_s == 5
    load = sampled.step(5, other=20)[OTHER]
    assert load.observed_s == 10
    assert load.corrected_messages_per_s == pytest.approx([10] * len(WINDOWS_S), rel=0.3)


def test_the_keys_of_the_first_messages_are_seen_too(sampled):
    sampled.owned.add(OTHER)
    sampled.step(1)
    load = sampled.step(1, other=1000, keys=["a"])[OTHER]
    assert (load.hottest, load.hot_share) == (hash_key("a"), 1.0)
    assert sum(load.bins) == pytest.approx(1000, rel=0.02)


def test_a_segment_that_went_begins_anew_when_it_comes_back(sampled):
    sampled.step(1, one=1000)
    del sampled.opened[0]
    sampled.owned.remove(ONE)
    assert ONE not in sampled.step(1, other=1)
    assert sampled.step(1, one=10**6)[ONE].observed_s == 0


def test_a_warm_segment_says_where_its_keys_fall(sampled):
    keys = ["a", "b", "c", "d"]
    load = sampled.step(1, one=1001, keys=keys)[ONE]
    expected = np.bincount([hash_key(key) * len(load.bins) // KEY_SPACE for key in keys], minlength=len(load.bins)) / 4
    assert np.array(load.bins) / sum(load.bins) == pytest.approx(expected, abs=0.1)
    assert load.hottest in map(hash_key, keys)
    assert load.hot_share == pytest.approx(0.25, abs=0.1)


@pytest.mark.parametrize("period", [2, 4, 8, 10, 31, 32])
def test_keys_that_come_in_turn_are_all_seen(sampled, period):
    load = sampled.step(1, one=32 * 32, keys=[f"key-{n}" for n in range(period)])[ONE]
    assert load.hot_share < max(0.2, 1.5 / period)


@pytest.mark.parametrize("small", [1, 10, 100])
def test_a_row_counts_as_much_in_a_large_batch_as_in_a_small_one(sampled, small):
    """A flood of one key in batches, and as many rows of others in small pieces."""
    segment, shares = sampled.opened[0], []
    others = iter(range(10**6))
    for _ in range(30):
        pieces = [["hot"] * 1000, *([f"key-{next(others)}"] * small for _ in range(1000 // small))]
        sampled.now_s += 1
        segment.pieces = []
        for keys in pieces:
            segment.pieces.append(BufferedRows(segment.end, _rows(len(keys), keys), BYTES * len(keys), 0, 0))
            segment.end += len(keys)
        segment.taken_messages += 2000
        sampled.loads.tick()
        shares.append(sampled.loads.report().all()[ONE].hot_share)
    assert shares[-1] == pytest.approx(0.5, abs=0.07)


def test_rows_without_key_fall_anywhere(sampled):
    load = sampled.step(1, one=1000)[ONE]
    assert len(set(load.bins)) == 1
    assert load.bins[0] > 0
    assert load.hottest is None


def test_a_cool_segment_says_no_more_than_its_rates(sampled):
    assert sampled.step(1, one=1, keys=["a"])[ONE].bins == ()


async def test_a_look_that_fails_is_not_the_last(sampled, monkeypatch, caplog):
    looks = []

    def tick():
        looks.append(len(looks))
        raise ZeroDivisionError

    monkeypatch.setattr("seaweedq.broker.load.meters.TICK_S", 0.001)
    monkeypatch.setattr(sampled.loads, "tick", tick)
    task = asyncio.create_task(sampled.loads.run())
    while len(looks) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    assert "loads were not looked at" in caplog.text
