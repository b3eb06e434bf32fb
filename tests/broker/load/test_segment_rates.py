"""Rates and hot keys of the segment map, of a topic's status and of the metrics, against what was really published."""

from collections.abc import AsyncIterator
from math import exp, expm1
from pathlib import Path
from typing import Any

import pytest

from seaweedq.balancer.load import WINDOWS_S
from seaweedq.balancer.scaling import HotKey
from seaweedq.segments.keyhash import hash_key
from tests.support.brokers import inside
from tests.support.brokers.changing import at
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.looks import LEFT, RIGHT, Hand, in_hand, made

pytestmark = pytest.mark.brokers


@pytest.fixture
async def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hand]:
    async with in_hand(tmp_path, monkeypatch) as made:
        yield made


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
        return sum("is not split: one key" in record.getMessage() for record in caplog.records)

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
