"""Payloads with three real brokers, one of which is killed amid uploads: all are there once, in order, and whole."""

import os
import signal
import time
from random import Random

import pytest

from seaweedq import Client
from tests.support.processes.broker_process import free_ports

pytestmark = pytest.mark.process

BROKERS, KEYS, FILES = 3, 6, 30
MIB = 1024 * 1024


@pytest.fixture
def cluster(broker_process):
    """The process, and a client that knows all three."""
    process = broker_process("--brokers", str(BROKERS), "--lease-s", "2", port=free_ports(BROKERS))
    with Client([f"http://127.0.0.1:{process.port + number}" for number in range(BROKERS)]) as client:
        client.create_topic("t", initial_segments=2 * BROKERS)
        end_s = time.monotonic() + 30
        while len({segment["owner_url"] for segment in client.segments("t")} - {None}) != BROKERS:
            assert time.monotonic() < end_s
        yield process, client


@pytest.mark.long
def test_a_broker_that_is_killed_amid_uploads_costs_nothing(cluster, tmp_path):
    process, client = cluster
    data = Random(0).randbytes(MIB)
    with client.producer("t") as producer:
        for number in range(FILES):
            path = tmp_path / str(number)
            path.write_bytes(path.name.encode() + data)
            producer.send_file(path, key=str(number % KEYS))
            producer.send(number, key=str(number % KEYS))
            if number == FILES // 3:
                producer.flush()
            if number == FILES // 2:
                os.kill(int((process.data_dir / "members" / "2" / "lock").read_text()), signal.SIGKILL)
    found = {}
    for segment in client.segments("t"):
        for message in client.fetch("t", segment["id"], 0, limit=1000).messages:
            found.setdefault(message.key, []).append(message)
    for key in range(KEYS):
        numbers = range(key, FILES, KEYS)
        messages = found[str(key)]
        assert [message.value for message in messages] == [each for n in numbers for each in (None, n)]
        for number, message in zip(numbers, messages[::2], strict=True):
            with message.open() as file:
                assert file.read() == str(number).encode() + data
