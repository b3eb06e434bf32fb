"""Requests that brokers send, among all that come."""

from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.api.access.peers import PeerRequests
from seaweedq.api.refusals import Refusals
from seaweedq.api.request import CONNECTION
from seaweedq.broker.rpc.peer_sessions import STAMP_HEADER, Refusal, refused
from seaweedq.clock import SystemClock
from seaweedq.errors import PeerRefused


def check_stamp(stamp: str, covered: Any) -> str:
    if stamp != "right":
        raise refused(Refusal.MAC, "no")
    return "b.1"


def test_only_proven_brokers_are_exempt_from_the_bound_of_their_address() -> None:
    requests = PeerRequests(SimpleNamespace(is_apart=False, check_stamp=check_stamp), Refusals(SystemClock()))  # type: ignore[arg-type]
    exempted: list[str] = []

    def scope(stamp: str | None) -> dict[str, Any]:
        headers = [] if stamp is None else [(STAMP_HEADER.lower().encode(), stamp.encode())]
        connection = SimpleNamespace(exempt=lambda: exempted.append(str(stamp)))
        path = {"path": "/v1/topics", "raw_path": b"/v1/topics", "query_string": b""}
        return {"type": "http", "method": "GET", **path, "headers": headers, "extensions": {CONNECTION: connection}}

    assert not requests.authenticated(scope(None))
    with pytest.raises(PeerRefused):
        requests.authenticated(scope("wrong"))
    assert not exempted
    assert requests.authenticated(scope("right"))
    assert exempted == ["right"]
