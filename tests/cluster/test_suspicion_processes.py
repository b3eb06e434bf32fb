"""Processes that die cost no lease, not even a subscription, since their parent says so; one that stands still keeps
its lease, and what it had goes on once it does."""

import time
from collections.abc import Callable

import pytest

from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.together import BROKERS, started

pytestmark = pytest.mark.process

LEASE_S = 60.0  # longer than the test


@pytest.mark.long
def test_a_killed_broker_costs_no_lease_and_one_that_stands_still_keeps_it(
    broker_process: Callable[..., BrokerProcess],
) -> None:
    with started(broker_process, LEASE_S) as together:
        together.make()
        together.subscribe(0)
        together.publish(1, 60)
        together.ack(1, together.pull(0, max_messages=20))
        dispatcher = together.settled()
        other = (dispatcher + 1) % BROKERS
        with together.stopped(dispatcher):
            time.sleep(3)
            assert len(together.get(other, "/v1/cluster")["brokers"]) == BROKERS
        assert together.process.log.count("is no longer a member") == 0
        together.signal(dispatcher)
        end_s = time.monotonic() + LEASE_S / 2
        while len(together.acked) < 60:
            assert time.monotonic() < end_s
            answer = together.ask("POST", other, "/v1/topics/t/subscriptions/s/pull", json={"wait_s": 1})
            if answer.status_code == 200:
                together.ack(other, answer.json()["messages"])
        assert "because the broker's process has ended" in together.process.log
