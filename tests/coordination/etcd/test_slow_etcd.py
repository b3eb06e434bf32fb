"""An etcd whose every answer comes late, also to the first calls of a connection."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.etcd import Access, EtcdCoordination
from seaweedq.coordination.membership import Aside, BrokerIdentity, Membership
from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.tcp_proxy import LoopThread, TcpProxy

pytestmark = pytest.mark.service

LATE_S = 1.2
LEASE_S = 5


@pytest.fixture
def proxy(etcd_server: EtcdServer) -> Iterator[TcpProxy]:
    thread = LoopThread()
    proxy = TcpProxy(thread, etcd_server.endpoint).start()
    yield proxy
    proxy.stop()
    thread.close()


@pytest.mark.long
async def test_an_etcd_that_answers_late_ends_no_life(proxy: TcpProxy, tmp_path: Path) -> None:
    proxy.delay(LATE_S / 2)  # in each way
    coordination = EtcdCoordination(Access([f"127.0.0.1:{proxy.port}"]), f"{tmp_path}/")
    await coordination.get("x")  # to connect takes three times as long
    lost: list[str] = []
    member = Membership(
        coordination,
        SystemClock(),
        BrokerIdentity.of(SystemIds(), "b", ""),
        LEASE_S,
        lambda: lost.append("lost"),
        aside=Aside,
    )
    await member.start()
    end_s = time.monotonic() + 2 * LEASE_S
    while time.monotonic() < end_s:
        assert member.valid()
        await asyncio.sleep(0.05)
    assert not lost
    assert member.missed_renewals == 0
    await member.stop()
    await coordination.close()
