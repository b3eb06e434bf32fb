"""`work`, sync and async, against a real broker: pools, failures, order, extensions, and all ways to end."""

import asyncio
import threading
import time
from collections import defaultdict
from typing import Any

import pytest

from seaweedq import AsyncClient, Client, Reject, Worked
from seaweedq.client.core.held_messages import HeldMessages
from seaweedq.client.core.pulling import Pulling
from seaweedq.client.sync import work as sync_work
from tests.support import privates
from tests.support.tiers import later

pytestmark = pytest.mark.process


@pytest.fixture
def topic(real_client: Client, request: pytest.FixtureRequest) -> str:
    name = request.node.originalname.replace("_", "-")[:60]
    real_client.create_topic(name)
    return name


def fill(client: Client, topic: str, count: int, keys: int = 4) -> None:
    client.publish(topic, [{"value": n, "key": f"k{n % keys}"} for n in range(count)])


def lag(client: Client, topic: str) -> tuple[int, int]:
    shown = client.subscription(topic, "s")["lag_total"]
    return shown["messages"], shown["in_flight"]


def test_messages_are_handled_by_several_at_once_and_acked(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 40)
    together = threading.Barrier(4, timeout=30)
    seen: list[Any] = []

    def handle(message: Any) -> None:
        together.wait()
        seen.append(message.value)

    done = real_client.work(topic, "s", handle, workers=4, start="earliest", idle_timeout_s=0.1, mode="shared")
    assert (sorted(seen), done) == (list(range(40)), Worked(acked=40))
    assert lag(real_client, topic) == (0, 0)


