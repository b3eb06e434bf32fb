"""Fetches follow segments over splits, merges and rolls: every message once, each key's in order, at any broker."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.machine import simulated_machine
from tests.support.brokers.reshaped import (
    ARROW,
    TOPIC,
    Following,
    at,
    beside,
    change_all,
    check_all_once_in_order,
    make,
    publishing,
    records,
    replace,
)
from tests.support.brokers.simulated_loop import clock, simulate
from tests.support.reshape.lives import lives

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_from_the_first_segments_on_everything_is_read_once_and_in_order(tmp_path: Path, arrow: bool) -> None:
    async with in_loop(tmp_path) as together, AsyncExitStack() as stack:
        await make(together.brokers[0], 2)
        clients = [await stack.enter_async_context(at(together, broker)) for broker in together.brokers]
        changed = asyncio.Event()
        following = Following(clients, arrow)
        async with beside(following.run(changed.is_set)):
            async with publishing(together, arrow) as published:
                await change_all(together)
            changed.set()
        assert published.total > 500
        assert len(records(together.brokers[0])) > 10
        check_all_once_in_order(following.rows, published.taken)
        late = Following(clients, arrow)
        await late.run(lambda: True)
        assert sorted(late.rows) == sorted(following.rows)


@pytest.mark.parametrize("owner", [0, 1])
@pytest.mark.parametrize("arrow", [False, True], ids=["json", "arrow"])
async def test_a_wait_ends_when_the_segment_is_sealed(tmp_path: Path, owner: int, arrow: bool) -> None:
    async with in_loop(tmp_path) as together:
        one = together.brokers[0]
        await make(one)
        async with at(together, together.brokers[owner]) as http:
            assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 200
            accept = {"accept": ARROW} if arrow else {}
            path = f"{TOPIC}/segments/0/messages?offset=1&wait_s=30"
            waiting = asyncio.create_task(http.get(path, headers=accept))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            successors = await replace(together, [0], 2)
            answer = await asyncio.wait_for(waiting, 5)
            assert answer.status_code == 200, answer.text
            if arrow:
                assert pa.ipc.open_stream(answer.content).read_all().num_rows == 0
                assert answer.headers["sealed"] == "true"
                assert answer.headers["successors"] == ",".join(map(str, successors))
                assert answer.headers["next-offset"] == "1"
            else:
                page = {"messages": [], "next_offset": 1, "sealed": True, "successors": successors}
                assert answer.json() == page


async def test_a_sealed_segment_says_so_at_every_offset_and_every_broker(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        await make(together.brokers[0])
        async with at(together, together.brokers[0]) as http:
            messages = {"messages": [{"value": n} for n in range(5)]}
            assert (await http.post(f"{TOPIC}/messages", json=messages)).status_code == 200
            opened = await http.get(f"{TOPIC}/segments/0/messages", headers={"accept": ARROW})
            assert "sealed" not in opened.headers
        successors = await replace(together, [0], 3)
        for broker in together.brokers:
            async with at(together, broker) as http:
                for offset in range(6):
                    page = (await http.get(f"{TOPIC}/segments/0/messages?offset={offset}&limit=2&wait_s=20")).json()
                    assert page["sealed"] is True
                    assert page["successors"] == successors
                    assert page["next_offset"] == min(5, offset + 2)
                    assert [m["value"] for m in page["messages"]] == [*range(offset, min(5, offset + 2))]
                assert (await http.get(f"{TOPIC}/segments/0/messages?offset=6")).status_code == 416


@pytest.mark.parametrize("target", [1, 2])
def test_what_is_left_of_a_wait_is_waited_when_the_segment_moves(tmp_path: Path, target: int) -> None:
    async def run() -> None:
        async with lives(tmp_path, 3, machine=simulated_machine(clock(), 1), lease_s=30) as together:
            one = together.brokers[0]
            topic = await make(one)
            async with together.client(together.brokers[1]) as http:
                waiting = asyncio.create_task(http.get(f"{TOPIC}/segments/0/messages?wait_s=2.5"))
                began_s = clock().time()
                await asyncio.sleep(2)
                assert await inside.mover(one).move(topic, 0, together.brokers[target].id)
                answer = await waiting
                assert answer.status_code == 200
                assert 2.4 < clock().time() - began_s < 2.8  # 4.5 where it waits anew

    simulate(run())
