"""A dispatcher that dies behind a split, with acks of the old segment and of its successors only in its journal."""

from pathlib import Path

import pytest

from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import at, make, records, replace
from tests.support.brokers.subscribing import ack, create, publish, pull

pytestmark = pytest.mark.brokers


async def test_the_next_dispatcher_goes_on_where_the_acks_end(tmp_path: Path) -> None:
    async with in_loop(tmp_path, checkpoint_s=600, publish_timeout_s=20) as together:
        one, two = together.brokers
        await make(one)
        async with at(together, one) as http, at(together, two) as other:
            await create(http)
            before = await publish(http, 0)
            await pull(http)
            (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
            left, asks = (two, other) if dispatcher is one else (one, http)
            successors = await replace(together, [0], 2, [one, two])
            behind = await publish(asks, 1)
            await ack(asks, before)
            first = await pull(asks, 30)
            await ack(asks, [message["id"] for message in first])
            assert {message["segment"] for message in first} <= set(successors)
            await together.crash(dispatcher)
            await until(lambda: {r.owner for r in records(left).values() if r.state == "open"} == {left.id})
            found = [message["id"] for message in first]
            while len(found) < len(behind):
                came = await pull(asks, wait_s=10)
                assert came, "some are missing"
                found += [message["id"] for message in came]
            assert sorted(found) == sorted(behind)
            await ack(asks, found[len(first) :])
            assert await pull(asks) == []
