"""In `shared` nothing waits for its predecessors, and a crash brings nothing back that was acked."""

from pathlib import Path

import pytest

from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import make, replace
from tests.support.brokers.subscribing import SUBSCRIPTION, ack, everywhere, lag, publish, pull

pytestmark = pytest.mark.brokers


async def test_successors_do_not_wait_for_their_predecessors(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together, everywhere(together) as (http, other):
        await make(together.brokers[0])
        answer = await http.put(SUBSCRIPTION, json={"start": "earliest", "mode": "shared"})
        assert answer.status_code == 201, answer.text
        early = await publish(http, 0)
        assert len(await pull(http, count=10)) == 10
        await replace(together, [0], 2)
        late = await publish(other, 0)
        found: set[str] = set()
        while not found.issuperset(late):  # the end of a segment of another broker may not be known yet
            more = await pull(other, count=1000, wait_s=10)
            assert more, "those of the predecessor are not acked"
            found |= {message["id"] for message in more}
        await ack(http, late)
        for one in together.brokers:
            dispatcher = inside.dispatcher(one)
            await dispatcher.checkpoint()
            for topic, name in dispatcher.names():
                dispatcher.forget(topic, name)  # as a crash: leases are gone
        answer = await other.post(f"{SUBSCRIPTION}/pull", json={"max_messages": 1000})
        again = [message["id"] for message in answer.json()["messages"]]
        assert sorted(again) == sorted(early), "what was acked of the successors comes no more"
        await ack(other, again)
        assert sum(one["messages"] for one in await lag(http)) == 0
