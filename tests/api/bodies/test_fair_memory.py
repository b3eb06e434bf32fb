"""The memory of one principal's bodies leaves as much for the others, and never makes a body unservable."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from seaweedq.api.bodies.fair_memory import FairMemory
from seaweedq.broker.log.memory_budget import Budget
from seaweedq.errors import Overloaded
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
        budget, go_on = http.together.brokers[0].core.budget, asyncio.Event()
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
