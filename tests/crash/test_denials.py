"""A broker is killed while it denies a JSON Web Token or takes that back, and coordination may be lost as well: whoever
was told of a denial can rely on it, and a repeat brings what was begun to its end.
"""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from seaweedq.access.tokens import name_of_denied
from tests.support.chaos.cluster import waited
from tests.support.http.issuer import AUDIENCE, Issuer, issuing
from tests.support.processes.broker_process import BrokerProcess
from tests.support.processes.lost_cluster import LostCluster, LostDatabase
from tests.support.tiers import later, soaked

pytestmark = pytest.mark.process
WITHIN_S = 60.0
DENIED = {"kind": "jti", "value": "j1", "expires_s": 600}
DENIAL = f"/v1/denials/{name_of_denied('jti', 'j1')}"
Asks = Callable[[BrokerProcess], httpx.Response]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as found:
        yield found


def of(issuer: Issuer) -> tuple[str, ...]:
    return "--oidc-issuer", issuer.url, "--oidc-audience", AUDIENCE


def ask(url: str, method: str, path: str, token: str | None = None, **more: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.request(method, f"{url}{path}", headers=headers, timeout=60, trust_env=False, **more)


def deny(broker: BrokerProcess) -> httpx.Response:
    return ask(broker.url, "POST", "/v1/denials", json=DENIED)


def allow(broker: BrokerProcess) -> httpx.Response:
    return ask(broker.url, "DELETE", DENIAL)


def killed(broker: BrokerProcess, asks: Asks) -> None:
    with pytest.raises(httpx.TransportError):
        asks(broker)
    assert broker.wait_gone() == -signal.SIGKILL


def rebuilt(broker: BrokerProcess, of_issuer: tuple[str, ...], make: Callable[..., BrokerProcess]) -> BrokerProcess:
    """A copy of the broker, which lost its coordination as well."""
    folder = shutil.copytree(broker.data_dir, broker.data_dir.with_name("copy"))
    LostDatabase(folder).empty()
    copy = make(*of_issuer, data_dir=folder, start=False)
    copy.start(wait=False)
    assert waited(lambda: waits(copy), WITHIN_S)
    assert ask(copy.url, "POST", "/v1/cluster/rebuild", json={}).status_code == 200
    copy.wait_ready()
    return copy


def waits(broker: BrokerProcess) -> bool:
    try:
        return "restored" in ask(broker.url, "GET", "/readyz").text
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("place", "without_coordination"),
    [later("change.put:2", 200), ("change.made:2", 401)],  # the first change is the key of the journal
)
def test_a_denial_that_was_cut_off_holds_and_can_be_repeated(
    broker_process: Callable[..., BrokerProcess], issuer: Issuer, place: str, without_coordination: int
) -> None:
    broker = broker_process(*of(issuer), env={"SEAWEEDQ_FAIL_AT": place})
    token = issuer.token(jti="j1")
    assert ask(broker.url, "GET", "/v1/whoami", token).status_code == 200
    killed(broker, deny)
    copy = rebuilt(broker, of(issuer), broker_process)
    assert ask(copy.url, "GET", "/v1/whoami", token).status_code == without_coordination
    broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
    for one in (broker, copy):
        assert deny(one).status_code == 201
        assert ask(one.url, "GET", "/v1/whoami", token).status_code == 401
        assert len(ask(one.url, "GET", "/v1/denials").json()["denials"]) == 1
    assert ask(broker.url, "GET", "/v1/whoami", issuer.token(jti="j2")).status_code == 200


@pytest.mark.parametrize(("place", "without_coordination"), [later("change.put:3", 401), later("change.made:3", 200)])
def test_a_denial_taken_back_stays_in_the_store_until_it_is_done(
    broker_process: Callable[..., BrokerProcess], issuer: Issuer, place: str, without_coordination: int
) -> None:
    broker = broker_process(*of(issuer), env={"SEAWEEDQ_FAIL_AT": place})
    token = issuer.token(jti="j1")
    assert deny(broker).status_code == 201
    killed(broker, allow)
    copy = rebuilt(broker, of(issuer), broker_process)
    assert ask(copy.url, "GET", "/v1/whoami", token).status_code == without_coordination
    broker.start(env={"SEAWEEDQ_FAIL_AT": ""})
    assert ask(broker.url, "GET", "/v1/whoami", token).status_code == 200
    assert [allow(broker).status_code for _ in range(2)] == [204, 404]
    assert allow(copy).status_code == (204 if without_coordination == 401 else 404)
    for one in (broker, copy):
        assert ask(one.url, "GET", "/v1/whoami", token).status_code == 200


@pytest.mark.service
@pytest.mark.parametrize("place", [soaked("change.put"), later("change.made")])
def test_a_denial_is_kept_if_etcd_loses_it_before_the_answer(
    lost_cluster: Callable[..., LostCluster], issuer: Issuer, place: str
) -> None:
    """The broker stands still between two writes, while etcd loses everything; it goes on before anybody notices."""
    cluster = lost_cluster(*of(issuer), count=1)
    token, first = issuer.token(jti="j1"), cluster.processes[0]
    cluster.stop(0)
    first.start(env={"SEAWEEDQ_FAIL_AT": f"{place}:1:stop"})
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(status, first.url, "POST", "/v1/denials", json=DENIED)
        assert waited(lambda: is_stopped(first), WITHIN_S), "the place was not reached"
        cluster.lost.empty()
        assert first.process
        os.kill(first.process.pid, signal.SIGCONT)
        told = asked.result() == 201
    assert waited(lambda: cluster.waits(first.url), WITHIN_S), "nobody notices"
    cluster.come_back()
    assert waited(lambda: status(first.url, "GET", "/v1/whoami", token) in (200, 401), WITHIN_S)
    is_denied = status(first.url, "GET", "/v1/whoami", token) == 401
    assert is_denied or not (told or place == "change.made")
    assert waited(lambda: status(first.url, "POST", "/v1/denials", json=DENIED) == 201, WITHIN_S)
    assert status(first.url, "GET", "/v1/whoami", token) == 401


def status(url: str, *request: Any, **more: Any) -> int:
    """The status of an answer, 0 without one."""
    try:
        return ask(url, *request, **more).status_code
    except httpx.TransportError:
        return 0


def is_stopped(broker: BrokerProcess) -> bool:
    assert broker.process
    with open(f"/proc/{broker.process.pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"
