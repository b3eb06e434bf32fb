"""Brokers of one parent on a fresh folder, with the topic `t`."""

from collections.abc import Callable, Iterator

import pytest
from broker_process import BrokerProcess
from together import BROKERS, LEASE_S, Together, free_ports, gone, until


@pytest.fixture
def together(broker_process: Callable[..., BrokerProcess]) -> Iterator[Together]:
    process = broker_process("--brokers", str(BROKERS), "--lease-s", str(LEASE_S), port=free_ports())
    brokers = Together(process)
    brokers.wait_ready()
    brokers.make()
    yield brokers
    pids = [brokers.pid(n) for n in range(BROKERS)]
    process.kill()
    until(lambda: all(map(gone, pids)))
    brokers.http.close()
