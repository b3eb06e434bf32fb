"""The client against three real brokers, one of which is killed under producers of each kind."""

import asyncio
import os
import signal
import time

import pyarrow as pa
import pytest

from seaweedq import AsyncClient, Client
from tests.support.processes.broker_process import free_ports

pytestmark = pytest.mark.process

BROKERS, KEYS, VALUES = 3, 30, 20_000


@pytest.fixture
def cluster(broker_process):
    """The process, and a client that knows all three."""
    process = broker_process("--brokers", str(BROKERS), "--lease-s", "2", port=free_ports(BROKERS))
    with Client([f"http://127.0.0.1:{process.port + number}" for number in range(BROKERS)]) as client:
        end_s = time.monotonic() + 30
        while _owners(client) != BROKERS:
            assert time.monotonic() < end_s
        yield process, client


def _owners(client):
    client.create_topic("t", initial_segments=2 * BROKERS)
    return len({segment["owner_url"] for segment in client.segments("t")} - {None})


def _kill_one(process):
    os.kill(int((process.data_dir / "members" / "2" / "lock").read_text()), signal.SIGKILL)


def _check(client, kinds):
    """Every value once, and those of a key in order, for each kind of producer."""
    found = {kind: {} for kind in kinds}
    for segment in client.segments("t"):
        offset = 0
        while page := client.fetch("t", segment["id"], offset, limit=10_000).messages:
            for message in page:
                kind, _ = message.key.split("-")
                found[kind].setdefault(message.key, []).append(message.value)
            offset = page[-1].offset + 1
    for kind in kinds:
        assert found[kind] == {f"{kind}-{key}": list(range(key, VALUES, KEYS)) for key in range(KEYS)}


def test_a_kill_under_producers_loses_and_doubles_nothing_and_keeps_order(cluster):
    process, client = cluster
    with client.producer("t", batch_messages=500) as lines, client.producer("t") as tables:
        for first in range(0, VALUES, KEYS * 50):
            if first == 15_000 // (KEYS * 50) * KEYS * 50:
                _kill_one(process)
            values = range(first, min(first + KEYS * 50, VALUES))
            for n in values:
                lines.send(n, key=f"line-{n % KEYS}")
            keys = [f"row-{n % KEYS}" for n in values]
            tables.send_table(pa.table({"value": [str(n) for n in values], "_key": keys}))
            time.sleep(0.05)
    assert lines.acknowledged == tables.acknowledged == VALUES
    _check(client, ["line", "row"])


@pytest.mark.long
async def test_the_async_producer_survives_it_too(cluster):
    process, known = cluster
    urls = ",".join(f"http://127.0.0.1:{process.port + number}" for number in range(BROKERS))
    async with AsyncClient(urls) as client, client.producer("t", batch_messages=500) as producer:
        for n in range(VALUES):
            if n == VALUES // 2:
                _kill_one(process)
            await producer.send(n, key=f"line-{n % KEYS}")
            if n % 1000 == 0:
                await asyncio.sleep(0.05)
    await asyncio.to_thread(_check, known, ["line"])
