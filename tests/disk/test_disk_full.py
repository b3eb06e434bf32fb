"""A broker whose disk is full: nothing is acknowledged that is not durable, it says so, lives on, and recovers by
itself."""

from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.processes.bounded_client import Publisher, is_problem, wait_for
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

Disks = Callable[[int, int], "SmallDisk"]  # noqa: F821
BrokerOn = Callable[..., BrokerProcess]
PublisherTo = Callable[..., Publisher]
MIB = 1024 * 1024
PATIENCE = ("--publish-timeout-s", "2")


@pytest.mark.long
def test_one_full_disk_for_all(small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo) -> None:
    disk = small_disk(24, 14)
    broker = broker_on(disk.path / "data", *PATIENCE, "--lease-s", "1")
    publisher = publisher_to(broker)
    refused = publisher.until_refused()
    is_problem(refused, "journal-unavailable")
    assert "No space left" in refused.json()["detail"]
    disk.fill()
    is_problem(publisher.flush(), "store-unavailable")
    answers = (publisher.create(f"new-{n}") for n in range(100))
    is_problem(next(a for a in answers if a.status_code != 201), "store-unavailable", "coordination-unavailable")
    assert broker.ready(), "a full disk cost the broker its lease"
    assert {*publisher.acked} <= {*publisher.read()}
    disk.make_room()
    publisher.until_taken()
    assert publisher.create("newest").status_code == 201
    publisher.check(broker.store)
    broker.terminate()


def test_a_full_disk_and_a_kill(small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo) -> None:
    disk = small_disk(24, 14)
    broker = broker_on(disk.path / "data")
    publisher = publisher_to(broker)
    publisher.until_refused()
    disk.fill()
    broker.kill()
    disk.make_room()
    broker.start()
    publisher.until_taken()
    publisher.check(broker.store)


@pytest.mark.long
def test_sigterm_while_a_start_waits_for_room(
    small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo
) -> None:
    disk = small_disk(24, 10)
    broker = broker_on(disk.path / "data")
    publisher = publisher_to(broker)
    publisher.until_refused()
    broker.kill()
    disk.leave(2)  # enough for the probe of the store, not for what the journal holds
    broker.start(wait=False)
    wait_for(lambda: "cannot store topics/events" in broker.log)
    assert not broker.ready()
    broker.terminate()
    disk.make_room(100)
    broker.start()
    publisher.check(broker.store)


@pytest.mark.long
def test_a_start_on_a_full_disk_says_so(small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo) -> None:
    disk = small_disk(24, 14)
    broker = broker_on(disk.path / "data")
    publisher = publisher_to(broker)
    publisher.until_refused()
    broker.kill()
    disk.fill()
    broker.start(wait=False)
    assert broker.wait_gone(30) == 1
    assert "No space left" in broker.log.splitlines()[-1]
    disk.make_room()
    broker.start()
    publisher.check(broker.store)


@pytest.mark.long
def test_a_full_store_alone(small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo, tmp_path: Path) -> None:
    """Publishes go on until the memory budget is used up; then they are refused, and memory stays within it."""
    disk = small_disk(16, 8)
    store = disk.path / "store"
    options = ["--store", f"file://{store}", "--memory-budget-bytes", str(64 * MIB), "--shutdown-s", "3", *PATIENCE]
    broker = broker_on(tmp_path / "data", *options, forks=False)  # its memory is looked at
    publisher = publisher_to(broker, size=500_000)
    disk.fill()
    process = psutil.Process(broker.process.pid)
    before = process.memory_info().rss
    is_problem(publisher.until_refused(), "overloaded")
    assert len(publisher.acked) > 60, "publishes were refused long before the budget was used up"
    for _ in range(100):
        publisher.send()
    assert process.memory_info().rss - before < 3 * 64 * MIB
    wait_for(lambda: _store_refuses(publisher.flush()), 60)
    is_problem(publisher.create("new"), "overloaded", "store-unavailable")  # as its body finds memory or not
    assert broker.ready()
    assert broker.terminate() < 5, "a store that is full kept it from stopping"
    disk.make_room(200)
    broker.start()
    publisher.until_taken()
    publisher.check(store)


def _store_refuses(answer: httpx.Response) -> bool:
    """Whether the store's refusal came within the patience: on a busy machine encoding 64 MiB alone takes longer."""
    is_problem(answer, "store-unavailable", "unavailable")
    return bool(answer.json()["type"] == "/problems/store-unavailable")


def test_a_store_that_gets_room_is_written_without_a_request(
    small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo, tmp_path: Path
) -> None:
    disk = small_disk(16, 8)
    store = disk.path / "store"
    broker = broker_on(tmp_path / "data", "--store", f"file://{store}", "--flush-max-bytes", str(MIB))
    publisher = publisher_to(broker, size=100_000)
    disk.fill()
    for _ in range(30):
        assert publisher.send().status_code == 200, "the journal has room"
    wait_for(lambda: "cannot store topics/events" in broker.log)
    assert not list((store / "_tmp").iterdir()), "a full disk is made fuller"
    disk.make_room()
    wait_for(lambda: len(list((store / "topics/events/segment=0").iterdir())) > 1)
    publisher.check(store)


def test_a_full_journal_alone(
    small_disk: Disks, broker_on: BrokerOn, publisher_to: PublisherTo, tmp_path: Path
) -> None:
    disk = small_disk(24, 14)
    broker = broker_on(disk.path / "data", "--store", f"file://{tmp_path}/store", "--journal-file-bytes", str(MIB))
    publisher = publisher_to(broker)
    is_problem(publisher.until_refused(), "journal-unavailable")
    assert publisher.flush().status_code == 200, "the store has room"
    publisher.until_taken()  # what was flushed has made room in the journal
    disk.fill()
    is_problem(publisher.until_refused(), "journal-unavailable")
    disk.make_room()
    publisher.until_taken()
    publisher.check(tmp_path / "store")
    broker.terminate()
