"""A real broker in a process of its own, for the tests of the client that need one."""

import pytest

from seaweedq import Client
from seaweedq.cli.child import Broker, free_port


@pytest.fixture(scope="session")
def real_broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broker")
    with Broker(folder / "data", free_port(), folder / "log") as broker:
        broker.start()
        yield broker


@pytest.fixture
def real_client(real_broker):
    with Client(real_broker.url) as client:
        yield client
