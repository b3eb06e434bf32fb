"""Loads: what a broker reports of its segments, what observers read, and what the leader remembers."""

import asyncio
from collections.abc import AsyncIterator
from math import exp, expm1
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from seaweedq.balancer.load import WINDOWS_S, SegmentLoad
from seaweedq.balancer.placement import SegmentId
from seaweedq.balancer.scaling import HotKey
from seaweedq.broker.load import LoadReport, Loads, Reports
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.broker.log.open_segment import BufferedRows
from seaweedq.broker.topics.catalog import Topic, layout_of
from seaweedq.coordination.records import TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import Unavailable
from seaweedq.segments.keyrange import KEY_SPACE, hash_key
from seaweedq.settings import MIB, Settings
from tests.support.brokers import inside
from tests.support.brokers.changing import at
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.looks import LEFT, RIGHT, Hand, in_hand, made

ONE, OTHER = ("t", 1, 0), ("t", 1, 1)
BYTES = 10
RATES = (100.0,) * 4
BUSY = SegmentLoad(bytes_per_s=RATES, bytes_peaks=RATES, observed_s=600.0)
FRESH = SegmentLoad(observed_s=1.0)


class Sampled:
    """A broker with one topic; each step is so many seconds, in which segments take so many messages a second."""

    def __init__(self):
        self.now_s = 0.0
        self.opened = {}
        record = TopicRecord(1, "active", TopicConfig(scaling={"target_messages_per_s": 100}), 0)
        topic = Topic("t", Versioned(record, 1), layout_of(record), opened=self.opened)
        self.owned = {ONE}
        catalog = SimpleNamespace(
            get=lambda name: topic,
            owned_by=lambda broker: self.owned,
            segment=lambda topic, number: Versioned(SimpleNamespace(low=0, high=KEY_SPACE), 1),
        )
        self.cpu_s = (0.0, 0.0)
        clock = SimpleNamespace(monotonic_s=lambda: self.now_s)
        settings = Settings(capacity_messages_per_s=1_000, capacity_segments=4)
        self.loads = Loads(catalog, "me", clock, Budget(64 * MIB), settings, lambda: self.cpu_s)

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


def test_the_utilization_of_the_cpu_and_of_stated_capacities(sampled):
    for second in range(1, 61):
        sampled.cpu_s = (0.3 * second, 0.2 * second)  # the event loop, and the process on its cores
        sampled.step(1, one=250, other=250)
    found = sampled.loads.utilization()
    assert found.cpu == pytest.approx(0.3, rel=0.01)
    assert found.messages == pytest.approx(0.5, rel=0.02)
    assert (found.bytes, found.segments, found.memory) == (0, 0.5, 0)
    assert sampled.loads.report().utilization == found


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

    monkeypatch.setattr("seaweedq.broker.load.TICK_S", 0.001)
    monkeypatch.setattr(sampled.loads, "tick", tick)
    task = asyncio.create_task(sampled.loads.run())
    while len(looks) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    assert "the load of segments could not be measured" in caplog.text


@pytest.fixture
async def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hand]:
    async with in_hand(tmp_path, monkeypatch) as made:
        yield made


@pytest.mark.brokers
async def test_rates_are_what_was_published_a_second_at_any_broker(hand: Hand) -> None:
    one, two = hand.together.brokers
    await made(hand.together, 2, enabled=False)
    await hand.publish(one, *LEFT[:1], *RIGHT[:1])  # before the first look: it counts for nothing
    hand.look(1)
    before = [(await hand.metrics(broker))["seaweedq_published_bytes_total"] for broker in (one, two)]
    for _ in range(5):
        await hand.publish(one, *LEFT[:3], each=10)
        await hand.publish(two, *RIGHT[:2], each=1)
        hand.look(2)
    for asked in (one, two):
        segments = await hand.segments(asked)
        assert [segments[n]["owner"] for n in (0, 1)] == [one.id, two.id]
        assert segments[0]["rates"]["messages_per_s"] == pytest.approx([15] * 4)
        assert segments[1]["rates"]["messages_per_s"] == pytest.approx([1] * 4)
        for number, owner in enumerate((one, two)):
            taken = (await hand.metrics(owner))["seaweedq_published_bytes_total"] - before[number]
            assert segments[number]["rates"]["bytes_per_s"] == pytest.approx([taken / 10] * 4, rel=1e-3)
            assert segments[number]["hot_key"] is None
    assert [segments[n]["end_offset"] for n in (0, 1)] == [151, 11]


