"""How often streams look, and what a message costs that many of them get: nothing looks without a reason, and what is
the same for all is made once.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from seaweedq.broker.broker import Broker
from seaweedq.broker.streams import streaming
from seaweedq.broker.streams.streaming import LeasedBatch
from seaweedq.broker.subscriptions import pull_rounds, pulling
from seaweedq.broker.subscriptions.acking import Refusal, Selection
from seaweedq.broker.subscriptions.leases import Position
from seaweedq.broker.subscriptions.pull_rounds import Leasing, Pull
from seaweedq.broker.topics.catalog import Topic
from seaweedq.coordination.records import SubscriptionRecord
from seaweedq.errors import JournalUnavailable, LeaseOfAnother, NeedsNewerBroker
from seaweedq.segments.rows import Single
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish
from tests.support.brokers.machine import simulated_machine
from tests.support.brokers.simulated_loop import clock, simulate
from tests.support.reshape.lives import lives

pytestmark = pytest.mark.brokers

WAIT_S = 14.0
AT_ONCE_S = 0.1


class Scene:
    """A broker with a topic, on simulated time, and its streams. `calls` counts looks, turns and texts."""

    def __init__(self, broker: Broker, topic: Topic, calls: Counter[str]) -> None:
        self.broker, self.topic, self.calls = broker, topic, calls
        self.dispatcher = inside.dispatcher(broker)
        self.at: dict[str, Position] = {}

    async def make(self, *names: str, most: int = 1000) -> None:
        now_us = clock().now_us()
        record = SubscriptionRecord("shared", "earliest", 600, 0, None, now_us, epoch=now_us)
        for name in names:
            await inside.subscription_admin(self.broker).create(self.topic, name, record)
            self.at[name] = Position(name, name, name, most)

    async def next(self, name: str, wait_s: float = WAIT_S) -> LeasedBatch | None:
        """The next batch of a stream, as a connection asks for it that has sent all before."""
        wanted = Pull(100, wait_s, self.at[name].consumer, position=self.at[name])
        batch = await inside.subscription_streams(self.broker).next(self.topic, name, wanted)
        if batch:
            self.at[name] = self.at[name].at(int(batch.lease.rpartition(".")[2]), *batch.rows.last)
        return batch

    async def offsets(self, name: str, wait_s: float = WAIT_S) -> list[int]:
        batch = await self.next(name, wait_s)
        return [offset for _, offset, _ in batch.rows.numbered] if batch else []

    async def ack(self, name: str, *offsets: int) -> None:
        assert (await self.dispatcher.ack(self.topic, name, Selection({0: offsets}))).known == len(offsets)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    found: Counter[str] = Counter()

    def count(place: Any, name: str) -> None:
        real = getattr(place, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            found[name] += 1
            return real(*arguments, **more)

        monkeypatch.setattr(place, name, counted)

    count(Leasing, "round")
    for module in (pull_rounds, pulling):
        count(module, "next_turn")
    count(streaming, "message_texts")
    return found


def scene(folder: Path, calls: Counter[str], work: Callable[[Scene], Any]) -> None:
    async def run() -> None:
        async with lives(folder, 1, machine=simulated_machine(clock(), 1), lease_s=30) as together:
            (broker,) = together.brokers
            await work(Scene(broker, await make_topic(broker), calls))

    simulate(run())


def test_a_message_to_many_streams_is_made_once_and_their_acks_wake_nobody(tmp_path: Path, calls: Counter[str]) -> None:
    names = [f"s{number}" for number in range(8)]

    async def work(here: Scene) -> None:
        await here.make(*names)
        waiting = [asyncio.create_task(here.offsets(name)) for name in names]
        await asyncio.sleep(1)
        calls.clear()
        await publish(here.broker, here.topic, "1")
        assert await asyncio.gather(*waiting) == [[0]] * 8
        assert calls == {"round": 8, "next_turn": 8, "message_texts": 1}
        waiting = [asyncio.create_task(here.offsets(name)) for name in names]
        await asyncio.sleep(1)
        calls.clear()
        for name in names:
            await here.ack(name, 0)
        await asyncio.sleep(1)
        assert not calls
        await publish(here.broker, here.topic, "2")
        assert await asyncio.gather(*waiting) == [[1]] * 8

    scene(tmp_path, calls, work)


def test_a_stream_that_is_held_back_looks_when_something_has_changed(tmp_path: Path, calls: Counter[str]) -> None:
    async def work(here: Scene) -> None:
        await here.make("s", most=1)
        await publish(here.broker, here.topic, "1", "2", "3")
        assert await here.offsets("s") == [0]
        waiting = asyncio.create_task(here.offsets("s"))
        await asyncio.sleep(1)
        calls.clear()
        await asyncio.sleep(10)
        assert not calls
        await here.ack("s", 0)
        assert await waiting == [1]
        waiting = asyncio.create_task(here.offsets("s"))
        await asyncio.sleep(0.5)
        (subscription,) = here.dispatcher.subscriptions()
        began_s = clock().time()
        subscription.retire(0, 2)  # retention has taken what the stream holds
        assert await waiting == [2]
        assert clock().time() - began_s < AT_ONCE_S

    scene(tmp_path, calls, work)


def test_a_message_that_held_streams_holds_none_once_leased_or_acked_late(tmp_path: Path, calls: Counter[str]) -> None:
    async def work(here: Scene) -> None:
        await here.make("s")
        await publish(here.broker, here.topic, "1", "2")
        for _ in range(2):
            await here.dispatcher.pull(here.topic, "s", Pull(1, consumer="other"))
            await here.dispatcher.nack(here.topic, "s", Selection({0: [0]}), Refusal(0))
        taken = await here.dispatcher.pull(here.topic, "s", Pull(1, consumer="other"))  # alone: it may kill
        assert [one.offsets.tolist() for one in taken.messages] == [[0]]
        assert await here.offsets("s") == [1]
        waiting = asyncio.create_task(here.offsets("s"))
        await asyncio.sleep(1)
        await here.dispatcher.nack(here.topic, "s", Selection({0: [0]}), Refusal(0))
        await publish(here.broker, here.topic, "3")
        await asyncio.sleep(5)
        assert not waiting.done(), "the one that may kill is due, and the stream holds another one"
        began_s = clock().time()
        await here.ack("s", 0)  # late
        assert await waiting == [2]
        assert clock().time() - began_s < AT_ONCE_S

    scene(tmp_path, calls, work)


def test_what_held_all_streams_back_holds_nobody_once_its_time_is_over(tmp_path: Path, calls: Counter[str]) -> None:
    """A stream waited until the end of its poll: a look that found nothing but what had expired woke nobody."""

    async def work(here: Scene) -> None:
        await here.make("s")
        expires_us = clock().now_us() + 20_000_000
        publisher = inside.publisher(here.broker)
        await publisher.single(here.topic, Single(None, b"1", None, 1, expires_us), None)
        await publish(here.broker, here.topic, "2")
        for _ in range(2):
            await here.dispatcher.pull(here.topic, "s", Pull(1, consumer="other"))
            await here.dispatcher.nack(here.topic, "s", Selection({0: [0]}), Refusal(0))
        await here.dispatcher.pull(here.topic, "s", Pull(1, consumer="other", lease="alone"))
        assert await here.offsets("s") == [1]
        await here.dispatcher.nack(here.topic, "s", Selection({0: [0]}), Refusal(0))
        waiting = asyncio.create_task(here.offsets("s", 60))
        await asyncio.sleep(25)
        found = await here.dispatcher.pull(here.topic, "s", Pull(1, consumer="other"))
        assert not found.messages, "its time was over"
        await publish(here.broker, here.topic, "3")
        began_s = clock().time()
        assert await waiting == [2]
        assert clock().time() - began_s < AT_ONCE_S

    scene(tmp_path, calls, work)


def test_who_waits_is_woken_when_a_subscription_is_blocked_no_more(tmp_path: Path, calls: Counter[str]) -> None:
    async def work(here: Scene) -> None:
        await here.make("s", most=1)
        await publish(here.broker, here.topic, "1", "2")
        assert await here.offsets("s") == [0]
        waiting = asyncio.create_task(here.offsets("s"))
        await asyncio.sleep(1)
        (subscription,) = here.dispatcher.subscriptions()
        subscription.blocked = NeedsNewerBroker("its record cannot be read")
        freed, turns = subscription.leases.streams.get("s").freed.count, subscription.queue.count
        await here.dispatcher.checkpoint()
        assert subscription.blocked is None
        assert subscription.leases.streams.get("s").freed.count > freed
        assert subscription.queue.count > turns
        await here.ack("s", 0)
        assert await waiting == [1]

    scene(tmp_path, calls, work)


def test_a_stream_is_not_gone_on_with_under_another_consumers_name(tmp_path: Path, calls: Counter[str]) -> None:
    async def work(here: Scene) -> None:
        await here.make("s")
        await publish(here.broker, here.topic, "1", "2")
        here.at["s"] = replace(here.at["s"], consumer="one")
        assert await here.offsets("s") == [0, 1]
        position = replace(here.at["s"], offset=0, connection="later", resumed=True)
        with pytest.raises(LeaseOfAnother, match="does not belong to consumer 'two'"):
            await here.dispatcher.pull(
                here.topic, "s", Pull(9, consumer="two", position=replace(position, consumer="two"))
            )
        for consumer in ("one", "s"):  # the same one, or one that names none
            again = await here.dispatcher.pull(
                here.topic, "s", Pull(9, consumer=consumer, position=replace(position, consumer=consumer))
            )
            assert [one.offsets.tolist() for one in again.messages] == [[1]]

    scene(tmp_path, calls, work)


def test_a_stream_whose_ack_the_journal_refuses_holds_less(
    tmp_path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited until the end of its poll: an ack that failed woke those alone who wait for messages."""

    async def work(here: Scene) -> None:
        await here.make("s", most=1)
        await publish(here.broker, here.topic, "1", "2")
        assert await here.offsets("s") == [0]
        waiting = asyncio.create_task(here.offsets("s"))
        await asyncio.sleep(1)
        refused: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(inside.group_commit(here.broker), "append_frame", lambda frame: refused)
        acking = asyncio.create_task(here.ack("s", 0))
        await asyncio.sleep(1)
        refused.set_exception(JournalUnavailable("the disk is full"))
        with pytest.raises(JournalUnavailable):
            await acking
        async with asyncio.timeout(AT_ONCE_S):
            assert await waiting == [0]

    scene(tmp_path, calls, work)
