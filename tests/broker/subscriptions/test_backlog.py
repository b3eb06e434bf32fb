"""What waits in which state, why it stalls, and that a message which nobody acks is seen."""

from pathlib import Path

import pytest

from seaweedq.broker.subscriptions import delivery as delivery
from seaweedq.broker.subscriptions.delivery import SegmentDelivery
from seaweedq.broker.subscriptions.policy import PullLimits
from seaweedq.broker.subscriptions.subscription import HoldUps
from seaweedq.broker.subscriptions.window import HELD
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import TOPIC, at, make, replace
from tests.support.brokers.retained import fill
from tests.support.brokers.subscribing import SUBSCRIPTION, pull

S = f"{TOPIC}/subscriptions/s"


def test_a_window_is_full_once_all_of_it_is_with_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "WINDOW", 10)
    state = SegmentDelivery(0)
    assert (state.window.counts()[HELD], state.is_full(100)) == (0, False)
    for offset in range(10):
        assert not state.is_full(100)
        state.leases.lease(state.available(PullLimits(1, 1), 100), 1, 1, 5.0)
        assert state.window.counts()[HELD] == offset + 1
    assert not len(state.available(PullLimits(1, 1), 100))
    assert state.is_full(11)
    assert not state.is_full(10), "there is nothing beyond it"


def test_a_hold_up_is_told_once_until_its_message_changes() -> None:
    seen = HoldUps()
    assert seen.update({3: 7}, 0.0, 60) == []
    assert seen.update({3: 7}, 59.0, 60) == []
    assert seen.longest_s(59.0) == 59
    assert seen.update({3: 7, 4: 0}, 61.0, 60) == [(3, 7)]
    assert seen.update({3: 7, 4: 0}, 62.0, 60) == []
    assert seen.update({3: 8}, 63.0, 60) == []
    assert seen.longest_s(63.0) == 0
    assert seen.update({3: 8}, 123.0, 60) == [(3, 8)]
    assert seen.update({}, 124.0, 60) == []


@pytest.mark.brokers
async def test_states_and_stalls_are_shown_in_all_and_by_segment(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (one,) = together.brokers
        await make(one)
        await fill(one, 5)
        async with at(together, one) as http:
            assert (await http.put(S, json={"start": "earliest", "mode": "shared"})).status_code == 201

            async def shown() -> tuple[object, ...]:
                answer = (await http.get(S)).json()
                total, (segment,) = answer["lag_total"], answer["lag"]
                names = ("messages", "in_flight", "delayed", "dying", "waiting", "stalled")
                assert [total[name] for name in names] == [segment[name] for name in names]
                text = (await http.get("/metrics")).text
                for name in ("in_flight", "delayed", "dying", "waiting"):
                    assert f'seaweedq_subscription_{name}{{subscription="s",topic="t"}} {total[name]:.1f}' in text
                for reason in ("paused", "max_in_flight", "window"):
                    line = f'seaweedq_subscription_stalled{{reason="{reason}",subscription="s",topic="t"}} '
                    assert line + f"{float(total['stalled'] == reason):.1f}" in text
                return tuple(total[name] for name in names)

            assert await shown() == (10, 0, 0, 0, 10, None)
            ids = [message["id"] for message in await pull(http, 6)]
            assert await shown() == (10, 6, 0, 0, 4, None)
            assert (await http.post(f"{S}/nack", json={"ids": ids[:2], "delay_s": 600})).status_code == 200
            assert (await http.post(f"{S}/ack", json={"ids": ids[2:3]})).status_code == 200
            assert await shown() == (9, 3, 2, 0, 4, None)
            assert (await http.patch(S, json={"max_in_flight": 3})).status_code == 200
            assert await shown() == (9, 3, 2, 0, 4, "max_in_flight")
            assert (await http.patch(S, json={"paused": True})).status_code == 200
            assert await shown() == (9, 3, 2, 0, 4, "paused")


@pytest.mark.brokers
async def test_a_message_that_is_never_acked_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_loop(tmp_path, 1) as together:
        (one,) = together.brokers
        await make(one)
        await fill(one, 2)
        async with at(together, one) as http:
            assert (await http.put(S, json={"start": "earliest", "ack_deadline_s": 1})).status_code == 201
            ids = [message["id"] for message in await pull(http, 4)]
            await http.post(f"{SUBSCRIPTION}/ack", json={"ids": ids[1:]})
            await replace(together, [0])
            dispatcher = inside.dispatcher(one)
            (opened,) = dispatcher.subscriptions()
            now_s, records = one.process.clock.monotonic_s(), inside.catalog(one).records(opened.topic)
            opened.sweep(now_s, records)
            opened.sweep(now_s + 59, records)
            assert "has waited for an ack" not in caplog.text
            opened.sweep(now_s + 61, records)
            assert (
                "subscription s of topic t has waited for an ack of message 0-0 for more than a minute" in caplog.text
            )
            (behind,) = inside.lag_meter(one).furthest_behind(1)
            assert behind.held_up_s >= 0
