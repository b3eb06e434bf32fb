"""Requests that brokers send, among all that come."""

from types import SimpleNamespace
from typing import Any

import pytest

from seaweedq.api.access.authentication import PeerRequests
from seaweedq.api.refusals import Refusals
from seaweedq.api.request import CONNECTION, Request
from seaweedq.broker.rpc.peer_sessions import STAMP_HEADER, Refusal, refused
from seaweedq.clock import SystemClock
from seaweedq.errors import PeerRefused
from tests.support.http.requests import request_of


def check_stamp(stamp: str, covered: Any) -> str:
    if stamp != "right":
        raise refused(Refusal.MAC, "no")
    return "b.1"


def test_only_proven_brokers_are_exempt_from_the_bound_of_their_address() -> None:
    requests = PeerRequests(SimpleNamespace(is_apart=False, check_stamp=check_stamp), Refusals(SystemClock()))  # type: ignore[arg-type]
    exempted: list[str] = []

    def asked(stamp: str | None) -> Request:
        headers = [] if stamp is None else [(STAMP_HEADER.lower().encode(), stamp.encode())]
        connection = SimpleNamespace(exempt=lambda: exempted.append(str(stamp)))
        more = {"raw_path": b"/v1/topics", "extensions": {CONNECTION: connection}}
        return request_of("GET", "/v1/topics", *headers, **more)

    assert not requests.authenticated(asked(None))
    with pytest.raises(PeerRefused):
        requests.authenticated(asked("wrong"))
    assert not exempted
    assert requests.authenticated(asked("right"))
    assert exempted == ["right"]
