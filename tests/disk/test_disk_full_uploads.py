"""A payload that does not fit on the disk: it is refused, leaves nothing, and takes nobody down; later it fits."""

import os
from collections.abc import Callable
from random import Random

import httpx
import pytest

from tests.support.processes.bounded_client import Publisher, is_problem, wait_for
from tests.support.processes.broker_process import BrokerProcess

pytestmark = pytest.mark.process

Disks = Callable[[int, int], "SmallDisk"]  # noqa: F821
MIB = 1024 * 1024
SIZE = 16 * MIB


def test_a_payload_that_does_not_fit(
    small_disk: Disks, broker_on: Callable[..., BrokerProcess], publisher_to: Callable[..., Publisher]
) -> None:
    disk = small_disk(48, 36)
    broker = broker_on(disk.path / "data")
    publisher = publisher_to(broker)
    publisher.until_taken()
    topic = publisher.path
    announced = publisher.http.post(f"{topic}/uploads", json={"size": SIZE}).json()
    data = Random(0).randbytes(SIZE)

    def put() -> httpx.Response:
        return publisher.http.put(announced["url"], content=data, headers=announced["headers"])

    is_problem(put(), "store-unavailable")
    assert os.listdir(broker.store / "_tmp") == []
    publisher.until_taken()
    assert publisher.http.post(f"{topic}/uploads/{announced['upload_id']}/complete").status_code == 409
    disk.make_room()
    wait_for(lambda: put().status_code == 201)
    reference = {"reference": {"upload_id": announced["upload_id"]}}
    published = publisher.http.post(f"{topic}/messages", json=reference)
    assert published.status_code == 200, published.text
    assert os.listdir(broker.store / "_tmp") == []
    broker.terminate()