def test_what_is_held_is_looked_at_and_changed_under_the_lock_alone(
    real_client: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks: list[Any] = []
    seen: set[str] = set()
    begin = privates.begin(sync_work.Work)

    def note(work: sync_work.Work) -> None:
        locks.append(work._changed)
        begin(work)

    class Guarded(HeldMessages):
        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("_") and name != "ack_deadline_s" and locks:
                seen.add(name)
                assert locks[0]._is_owned(), f"{name} without the lock: another thread changes it meanwhile"
            return super().__getattribute__(name)

    monkeypatch.setattr(sync_work.Work, "_begin", note)
    monkeypatch.setattr(
        sync_work, "held_messages", lambda shown, wanted, most_s: Guarded("shared", wanted.ack_deadline_s, most_s)
    )
    fill(real_client, topic, 20)
    done = real_client.work(
        topic, "s", lambda message: None, workers=3, start="earliest", idle_timeout_s=0.1, mode="shared"
    )
    assert done == Worked(acked=20)
    assert seen >= {"waiting", "wait_s", "add", "next", "finish", "clear"}


@pytest.mark.parametrize("mode", [later("ordered"), "keyed"])
def test_what_fails_comes_again_and_nothing_overtakes_it(real_client: Client, topic: str, mode: Any) -> None:
    topic = f"{topic}-{mode}"
    real_client.create_topic(topic)
    fill(real_client, topic, 60)
    seen = defaultdict(list)
    failed = set()

    def handle(message: Any) -> None:
        lane = message.key if mode == "keyed" else message.segment
        if message.value % 7 == 0 and message.value not in failed:
            failed.add(message.value)
            raise ValueError(message.value)
        seen[lane].append(message.value)

    done = real_client.work(topic, "s", handle, start="earliest", idle_timeout_s=0.2, mode=mode)
    assert sorted(n for lane in seen.values() for n in lane) == list(range(60)), "each once"
    assert all(lane == sorted(lane) for lane in seen.values())
    assert (done.acked, done.failed, done.unknown) == (60, 9, 0)


@pytest.mark.parametrize("mode", ["ordered", later("keyed")])
@pytest.mark.parametrize("attempts", [0, later(1), later(2)])
def test_what_dies_holds_up_nothing_and_takes_nothing_with_it(
    real_client: Client, topic: str, mode: Any, attempts: int
) -> None:
    """It is rejected, or fails as often as it may, while the next pull is under way and all behind it are leased."""
    topic = f"{topic}-{mode}-{attempts}"
    real_client.create_topic(topic)
    fill(real_client, topic, 60)
    seen = defaultdict(list)

    def handle(message: Any) -> None:
        if message.value % 7 == 0:
            raise ValueError(message.value) if attempts else Reject(message.value)
        seen[message.key if mode == "keyed" else message.segment].append(message.value)
        time.sleep(0.01)

    settings = {"dead_letter_topic": f"{topic}-dead", "max_attempts": attempts, "ack_deadline_s": 30}
    done = real_client.work(topic, "s", handle, start="earliest", idle_timeout_s=0.5, mode=mode, **settings)
    wanted = [n for n in range(60) if n % 7]
    assert sorted(n for lane in seen.values() for n in lane) == wanted, "each once"
    assert all(lane == sorted(lane) for lane in seen.values())
    assert (done.acked, done.failed + done.rejected, done.unknown) == (51, 9 * max(attempts, 1), 0)
    letters = real_client.subscribe(f"{topic}-dead", "look", start="earliest", idle_timeout_s=2)
    assert sorted(letter.value for letter in letters) == [n for n in range(60) if n % 7 == 0]


def test_what_nobody_began_is_given_back_without_an_attempt(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 20)
    settings = {"dead_letter_topic": f"{topic}-dead", "max_attempts": 2}
    for n in range(3):
        messages = real_client.subscribe(topic, "s", start="earliest", mode="shared", **(settings if n == 0 else {}))
        first = next(messages)
        assert first.attempt == 1
        first.ack()
        messages.close()
    found = list(real_client.subscribe(topic, "s", idle_timeout_s=0.5))
    assert [message.attempt for message in found] == [1] * 17


@pytest.mark.long
def test_what_cannot_be_rejected_comes_again(real_client: Client, topic: str, caplog: Any) -> None:
    fill(real_client, topic, 1)
    attempts = []

    def handle(message: Any) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise Reject("broken")

    done = real_client.work(topic, "s", handle, start="earliest", idle_timeout_s=0.2)
    assert (attempts, done) == ([1, 2], Worked(acked=1, failed=1))
    assert "dead_letter_topic" in caplog.text


def test_a_handlers_own_nack_counts_once_it_returns(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 1)

    def handle(message: Any) -> None:
        if message.attempt == 1:
            message.nack(delay_s=0)
        else:
            message.ack()

    assert real_client.work(topic, "s", handle, start="earliest", idle_timeout_s=0.2) == Worked(acked=1, failed=1)


@pytest.mark.long
def test_leases_are_extended_while_handlers_run(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 2)
    attempts = []

    def handle(message: Any) -> None:
        attempts.append(message.attempt)
        time.sleep(3.5)  # the deadline is 1 s

    done = real_client.work(
        topic, "s", handle, 2, start="earliest", idle_timeout_s=0.1, ack_deadline_s=1, mode="shared"
    )
    assert (attempts, done) == ([1, 1], Worked(acked=2))


def test_closing_the_client_finishes_what_runs_and_gives_the_rest_back(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 20)
    both, finish = threading.Barrier(3, timeout=30), threading.Event()
    done: list[Worked] = []

    def handle(message: Any) -> None:
        both.wait()
        finish.wait(30)

    with Client(privates.urls(real_client)) as other:
        run = threading.Thread(
            target=lambda: done.append(other.work(topic, "s", handle, 2, start="earliest", mode="shared"))
        )
        run.start()
        both.wait()
        threading.Timer(0.2, finish.set).start()
    run.join(30)
    assert done == [Worked(acked=2)]
    assert lag(real_client, topic) == (18, 0), "nothing stays leased"


def test_an_interrupt_gives_back_what_was_not_begun(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 20)

    def handle(message: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        real_client.work(topic, "s", handle, 1, start="earliest", mode="shared")
    assert lag(real_client, topic) == (20, 0)


def test_acks_are_sent_though_the_pull_fails(real_client: Client, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was closed next sent none: what was handled came again."""
    fill(real_client, topic, 1)
    pull = Pulling.pull_once

    def interrupted(self: Pulling, most: int, wait_s: float) -> Any:
        found = yield from pull(self, most, wait_s)
        if not found.items:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Pulling, "pull_once", interrupted)
    with pytest.raises(KeyboardInterrupt), Client(privates.urls(real_client)) as other:
        other.work(topic, "s", lambda message: time.sleep(0.3), 1, start="earliest", idle_timeout_s=0.1)
    assert lag(real_client, topic) == (0, 0)


async def test_the_async_client_does_the_same(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 40)
    seen, failed = defaultdict(list), set()

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        if message.value % 7 == 0 and message.value not in failed:
            failed.add(message.value)
            raise ValueError(message.value)
        seen[message.key].append(message.value)

    async with AsyncClient(privates.urls(real_client)) as client:
        done = await client.work(topic, "s", handle, start="earliest", idle_timeout_s=0.2, mode="keyed")
    assert all(lane == sorted(lane) for lane in seen.values())
    assert (done.acked, done.failed, sum(map(len, seen.values()))) == (40, 6, 40)
    assert lag(real_client, topic) == (0, 0)


async def test_a_cancellation_leaves_nothing_leased(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 20)
    running = asyncio.Event()

    async def handle(message: Any) -> None:
        running.set()
        await asyncio.sleep(60)

    async with AsyncClient(privates.urls(real_client)) as client:
        work = asyncio.create_task(client.work(topic, "s", handle, 2, start="earliest", mode="shared"))
        await asyncio.wait_for(running.wait(), 30)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert lag(real_client, topic) == (20, 0)


async def test_closing_the_async_client_finishes_what_runs(real_client: Client, topic: str) -> None:
    fill(real_client, topic, 3)
    running = asyncio.Event()

    async def handle(message: Any) -> None:
        running.set()
        await asyncio.sleep(0.1)

    async with AsyncClient(privates.urls(real_client)) as client:
        work = asyncio.create_task(client.work(topic, "s", handle, 1, start="earliest", mode="shared"))
        await asyncio.wait_for(running.wait(), 30)
    assert await work == Worked(acked=1)
    assert lag(real_client, topic) == (2, 0)


class SlowLane:
    """A topic with many messages of a slow key, which end once all of a quick key in another segment were handled."""

    def __init__(self, client: Client, topic: str) -> None:
        client.create_topic(topic, initial_segments=2)
        keys = [f"k{n}" for n in range(20)]
        where = client.publish(topic, [{"key": key, "value": -1} for key in keys]).ids or []
        self.slow = next(key for key, id in zip(keys, where, strict=True) if id.startswith("0-"))
        self.quick = next(key for key, id in zip(keys, where, strict=True) if id.startswith("1-"))
        client.publish(topic, [{"key": self.slow, "value": n} for n in range(40)])
        client.publish(topic, [{"key": self.quick, "value": n} for n in range(12)])
        self.over = threading.Event()
        self.seen: dict[str, list[int]] = defaultdict(list)

    def handle(self, message: Any) -> None:
        if message.value < 0:
            return
        if message.key == self.slow:
            assert self.over.wait(20), "the messages of the other key are not handled"
        self.seen[message.key].append(message.value)
        if len(self.seen[self.quick]) == 12:
            self.over.set()

    def check(self, worked: Worked) -> None:
        assert worked == Worked(acked=72)
        assert self.seen == {self.slow: list(range(40)), self.quick: list(range(12))}


@pytest.mark.parametrize("mode", ["keyed", later("ordered")])
def test_a_slow_key_or_segment_leaves_the_other_workers_their_work(real_client: Client, mode: Any) -> None:
    """Its messages took all the places of those that wait: the other workers had nothing to do until it was done."""
    lane = SlowLane(real_client, f"slow-{mode}")
    lane.check(real_client.work(f"slow-{mode}", "s", lane.handle, 3, "earliest", 0.2, mode=mode, max_messages=8))


@pytest.mark.long
@pytest.mark.parametrize("mode", [later("keyed"), later("ordered")])
async def test_a_slow_key_or_segment_leaves_the_other_tasks_their_work(real_client: Client, mode: Any) -> None:
    topic = f"slow-{mode}-too"
    lane = SlowLane(real_client, topic)

    async def handle(message: Any) -> None:
        await asyncio.to_thread(lane.handle, message)

    async with AsyncClient(privates.urls(real_client)) as client:
        lane.check(await client.work(topic, "s", handle, 3, "earliest", 0.2, mode=mode, max_messages=8))
