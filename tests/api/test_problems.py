"""Problems: what each error becomes, with its status and headers. Refusals are counted by reason and logged: each bound
that strangers meet has a metric, a log line and a place in the docs.
"""

import json
import logging
from pathlib import Path

import httpx
import pytest

from seaweedq import errors
from seaweedq.api.app import Application
from seaweedq.api.problems import CONTENT_TYPE, EVERY_S, REASONS, STATUS, InsideLog, problem, unexpected
from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.messages import ErrorMessage
from seaweedq.broker.uploads.rules import upload_id
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.etcd import EtcdCoordination
from seaweedq.coordination.etcd_transport import Access
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.errors import CoordinationUnavailable, SeaweedqError, StoreUnavailable, Unavailable, by_slug
from seaweedq.settings import Settings
from seaweedq.storage.local import LocalStore
from seaweedq.storage.memory import MemoryStore
from seaweedq.storage.s3 import S3Store
from tests.support.brokers.environments import environment
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.peer_client import stranger_peers
from tests.support.brokers.reshaped import at
from tests.support.paths import ROOT
from tests.support.processes.broker_process import free_port

KINDS = sorted(by_slug().values(), key=lambda kind: kind.slug)


def subclasses(kind: type[SeaweedqError]) -> set[type[SeaweedqError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_no_error_is_unmapped_and_no_slug_is_taken_twice() -> None:
    here = {kind for kind in subclasses(SeaweedqError) if kind.__module__.startswith(errors.__name__)}
    assert here == set(STATUS)
    assert len({kind.slug for kind in here}) == len(here)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slug)
def test_an_error_is_a_whole_problem(kind: type[SeaweedqError]) -> None:
    status, headers, content = problem(kind("what was wrong", type="not mine to say", bound=7))
    assert headers["content-type"] == CONTENT_TYPE == "application/problem+json"
    assert json.loads(content) == {
        "type": f"/problems/{kind.slug}",
        "title": kind.title,
        "status": status,
        "detail": "what was wrong",
        "bound": 7,
    }
    expected = {"content-type": CONTENT_TYPE}
    if status == 503:
        expected["retry-after"] = "1"
    elif kind is errors.RateLimited:
        expected |= {"retry-after": "1", "ratelimit": '"requests";r=0;t=1', "ratelimit-policy": '"requests";q=0;w=1'}
    elif kind is errors.Unauthenticated:
        expected["www-authenticate"] = 'Bearer realm="seaweedq"'
    elif status == 408:
        expected["connection"] = "close"
    assert headers == expected


def test_which_errors_say_when_to_try_again() -> None:
    saying = {kind.__name__ for kind in KINDS if "retry-after" in problem(kind("what was wrong"))[1]}
    unavailable = {"CoordinationUnavailable", "Fenced", "JournalUnavailable", "NeedsNewerBroker", "NotOwner"}
    more = {"NotReady", "Overloaded", "PartlyTaken", "PeerTooOld", "Restored", "StoreUnavailable"}
    assert saying == unavailable | more | {"RateLimited", "Unavailable"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slug)
def test_what_clients_send_is_never_a_500(kind: type[SeaweedqError]) -> None:
    if issubclass(kind, errors.BadRequest):
        assert 400 <= STATUS[kind] < 500
    elif issubclass(kind, Unavailable):
        assert STATUS[kind] == 503


def test_when_to_try_again_is_said() -> None:
    assert problem(errors.Overloaded("full", retry_after_s=7))[1]["retry-after"] == "7"


def test_a_defect_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    status, _, content = unexpected(ValueError("a secret"))
    assert status == 500
    assert b"secret" not in content
    assert "a secret" in caplog.text


class StoppedClock(SystemClock):
    """Stands at `now_s`."""

    now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


async def peer(address: str, folder: Path) -> None:
    peers = stranger_peers()
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
    error = ErrorMessage.from_error(caught.value).error()  # as another broker passes it on
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
    settings = Settings(data_dir=tmp_path, publish_timeout_s=1)
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
        "a request was answered with the error store-unavailable: the store answers 500: http://10.1.2.3:8333"
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


async def counted(http: httpx.AsyncClient, reason: str) -> float:
    start = f'seaweedq_refusals_total{{reason="{reason}"}} '
    lines = (await http.get("/metrics")).text.splitlines()
    return next(float(line.removeprefix(start)) for line in lines if line.startswith(start))


@pytest.mark.brokers
async def test_what_goes_beyond_a_bound_of_the_cluster_is_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        in_loop(tmp_path, 1, max_topics=1, max_segments=2) as together,
        at(together, together.brokers[0]) as http,
    ):
        for name, reason, more in (("t", "segments", {"initial_segments": 3}), ("t", "", {}), ("u", "topics", {})):
            answer = await http.put(f"/v1/topics/{name}", json=more)
            assert answer.status_code == (429 if reason else 201)
            if reason:
                assert await counted(http, reason) == 1
                assert f"request refused ({reason}): the cluster has" in caplog.text


@pytest.mark.brokers
async def test_a_forged_link_is_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        assert (await http.put("/v1/topics/t", json={})).status_code == 201
        forged = {"expires": "99999999999", "token": "x" * 43}
        answer = await http.get(f"/v1/topics/t/uploads/{upload_id(0, 1, '0' * 32)}/content", params=forged)
        assert answer.status_code == 403
        assert await counted(http, "forbidden") == 1
        assert "request refused (forbidden): the URL has expired" in caplog.text


def test_each_reason_is_explained() -> None:
    page = (ROOT / "docs" / "operate" / "operations.md").read_text()
    assert [reason for reason in REASONS if f"`{reason}`" not in page] == []