@pytest.mark.brokers
async def test_averages_are_of_their_windows(hand: Hand) -> None:
    one = hand.together.brokers[0]
    await made(hand.together, 1, enabled=False)
    hand.look(1)
    await hand.publish(one, *LEFT[:20], each=50)
    hand.look(1)
    for _ in range(30):
        hand.look(1)
    told = (await hand.segments(one))[0]["rates"]["messages_per_s"]
    expected = [1000 * -expm1(-1 / w) * exp(-30 / w) / -expm1(-31 / w) for w in WINDOWS_S]
    assert told == pytest.approx(expected, abs=1e-3)
    assert expected[3] == pytest.approx(1000 / 31, rel=0.02)


@pytest.mark.brokers
async def test_the_nearest_split_is_told_with_what_holds_it_back(hand: Hand) -> None:
    one = hand.together.brokers[0]
    topic = await made(hand.together, 1, target_messages_per_s=100, max_segments=1)
    hand.look(1)
    await hand.publish(one, *LEFT[:20], *RIGHT[:20], each=25)
    hand.look(1)
    told = (await hand.segments(one))[0]
    plain = 1000 * -expm1(-1 / 10)  # of ten seconds one was seen
    expected = {"measure": "messages_per_s", "window_s": 10, "splits_at": 500, "now": pytest.approx(plain, rel=0.01)}
    assert told["next_split"] == {**expected, "held_by": None}
    assert told["rates"]["messages_per_s"][0] == pytest.approx(1000)
    for _ in range(12):
        await hand.publish(one, *LEFT[:20], *RIGHT[:20], each=25)
        hand.look(1)
    told = (await hand.segments(one))[0]["next_split"]
    assert (told["now"] > told["splits_at"], told["held_by"]) == (True, "max_segments")
    async with at(hand.together, one) as http:
        await http.patch(f"/v1/topics/{topic.name}", json={"scaling": {"enabled": False}})
    assert (await hand.segments(one))[0]["next_split"] is None


@pytest.mark.brokers
async def test_metrics_are_the_sum_of_a_brokers_segments_without_one_of_each(hand: Hand) -> None:
    one, two = hand.together.brokers
    await made(hand.together, 4, enabled=False)
    hand.look(1)
    for step in range(4):
        await hand.publish(one, *LEFT[: step + 1], *RIGHT[:30])
        hand.look(1)
    segments = (await hand.segments(one)).values()
    for broker in (one, two):
        metrics = await hand.metrics(broker)
        for what in ("messages", "bytes"):
            told = [metrics[f"seaweedq_{what}_per_second {window_s:.0f}"] for window_s in WINDOWS_S]
            own = [s["rates"][f"{what}_per_s"] for s in segments if s["owner"] == broker.id]
            assert told == pytest.approx([sum(rates) for rates in zip(*own, strict=True)], abs=0.01)
            assert all(told)
    ends = sum(segment["end_offset"] for segment in segments)
    published = [(await hand.metrics(broker))["seaweedq_published_messages_total"] for broker in (one, two)]
    assert sum(published) == ends == 4 * 30 + 1 + 2 + 3 + 4
    assert len([name for name in metrics if "per_second" in name]) == 2 * len(WINDOWS_S)


