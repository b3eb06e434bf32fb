"""A broker for all tests of a module, its HTTP client, and topics of each test's own."""

from collections.abc import Callable, Iterator
from zlib import crc32

import httpx
import pytest
from broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(broker_processes: Callable[..., BrokerProcess], request: pytest.FixtureRequest) -> BrokerProcess:
    """One for the module, with its ENV."""
    return broker_processes(env=getattr(request.module, "ENV", {}))


@pytest.fixture(scope="module")
def http(broker: BrokerProcess) -> Iterator[httpx.Client]:
    """A client of the broker."""
    with httpx.Client(base_url=broker.url, trust_env=False, verify=False, timeout=30) as client:
        yield client


@pytest.fixture
def topic(http: httpx.Client, request: pytest.FixtureRequest) -> str:
    """The path of a topic of the test's own, with the defaults."""
    path = f"/v1/topics/r{crc32(request.node.nodeid.encode())}"
    assert http.put(path).status_code == 201
    return path


@pytest.fixture
def octets(http: httpx.Client, topic: str) -> str:
    """The path of a bytes topic of the test's own."""
    assert http.put(f"{topic}-b", json={"format": "bytes"}).status_code == 201
    return f"{topic}-b"
