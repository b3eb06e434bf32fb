"""Maintenance on simulated time: how far a journal exceeds its bound before chains and cursors have what it holds."""

import asyncio
from pathlib import Path

import pytest

from seaweedq.broker.maintenance import LEAST_CHECKPOINT_S, TICK_S
from tests.support.brokers import inside
from tests.support.brokers.in_process import ack, make_topic, offsets, publish, pull, subscribe
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.machine import simulated_machine
from tests.support.brokers.simulated_loop import clock, simulate

pytestmark = pytest.mark.brokers
BOUND, COMMIT_BYTES, EACH_S = 1024 * 1024, 65_536, 0.02
VALUE = f'"{"x" * COMMIT_BYTES}"'


@pytest.mark.parametrize("has_acks", [False, True], ids=["rows", "acks"])
def test_a_journal_exceeds_its_bound_by_what_a_tick_brings(tmp_path: Path, has_acks: bool) -> None:
    """Acks keep commits until a checkpoint, which checkpoint_s would bring only at the end."""
    over_s = TICK_S + (LEAST_CHECKPOINT_S if has_acks else 0.0)

    async def work() -> None:
        machine = simulated_machine(clock(), 1)
        async with in_loop(
            tmp_path, machine=machine, journal="mirrored", journal_max_unreleased_bytes=BOUND
        ) as together:
            owner = together.brokers[0]
            await make_topic(owner)
            topic = inside.topic(owner, "t")
            dispatcher, journal = inside.dispatcher(owner), inside.journal(owner)
            await until(lambda: len(journal.mirrors) == 1)
            await subscribe(owner, topic)
            most = 0
            for _ in range(110):
                await publish(owner, topic, VALUE)
                most = max(most, journal.unreleased_bytes)
                if has_acks:
                    found = await pull(dispatcher, topic, "s", None, 10, 0)
                    await ack(dispatcher, topic, "s", {0: offsets(found)}, None)
                await asyncio.sleep(EACH_S)
        assert BOUND < most < BOUND + (over_s / EACH_S + 1) * 1.02 * COMMIT_BYTES

    simulate(work())