@pytest.mark.brokers
async def test_rates_come_with_the_positions_and_cost_no_further_call(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = hand.together.brokers[0]
    await made(hand.together, 4)
    calls = []
    real = one.process.peers.call

    async def noted(url: str, path: str, *rest: Any) -> Any:
        calls.append(path)
        return await real(url, path, *rest)

    monkeypatch.setattr(one.process.peers, "call", noted)
    await hand.segments(one)
    await hand.get(one)
    assert [path for path in calls if path not in ("load", "greet")] == ["positions", "positions"]


@pytest.mark.brokers
@pytest.mark.long
async def test_a_hot_key_is_shown_by_any_broker_and_logged_once(hand: Hand, caplog: pytest.LogCaptureFixture) -> None:
    one, two = hand.together.brokers
    topic = await made(hand.together, 2, target_messages_per_s=10, cool_down_s=1)
    hand.look(2)
    await hand.publish(one, RIGHT[0], each=900)
    await hand.publish(one, *RIGHT[1:11], each=10)
    hand.look(1)
    hot = {"hash": hash_key(RIGHT[0]), "share": pytest.approx(0.9, abs=0.13)}

    def warned() -> int:
        return sum("is overloaded, but is not split" in record.getMessage() for record in caplog.records)

    assert inside.election(one).is_leader
    old = HotKey(("t", 0, 0), 1, 1.0)  # what it knew when it led is not told any more
    inside.autoscaler(two).hot = {old.segment: old}
    await until(lambda: inside.autoscaler(one).hot.keys() == {("t", topic.record.incarnation, 1)})
    for broker in (one, two):
        segments = await hand.segments(broker)
        assert (segments[0]["hot_key"], segments[1]["hot_key"]) == (None, hot)
        assert (await hand.get(broker))["hot_segments"] == [1]
        assert (await hand.metrics(broker))["seaweedq_hot_segments"] == (broker is one)
    for _ in range(200):  # it goes ...
        hand.look(1)
    await until(lambda: not inside.autoscaler(one).hot)
    assert (await hand.get(two))["hot_segments"] == []
    await hand.publish(one, RIGHT[0], each=900)
    hand.look(1)
    await until(lambda: inside.autoscaler(one).hot)  # ... and comes again
    assert warned() == 1


class Cluster:
    """Catalog, roster, peers and own loads in one: who owns what, and what each answers."""

    def __init__(self, owned: dict[str, list[SegmentId]]) -> None:
        self.owned = owned
        self.load = dict.fromkeys((one for each in owned.values() for one in each), BUSY)
        self.alive = set(owned)
        self.record = self
        self.config = TopicConfig()

    @property
    def brokers(self) -> dict[str, Any]:
        return {broker: type("Known", (), {"record": type("Record", (), {"url": broker})}) for broker in self.alive}

    def owners(self) -> list[str]:
        return list(self.owned)

    def owned_by(self, broker: str) -> list[SegmentId]:
        return self.owned[broker]

    def get(self, name: str) -> "Cluster":
        return self

    async def call(self, url: str, *_: Any) -> LoadReport:
        if url not in self.alive:
            raise Unavailable("gone")
        return LoadReport([(one, self.load[one], (0, 0, 0)) for one in self.owned[url]], [])

    def report(self) -> LoadReport:
        return LoadReport([(one, self.load[one], (0, 0, 0)) for one in self.owned["a"]], [])


@pytest.fixture
def cluster() -> Cluster:
    return Cluster({name: [("t", 0, at)] for at, name in enumerate("abc")})


def reports_of(cluster: Any) -> Reports:
    return Reports(cluster, cluster, cluster, "a", cluster)


async def test_what_a_dead_broker_reported_last_still_counts(cluster: Cluster) -> None:
    reports = reports_of(cluster)
    await reports.ask()
    before = dict(reports.costs)
    assert min(before.values()) > 0
    cluster.alive.discard("c")
    for _ in range(2):
        await reports.ask()
        assert reports.costs == before
        assert ("t", 0, 2) not in reports.loads, "nobody observes it, so nothing is decided about it"
    assert reports.answered == {"a", "b"}


async def test_the_next_owner_goes_on_where_the_dead_one_ended(cluster: Cluster) -> None:
    reports = reports_of(cluster)
    await reports.ask()
    before = dict(reports.costs)
    cluster.alive.discard("c")
    await reports.ask()
    cluster.owned["b"] += cluster.owned.pop("c")
    cluster.load["t", 0, 2] = FRESH
    await reports.ask()
    assert reports.loads["t", 0, 2].observed_s == BUSY.observed_s + FRESH.observed_s
    assert reports.costs["t", 0, 2] == pytest.approx(before["t", 0, 2], rel=0.1)


async def test_segments_that_are_gone_are_forgotten(cluster: Cluster) -> None:
    reports = reports_of(cluster)
    await reports.ask()
    cluster.alive.discard("c")
    del cluster.owned["c"]
    await reports.ask()
    assert set(reports.costs) == {("t", 0, 0), ("t", 0, 1)}
