"""The history of a cluster: what was published is what any broker tells of it, over moves, splits and merges, and a new
leader begins anew.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from seaweedq.balancer.scaling import HotKey
from seaweedq.broker import load
from seaweedq.broker.broker import Broker
from seaweedq.segments.keyrange import KEY_SPACE
from tests.support.brokers import inside
from tests.support.brokers.changing import at
from tests.support.brokers.in_process_cluster import until
from tests.support.brokers.looks import LEFT, RIGHT, Hand, in_hand, made
from tests.support.brokers.reshaped import replace

pytestmark = pytest.mark.brokers

MIDDLE = KEY_SPACE // 2


@pytest.fixture
async def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hand]:
    monkeypatch.setattr("seaweedq.broker.load.RECORD_S", 0.0)
    monkeypatch.setattr(
        "seaweedq.broker.cluster.leadership.BALANCE_S", 3600.0
    )  # the leader looks when the test says so
    async with in_hand(tmp_path, monkeypatch) as found:
        yield found


async def record(hand: Hand, leader: Broker) -> None:
    """Has the leader ask all brokers, and record what they report."""
    hand.look(1)
    await inside.reports(leader).ask()
    await inside.histories(leader).recorder.record()


def messages(cells: list[dict[str, Any]]) -> dict[int, float]:
    """The messages of each segment, as rates and durations say."""
    found: dict[int, float] = {}
    for one in cells:
        found[one["segment"]] = found.get(one["segment"], 0) + one["messages_per_s"] * one["seconds"]
    return found


def about(counts: Mapping[int, int]) -> Any:
    return pytest.approx(counts, abs=0.1)


async def test_each_broker_tells_what_was_published_over_moves_splits_and_merges(hand: Hand) -> None:
    one, two = hand.together.brokers
    topic = await made(hand.together, 2, enabled=False)
    await record(hand, one)
    await hand.publish(one, *LEFT[:3], each=10)
    await hand.publish(two, *RIGHT[:5])
    await record(hand, one)
    async with asyncio.timeout(30):
        await inside.mover(one).move(topic, 0, two.id)
    await hand.publish(one, *LEFT[:1], each=7)
    await record(hand, one)
    await hand.publish(two, *LEFT[:1], each=4)  # of which only the end of the sealed segment tells
    left, right = await replace(hand.together, [0], 2)
    await hand.publish(one, *LEFT[:40], each=2)
    (whole,) = await replace(hand.together, [left, right])  # which no report has ever named
    await hand.publish(one, *LEFT[:2])
    await record(hand, one)
    told = [await hand.get(broker, "/history") for broker in (one, two)]
    assert told[0] == told[1]
    assert told[0]["leader"] == one.id
    cells = told[0]["cells"]
    found = messages(cells)
    assert found[left] + found[right] == pytest.approx(80, abs=0.1)
    assert {n: found[n] for n in (0, 1, whole)} == about({0: 41, 1: 5, whole: 2})
    ranges = {one["segment"]: (one["low"], one["high"]) for one in cells}
    assert (ranges[0], ranges[1], ranges[whole]) == ((0, MIDDLE), (MIDDLE, KEY_SPACE), (0, MIDDLE))
    ends = [datetime.fromisoformat(c["time"]) + timedelta(seconds=c["seconds"]) for c in cells if c["segment"] == 0]
    begins = [datetime.fromisoformat(c["time"]) for c in cells if c["segment"] in (left, right)]
    known = inside.catalog(one).segments(topic)
    assert known[left].created_us == known[0].sealed_us
    assert min(begins) - max(ends) <= timedelta(milliseconds=2), "a split shows where it happened"
    assert all(c["bytes_per_s"] > c["messages_per_s"] for c in cells)


async def test_idle_and_new_topics_count_from_their_first_message(hand: Hand) -> None:
    one = hand.together.brokers[0]
    await made(hand.together, 1, enabled=False)
    await record(hand, one)
    await hand.publish(one, *LEFT[:3])
    await record(hand, one)
    assert messages((await hand.get(one, "/history"))["cells"]) == about({0: 3})
    assert (await hand.get(one, "/history"))["cells"][0].keys().isdisjoint(["hot_key"])
    key = HotKey(("t", 0, 0), 5, 0.8125)
    inside.autoscaler(one).hot = {key.segment: key}
    await hand.publish(one, *LEFT[:3])
    await record(hand, one)
    assert (await hand.get(one, "/history"))["cells"][-1]["hot_key"] == {"hash": 5, "share": 0.812}


async def test_a_new_leader_begins_anew_and_nobody_answers_without_one(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = hand.together.brokers
    await made(hand.together, 2, enabled=False)
    await record(hand, one)
    await hand.publish(one, *LEFT[:9], *RIGHT[:9])
    await record(hand, one)
    before = await hand.get(two, "/history")
    assert messages(before["cells"]) == about({0: 9, 1: 9})
    await hand.together.crash(one)
    await until(lambda: inside.election(two).is_leader)
    await record(hand, two)
    await hand.publish(two, *RIGHT[:2])
    await record(hand, two)
    after = await hand.get(two, "/history")
    assert after["leader"] == two.id
    assert datetime.fromisoformat(after["from"]) > datetime.fromisoformat(before["until"])
    assert messages(after["cells"]) == about({1: 2})
    monkeypatch.setattr(load, "FIND_S", 0.05)

    async def nobody() -> None:
        return None

    monkeypatch.setattr(inside.election(two), "leader", nobody)
    async with at(hand.together, two) as http:
        assert (await http.get("/v1/topics/t/history")).status_code == 503


async def test_a_request_names_times_and_cells(hand: Hand) -> None:
    one = hand.together.brokers[0]
    await made(hand.together, 1, enabled=False)
    await record(hand, one)
    for _ in range(3):
        await hand.publish(one, *LEFT[:1])
        await record(hand, one)
    found = await hand.get(one, "/history")
    assert [cell["segment"] for cell in found["cells"]] == [0, 0, 0]
    last = found["cells"][-1]["time"]
    assert (await hand.get(one, f"/history?since={last}"))["cells"] == found["cells"][-1:]
    assert (await hand.get(one, f"/history?until={found['from']}"))["cells"] == []
    assert (await hand.get(one, "/history?since=-10m"))["cells"] == found["cells"]
    assert (await hand.get(one, "/history?until=2h&since=3h"))["cells"] == []
    async with at(hand.together, one) as http:
        for wrong, field in (
            ({"since": "yesterday"}, "since"),
            ({"until": "2026-01-31T12:00:00"}, "until"),
            ({"since": datetime.now(UTC).isoformat(), "until": "2026-01-31T12:00:00Z"}, "since"),
            ({"cells": "1"}, "cells"),
        ):
            answer = await http.get("/v1/topics/t/history", params=wrong)
            assert (answer.status_code, answer.json()["field"]) == (422, field)
        assert (await http.get("/v1/topics/nobody/history")).status_code == 404
        ahead = await http.get("/v1/topics/t/history", params={"since": "2999-01-01T00:00:00Z"})
        assert "since must be before now, which is " in ahead.json()["detail"]
