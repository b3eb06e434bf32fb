"""A broker for the tests of a module, and topics of their own on it."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from broker_process import BrokerProcess
from uploading_files import Importer

_numbers = count()


@pytest.fixture(scope="session")
def importing_broker(broker_processes: Callable[..., BrokerProcess]) -> BrokerProcess:
    """One broker that all tests share that do it no harm."""
    return broker_processes()


@pytest.fixture
def importer(importing_broker: BrokerProcess) -> Iterator[Importer]:
    """A topic name that is new, at the shared broker."""
    made = Importer(importing_broker.url, f"t{next(_numbers)}")
    yield made
    made.close()


@pytest.fixture
def importer_of() -> Iterator[Callable[[str], Importer]]:
    """Makes one of the topic `t` at a broker's URL."""
    made: list[Importer] = []

    def make(url: str) -> Importer:
        made.append(Importer(url))
        return made[-1]

    yield make
    for one in made:
        one.close()
