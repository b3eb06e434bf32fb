"""A broker for all tests of a module, which has to be well after each of them."""

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
    path = f"/v1/topics/t{crc32(request.node.nodeid.encode())}"
    assert http.put(path).status_code == 201
    return path


@pytest.fixture(autouse=True)
def well(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the broker is ready, and has logged neither traceback nor error."""
    if "broker" not in request.fixturenames:
        yield
        return
    broker: BrokerProcess = request.getfixturevalue("broker")
    before = len(broker.log)
    yield
    assert broker.ready()
    said = broker.log[before:]
    assert "Traceback" not in said
    assert " ERROR " not in said
