"""Work on many things at once: a defect that one of them meets ends none of the others, and no task."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.cluster.periodic_tasks import ABANDONED_S, Abandoned
from seaweedq.broker.reshape.reshaping import Drain
from seaweedq.broker.retention.retention import Retention
from seaweedq.broker.subscriptions.subscribing import Handoff
from seaweedq.broker.subscriptions.subscription import Subscription
from seaweedq.broker.topics.catalog import Topic
from seaweedq.clock import Clock, SystemClock
from seaweedq.coordination.records import BrokerRecord, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import Versioned
from tests.support.brokers import inside
from tests.support.brokers.in_process import ack, make_topic, publish, pull, running, subscribe


def topic(name: str) -> Topic:
    return Topic.from_record(name, Versioned(TopicRecord(0, "deleting", TopicConfig(), 0), 1))


class Work:
    """Fails for what is named `bad`, and takes its time for the rest."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def __call__(self, topic: Topic, *more: Any) -> bool:
        if topic.name == "bad":
            raise KeyError("a defect")
        await asyncio.sleep(0.01)
        self.ended.append(topic.name)
        return True


async def test_abandoned_work(caplog: pytest.LogCaptureFixture) -> None:
    """A change of a schema that met one ended those of all topics behind it, each time."""
    times = iter((0.0, ABANDONED_S + 1))
    clock, work, left = SimpleNamespace(monotonic_s=lambda: next(times)), Work(), [topic("bad"), topic("good")]
    abandoned = Abandoned(lambda: left, work, "is not deleted yet", cast(Clock, clock))
    await abandoned.end()
    await abandoned.end()
    assert work.ended == ["good"]
    assert "topic bad is not deleted yet" in caplog.text
    assert "a defect" in caplog.text


async def test_a_handover_of_a_subscription(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    names = [(topic("bad"), "s"), (topic("good"), "s")]
    dispatcher = SimpleNamespace(names=lambda: names, hand_over=work)
    assignment = SimpleNamespace(leave=lambda: None)
    handoff = Handoff(cast(Any, dispatcher), cast(Any, assignment), cast(Any, None), SystemClock())
    await handoff.leave()
    assert work.ended == ["good"]
    assert "a defect" in caplog.text


async def test_a_checkpoint_of_a_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The cursors of all behind it were written never again, and their acks held the journal."""
    async with running(tmp_path) as broker:
        at = await make_topic(broker)
        await subscribe(broker, at, name="bad")
        await subscribe(broker, at, name="good")
        dispatcher = inside.dispatcher(broker)
        for name in ("bad", "good"):
            await dispatcher.open(at, name)
        await publish(broker, at, "1")
        for name in ("bad", "good"):
            await pull(dispatcher, at, name, None, 1, 0)
            await ack(dispatcher, at, name, {0: [0]}, None)
        sweep = Subscription.sweep

        def swept(subscription: Subscription, *more: Any) -> None:
            if subscription.name == "bad":
                raise KeyError("a defect")
            sweep(subscription, *more)

        monkeypatch.setattr(Subscription, "sweep", swept)
        await dispatcher.checkpoint()
        pins = {one.name: one.pin for one in dispatcher.subscriptions()}
        assert (pins["bad"] is None, pins["good"]) == (False, None)
        assert "cannot write the cursors of subscription bad of topic t" in caplog.text
        monkeypatch.undo()


async def test_the_retention_of_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    """It ended the round of all topics, each time: nothing was deleted any more, of any."""
    work, topics = Work(), {name: topic(name) for name in ("bad", "good")}
    for one in topics.values():
        one.update(one.held.replace(state="active"))
    known = SimpleNamespace(known=lambda *place: {})
    catalog = SimpleNamespace(names=lambda: topics, get=topics.get, starts=known)
    scans = SimpleNamespace(forget_except=lambda topics: None, inputs=work)
    payloads = SimpleNamespace(forget_except=lambda topics: None, is_due=lambda *about: False)
    removal = SimpleNamespace(due=lambda topic: False)
    view, rounds = SimpleNamespace(catalog=catalog, clock=SystemClock()), SimpleNamespace(begin=no_round)
    await Retention(*cast(Any, (view, rounds, scans, None, payloads, removal, 60.0))).round()
    assert work.ended == ["good"]
    assert "retention of topic bad failed, and will be retried" in caplog.text


async def no_round() -> None:
    """The clock is held."""


async def test_a_segment_of_a_broker_that_leaves(caplog: pytest.LogCaptureFixture) -> None:
    work, topics = Work(), {name: topic(name) for name in ("bad", "good")}
    owned = {"me": [("bad", 0, 0), ("good", 0, 0)]}
    catalog = SimpleNamespace(get=topics.get, owned_by=lambda broker: owned.get(broker, []))
    brokers = {name: Versioned(BrokerRecord(url="", name=name, started_us=0, zone=""), 1) for name in ("me", "other")}

    async def drain() -> bool:
        return True

    roster, membership = SimpleNamespace(brokers=brokers), SimpleNamespace(broker="me", drain=drain)
    loads, mover = SimpleNamespace(costs=dict), SimpleNamespace(move=work)
    await Drain(*cast(Any, (catalog, roster, membership, loads, mover))).hand_over()
    assert set(work.ended) == {"good"}
    assert "segment 0 of topic bad could not be handed over" in caplog.text
