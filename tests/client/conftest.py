"""What the tests of payloads share: a fake broker with a fake store, and clients of it."""

from collections.abc import Iterator

import httpx
import pytest

from seaweedq import Client
from tests.support.client.fake_store import FakeStore


@pytest.fixture
def store() -> FakeStore:
    """A broker and a store, empty."""
    return FakeStore()


@pytest.fixture
def payload_client(store: FakeStore) -> Iterator[Client]:
    """A client of them that says who it is to brokers."""
    made = Client("http://broker", headers={"Authorization": "mine"}, transport=httpx.MockTransport(store), timeout_s=1)
    with made as client:
        yield client
