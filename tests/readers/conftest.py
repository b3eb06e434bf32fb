"""One broker, one client and one Spark session for this folder, and each reader by name."""

from collections.abc import Callable, Iterator

import pytest

from seaweedq import Client
from tests.support.processes.broker_process import BrokerProcess
from tests.support.readers.topic_readers import READERS, SPARK, Reader, spark_reader
from tests.support.tiers import marked


@pytest.fixture(params=[marked(SPARK, "spark"), *READERS])
def reader(request: pytest.FixtureRequest) -> Reader:
    """Each reader in turn."""
    if request.param == SPARK:
        return spark_reader(request.getfixturevalue("spark"))
    return READERS[request.param]


@pytest.fixture(scope="session")
def server(brokers_of_session: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A broker that nothing but the test asks to flush: what the tests leave is below its bounds."""
    return brokers_of_session()


@pytest.fixture(scope="session")
def client(server: BrokerProcess) -> Iterator[Client]:
    """A client of the broker."""
    with Client(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def directory(server: BrokerProcess) -> Callable[[str], str]:
    """The path of a topic's directory: all that a reader is told."""
    return lambda topic: str(server.store / "topics" / topic)
