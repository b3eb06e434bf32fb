"""Brokers of one parent on a fresh folder, with the topic `t`."""

from collections.abc import Callable, Iterator

import pytest
from broker_process import BrokerProcess
from together import Together, started


@pytest.fixture
def together(broker_process: Callable[..., BrokerProcess]) -> Iterator[Together]:
    with started(broker_process) as brokers:
        brokers.make()
        yield brokers
