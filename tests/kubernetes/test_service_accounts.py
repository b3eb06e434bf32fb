"""Tokens of Kubernetes' service accounts, from a real API server, with the values that the chart shows for them."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.release import Release

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.long, pytest.mark.timeout(300)]
ADMIN = "the-admin-token-of-these-tests-alone"
SUBJECT = "system:serviceaccount:flights:importer"
WITHIN_S = 20.0


@pytest.fixture(scope="module")
def case() -> str:
    return "service-accounts"


@pytest.fixture(scope="module")
def more(plane: ControlPlane, kubelet: Kubelet) -> dict[str, Any]:
    """What this cluster has otherwise than the chart's file of values: the URL of the issuer, as the API server says.
    The secret with the admin token is made, and the service accounts of the clients."""
    data = {"stringData": {"token": ADMIN}, "metadata": {"name": "queue-admin-token"}}
    plane.api.create({"apiVersion": "v1", "kind": "Secret", **data}, kubelet.namespace)
    plane.api.namespace("flights")
    for name in ("importer", "other"):
        plane.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, "flights")
    issuer = plane.api.get("/.well-known/openid-configuration")["issuer"]
    return {"config": {"oidc_issuer": issuer}, "replicaCount": 1}


@pytest.fixture
def http(release: Release) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=release.url, trust_env=False, timeout=30) as client:
        yield client


def ask(http: httpx.Client, token: str, method: str, path: str, body: Any = None) -> int:
    """The status of an answer."""
    return http.request(method, f"/v1/{path}", json=body, headers={"authorization": f"Bearer {token}"}).status_code


async def test_a_token_for_brokers_gives_its_role_until_it_is_denied(release: Release, http: httpx.Client) -> None:
    api, message = release.api, {"value": 1}
    token = api.token("flights", "importer", "seaweedq")
    assert ask(http, ADMIN, "PUT", "topics/flights", {}) == 201
    assert ask(http, ADMIN, "PUT", "topics/others", {}) == 201
    assert ask(http, token, "POST", "topics/flights/messages", message) == 200
    assert ask(http, token, "POST", "topics/others/messages", message) == 403
    assert ask(http, token, "GET", "cluster") == 403
    for_the_api_server, for_another = api.token("flights", "importer"), api.token("flights", "importer", "vault")
    assert ask(http, for_the_api_server, "POST", "topics/flights/messages", message) == 401
    assert ask(http, for_another, "POST", "topics/flights/messages", message) == 401
    without_role = api.token("flights", "other", "seaweedq")
    assert ask(http, without_role, "POST", "topics/flights/messages", message) == 403
    # Brokers do not ask whether the account is still there: only a denial ends its tokens.
    assert api.ask("DELETE", "/api/v1/namespaces/flights/serviceaccounts/importer").status_code == 200
    assert ask(http, token, "POST", "topics/flights/messages", message) == 200
    assert ask(http, ADMIN, "POST", "denials", {"kind": "sub", "value": SUBJECT}) == 201
    until = time.monotonic() + WITHIN_S
    while ask(http, token, "POST", "topics/flights/messages", message) != 401:
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    metrics = http.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"}).text
    refused = [line for line in metrics.splitlines() if line.startswith("seaweedq_jwts_refused_total{")]
    told = {line.split('"')[1]: float(line.rpartition(" ")[2]) for line in refused}
    assert told["jwt-audience"] == 2
    assert told["jwt-denied"] >= 1
