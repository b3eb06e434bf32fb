"""The memory of one principal's bodies leaves as much for the others, and never makes a body unservable."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from seaweedq.api.bodies import request_reader
from seaweedq.api.bodies.decoding_memory import DecodingMemory
from seaweedq.api.bodies.fair_memory import FairMemory
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.errors import Overloaded
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.http.with_tokens import EVERYTHING, access

MIB = 1 << 20


def test_a_principal_holds_at_most_half_of_what_is_free_and_the_next_one_half_of_the_rest() -> None:
    budget = Budget(64 * MIB)
    fair = FairMemory(budget, lambda: 2)

    def hold(key: str, size: int) -> None:
        fair.take(key, size)
        budget.hold(size)

    hold("a", 40 * MIB)  # its first one, however large
    with pytest.raises(Overloaded):
        hold("a", 1)
    hold("b", 8 * MIB)
    hold("b", 4 * MIB)
    with pytest.raises(Overloaded, match="half"):
        hold("b", 1)
    fair.release("a", 40 * MIB)
    budget.release(40 * MIB)
    hold("b", 20 * MIB)
    fair.release("b", 32 * MIB)
    assert not len(fair)


def test_who_is_alone_has_all() -> None:
    fair = FairMemory(Budget(4 * MIB), lambda: 1)
    for _ in range(4):
        fair.take("a", MIB)


async def test_bodies_of_one_principal_leave_room_for_those_of_another(tmp_path: Path) -> None:
    async with access(tmp_path, memory_budget_bytes=64 * MIB, max_request_bytes=16 * MIB) as http:
        for name in ("greedy", "other"):
            await http.principal(name, EVERYTHING)
        greedy, other = [await http.token(principal=name) for name in ("greedy", "other")]
        assert await http.status("PUT", "/v1/topics/t", greedy, json={}) == 201
        budget, go_on = inside.budget(http.together.brokers[0]), asyncio.Event()
        budget.requests += 36 * MIB  # others': 28 are free, of which bodies that still come may have 16

        async def half() -> Any:
            yield b'{"value": "' + b"x" * 6 * MIB
            await go_on.wait()
            yield b'"}'

        kind = {"content-type": "application/json"}
        slow = [
            asyncio.create_task(http("POST", "/v1/topics/t/messages", greedy, content=half(), headers=kind))
            for _ in range(2)
        ]
        await until(lambda: budget.incomplete >= 12 * MIB)
        content = b'{"value": "' + b"x" * 3 * MIB + b'"}'
        assert await http.status("POST", "/v1/topics/t/messages", greedy, content=content, headers=kind) == 503
        assert await http.status("POST", "/v1/topics/t/messages", other, content=content, headers=kind) != 503
        go_on.set()
        await asyncio.gather(*slow)
        assert not len(http.together.apps["http://b0"]._reader.fair)
        budget.requests -= 36 * MIB


async def test_a_decoder_counts_for_its_callers_share() -> None:
    budget, may_end = Budget(100), threading.Event()
    fair = FairMemory(budget, lambda: 2)
    memory = DecodingMemory(budget, fair)
    for caller, size in (("a", 30), ("b", 1)):
        fair.take(caller, size)
        budget.hold(size)
    with pytest.raises(Overloaded, match="hold 30 bytes, and 30 more would be over half"):
        await memory.run("a", 10, 30, str)  # its other requests may wait as well: nobody else makes room
    alone = asyncio.create_task(memory.run("a", 30, 30, may_end.wait))
    await until(lambda: budget.decoding == 30)
    assert fair.held("a") == 60
    waits = asyncio.create_task(memory.run("a", 30, 1, str))
    assert await memory.run("b", 1, 15, str) == ""
    assert not waits.done()
    may_end.set()
    assert (await alone, await waits) == (True, "")
    assert (fair.held("a"), budget.decoding) == (30, 0)


async def test_small_bodies_that_become_large_ones_leave_room_for_those_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"value":"' + b"x" * (4 * MIB - 20) + b'"}'
    content = bytes(pa.Codec("zstd").compress(body))
    kind = {"content-type": "application/json"}
    async with access(tmp_path, memory_budget_bytes=64 * MIB, max_request_bytes=4 * MIB) as http:
        for name in ("greedy", "other"):
            await http.principal(name, EVERYTHING)
        greedy, other = [await http.token(principal=name) for name in ("greedy", "other")]
        assert await http.status("PUT", "/v1/topics/t", greedy, json={}) == 201
        decode, may_go_on, decoding = request_reader.decode_body, threading.Event(), threading.Event()

        def slowly(*given: Any) -> bytes:
            decoding.set()
            may_go_on.wait()
            return decode(*given)

        monkeypatch.setattr(request_reader, "decode_body", slowly)
        headers = {**kind, "content-encoding": "zstd"}
        sent = [
            asyncio.create_task(http.status("POST", "/v1/topics/t/messages", greedy, content=content, headers=headers))
            for _ in range(40)
        ]
        await asyncio.to_thread(decoding.wait)
        assert await http.status("POST", "/v1/topics/t/messages", other, content=b'{"value":1}', headers=kind) == 200
        may_go_on.set()
        while not all(one.done() for one in sent):
            publish = http.status("POST", "/v1/topics/t/messages", other, content=b'{"value":1}', headers=kind)
            assert await publish == 200
        assert {await one for one in sent} <= {413, 503}  # a message is too large
        assert 413 in {await one for one in sent}
        application = http.together.apps["http://b0"]
        assert len(application._reader.fair) == inside.budget(http.together.brokers[0]).in_flight == 0
