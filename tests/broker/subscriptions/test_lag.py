"""The lag costs no request a file, and says in all and by segment what is left; metrics show it of the furthest
behind without any request. Asking for it beside a pull takes no cursor back.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from seaweedq.broker.broker import Broker
from seaweedq.broker.log.reader import Reader
from seaweedq.broker.subscriptions.leases import Leases
from seaweedq.broker.subscriptions.open_subscriptions import TakeOver
from seaweedq.journal.file_journal import FileJournal
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process import Gate
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, opened, replace
from tests.support.brokers.retained import fill
from tests.support.brokers.subscribing import ack, create, lag, publish, pull

pytestmark = pytest.mark.brokers

S = f"{TOPIC}/subscriptions/s"
FILES = 30


async def metric(http: httpx.AsyncClient, name: str) -> dict[str, float]:
    text = (await http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith(name + "{")]
    return {line.split('subscription="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


@pytest.mark.parametrize("sealed", [False, True], ids=["open", "sealed"])
async def test_the_lag_over_many_files_asks_the_store_for_no_single_one(tmp_path: Path, sealed: bool) -> None:
    async with in_loop(tmp_path) as together:
        one, other = together.brokers
        await make(one)
        await fill(one, FILES)
        if sealed:
            await replace(together, [0])
            for broker in together.brokers:
                inside.topic(broker, "t").opened.clear()
        async with at(together, one) as http:
            assert (await http.put(S, json={"start": "earliest"})).status_code == 201
            for broker in together.brokers:
                broker.process.store.requests.clear()
            shown = (await http.get(S)).json()
            requests = one.process.store.requests + other.process.store.requests
            assert requests["size"] == 0
            assert requests["list"] + requests["open"] <= 8, "about one, whatever the number of files"
            total = shown["lag_total"]
            assert (total["messages"], total["in_flight"], total["skipped"]) == (2 * FILES, 0, 0)
            assert total["bytes"] == sum(one["bytes"] for one in shown["lag"]) > 100 * FILES
            assert (await http.get(S)).json()["lag_total"]["bytes"] == total["bytes"]
            pulled = (await http.post(f"{S}/pull", json={"max_messages": 5})).json()["messages"]
            assert (await http.post(f"{S}/ack", json={"ids": [pulled[0]["id"]]})).status_code == 200
            total = (await http.get(S)).json()["lag_total"]
            assert (total["messages"], total["in_flight"]) == (2 * FILES - 1, 4)


async def test_metrics_show_those_furthest_behind_and_no_more(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, metrics_subscriptions=2) as together:
        (one,) = together.brokers
        await make(one)
        async with at(together, one) as http:
            for name in ("first", "second", "third"):
                path = f"{TOPIC}/subscriptions/{name}"
                assert (await http.put(path, json={"start": "latest"})).status_code == 201
                await http.post(f"{path}/pull", json={"max_messages": 1})
                await fill(one, 1)
            await until(lambda: not inside.topic(one, "t").opened[0].tail.size_bytes)
            one.process.store.requests.clear()
            assert await metric(http, "seaweedq_subscription_lag_messages") == {"first": 6, "second": 4}
            assert not one.process.store.requests
            await http.post(f"{TOPIC}/subscriptions/third/pull", json={"max_messages": 1})
            assert await metric(http, "seaweedq_subscription_in_flight") == {"first": 0, "second": 0}


def dispatched_by(asked: Broker, broker: Broker) -> str:
    """The name of a subscription that a broker is to dispatch."""
    preferred = inside.assignment(asked).preferred
    topic = inside.topic(asked, "t")
    return next(name for name in map("s{}".format, range(1000)) if preferred(topic, name) == broker.id)


async def test_metrics_say_bytes_and_seconds_as_the_lag_does_without_a_request(
    tmp_path: Path,
) -> None:
    """They said messages alone."""
    async with in_loop(tmp_path, 2) as together:
        one, other = together.brokers
        await make(one)
        await fill(one, 3)
        async with at(together, one) as http, at(together, other) as elsewhere:
            hour_ago = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
            near, far = dispatched_by(one, one), dispatched_by(one, other)
            for here, name in ((http, near), (elsewhere, far)):
                path = f"{TOPIC}/subscriptions/{name}"
                assert (await here.put(path, json={"start": "latest"})).status_code == 201
                await here.post(f"{path}/pull", json={"max_messages": 1})
            for _ in range(2):  # a file, and then the tail
                await http.post(f"{TOPIC}/messages", json={"value": "x" * 1000, "timestamp": hour_ago})
                await http.post(f"{TOPIC}/flush")
                await http.post(f"{TOPIC}/messages", json={"value": "y" * 1000, "timestamp": hour_ago})
            for here, broker, name in ((http, one, near), (elsewhere, other, far)):
                path = f"{TOPIC}/subscriptions/{name}"
                assert inside.dispatcher(broker).has(inside.topic(broker, "t"), name)
                for broker in (one, other):
                    broker.process.store.requests.clear()
                sizes = await metric(here, "seaweedq_subscription_lag_bytes")
                ages = await metric(here, "seaweedq_subscription_lag_seconds")
                assert not one.process.store.requests + other.process.store.requests
                total = (await here.get(path)).json()["lag_total"]
                assert total["messages"] == 4
                if name == near:
                    assert sizes[near] == total["bytes"] > 1000
                    assert ages[near] == pytest.approx(total["seconds"], abs=30)
                    assert ages[near] > 3500
                else:  # ends alone were heard of
                    assert 0 <= ages[far] < 60
                    await here.post(f"{path}/pull", json={"max_messages": 1})
                    assert (await metric(here, "seaweedq_subscription_lag_seconds"))[far] > 3500
                    assert (await metric(here, "seaweedq_subscription_lag_bytes"))[far] > 1000


async def test_a_segment_that_is_done_during_a_pull_does_not_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        (broker,) = together.brokers
        await make(broker, 2)
        await create(http)
        await publish(http, 0)
        old, kept = opened(broker)
        await replace(together, [old])
        subscription = await inside.dispatcher(broker).open(inside.topic(broker, "t"), "s")
        theirs = [message["id"] for message in await pull(http) if message["segment"] == old]
        await publish(http, 1)

        durable, reading = Gate(), Gate()
        append, read = FileJournal.append, Reader.read

        async def appends(self: FileJournal, frames: list) -> int:
            await durable()
            return await append(self, frames)

        async def reads(self: Reader, segment, *what: int):
            if segment.id == kept and what[1] > 1:  # the lag reads one row
                await reading()
            return await read(self, segment, *what)

        monkeypatch.setattr(FileJournal, "append", appends)
        monkeypatch.setattr(Reader, "read", reads)
        acking = asyncio.create_task(ack(http, theirs))
        await durable.reached.wait()
        subscription._turn = [*subscription.frontier.open].index(kept) - 1  # it is looked at first
        pulling = asyncio.create_task(pull(http))
        await reading.reached.wait()
        durable.open.set()  # all of the old segment is acked while the other one is read
        await acking
        assert old not in {one["segment"] for one in await lag(http)}
        await inside.dispatcher(broker).checkpoint()
        reading.open.set()
        assert old not in {message["segment"] for message in await pulling}, "it has come again"
        await inside.dispatcher(broker).checkpoint()
        cursors, _ = await privates.cursors(inside.dispatcher(broker)).read(
            subscription.topic, "s", TakeOver(subscription.record, Leases(), 0)
        )
        assert cursors[old].delivery.window.acked_to > 0
