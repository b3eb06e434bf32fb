"""What an error says of the installation's inside, addresses above all, is in the log and not in what clients get."""

import logging
from pathlib import Path

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.api.asgi.problems import EVERY_S, InsideLog, problem
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.client import ErrorMessage, Peers
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.etcd.backend import EtcdCoordination
from seaweedq.coordination.etcd.transport import Access
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.errors import CoordinationUnavailable, SeaweedqError, StoreUnavailable, Unavailable
from seaweedq.settings import Settings
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.s3 import S3Store
from tests.support.brokers.environments import environment
from tests.support.processes.broker_process import free_port


class StoppedClock(SystemClock):
    """Stands at `now_s`."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


async def peer(address: str, folder: Path) -> None:
    peers = Peers("secret")
    try:
        await peers.call(f"http://{address}", "status", None, bool, 1)
    finally:
        await peers.close()


async def etcd(address: str, folder: Path) -> None:
    coordination = EtcdCoordination(Access([address]), "x/", timeout_s=0.5)
    try:
        await coordination.get("a")
    finally:
        await coordination.close()


async def s3(address: str, folder: Path) -> None:
    store = S3Store("s3://bucket-inside", f"http://{address}", "path")
    try:
        await store.create("a", b"")
    finally:
        await store.close()


async def disk(address: str, folder: Path) -> None:
    (folder / address).write_text("no folder")
    await LocalStore(folder / address, SystemIds()).create("a", b"")


@pytest.mark.parametrize("act", [peer, etcd, s3, disk])
async def test_an_address_is_inside(act, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    address = f"127.0.0.1:{(port := free_port())}"
    with pytest.raises(Unavailable) as caught:
        await act(address, tmp_path)
    error = ErrorMessage.of(caught.value).error()  # as another broker passes it on
    assert str(error) == str(caught.value)
    assert str(port) in str(error), "the log has it"
    _, _, content = problem(error)
    assert str(port).encode() not in content
    assert b"127.0.0.1" not in content
    assert b"bucket-inside" not in content


async def test_a_problem_leaves_out_what_the_log_gets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(moment: str, name: str) -> None:
        if moment == "before list" and name.startswith("topics/"):
            raise StoreUnavailable("the store answers 500", inside="http://10.1.2.3:8333")

    store, clock = MemoryStore(), SystemClock()
    settings = Settings(data_dir=tmp_path, publish_timeout_s=0.2)
    broker = Broker(environment(settings, store, MemoryCoordination(clock)))
    broker.lock()
    await broker.start()
    try:
        store.faults = refuse
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(Application(broker)), base_url="http://localhost"
        ) as http:
            assert (await http.put("/v1/topics/t")).status_code == 201
            caplog.set_level(logging.WARNING)
            by_fastapi = await http.get("/v1/topics/t")
            hot = await http.post("/v1/topics/t/messages", json={"value": 1})
    finally:
        await broker.stop()
    for answer in (by_fastapi, hot):
        assert (answer.status_code, answer.json()["detail"]) == (503, "the store answers 500")
        assert "10.1.2.3" not in answer.text
    assert [r.getMessage() for r in caplog.records].count(
        "a request was answered with store-unavailable: the store answers 500: http://10.1.2.3:8333"
    ) == 1


def test_each_kind_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    clock = StoppedClock()
    inside = InsideLog(clock)
    for n in range(3):
        inside.note(StoreUnavailable("store", inside=f"s{n}"))
        inside.note(CoordinationUnavailable("coordination", inside=f"c{n}"))
        inside.note(SeaweedqError("nothing inside"))
    clock.now_s += EVERY_S
    inside.note(StoreUnavailable("store", inside="later"))
    assert [r.getMessage().rsplit(" ", 1)[1] for r in caplog.records] == ["s0", "c0", "later"]
