"""A payload that is much larger than the broker's memory."""

import os
import shutil
from pathlib import Path

import psutil
import pytest

from seaweedq import Client

pytestmark = pytest.mark.process

MIB = 1024 * 1024
SIZE = 5 * 1024 * MIB
CHUNK = 4 * MIB


def peak_mib(pid: int) -> int:
    """The most resident memory that a process ever had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_five_gigabytes_go_through_a_broker_that_stays_small(broker_processes, tmp_path: Path) -> None:
    """On a folder, where the bytes pass through the broker both ways: under 300 MiB, journal and etcetera included."""
    free = shutil.disk_usage(tmp_path).free
    if free < SIZE + 2048 * MIB:
        pytest.skip(f"{free // MIB} MiB of disk are free; this takes {SIZE // MIB}")
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE // 2)
        file.write(b"amid the zeros")
    broker = broker_processes(forks=False)
    pid = broker.process.pid
    assert psutil.Process(pid).memory_info().rss < 300 * MIB
    with Client(broker.url) as client:
        client.create_topic("films")
        with client.producer("films") as producer:
            receipt = producer.send_file(path, key="large")
        assert receipt.result(60)
        (message,) = client.fetch("films", 0, 0).messages
        assert message.reference.size == SIZE
        found, at = b"", 0
        with message.open() as payload:
            while data := payload.read(CHUNK):
                found += data[SIZE // 2 - at :][:14] if at <= SIZE // 2 < at + len(data) else b""
                at += len(data)
        assert (at, found) == (SIZE, b"amid the zeros")
    assert peak_mib(pid) < 300
    os.unlink(path)
