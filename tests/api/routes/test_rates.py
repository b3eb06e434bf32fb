"""Rates of principals: what is over them is refused before its body is read, and costs others nothing."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.access.caller import ANONYMOUS, Caller
from seaweedq.access.limits import Limits
from seaweedq.api.asgi.rates import Rates
from seaweedq.api.routes.access_requests import NOT_ENFORCED
from seaweedq.errors import RateLimited
from tests.api.routes.test_access import EVERYTHING, access

ONE = {"value": 1}


async def test_a_principal_over_its_rate_gets_429_and_another_is_served(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"requests": 0.01})
        await http.principal("free", EVERYTHING)
        slow, free = await http.token(principal="slow"), await http.token(principal="free")
        answers = [await http("GET", "/v1/topics", slow) for _ in range(8)]
        refused = [one for one in answers if one.status_code == 429]
        assert answers[0].status_code == 200
        assert refused
        found = refused[0].json()
        assert found["type"] == "/problems/rate-limited"
        assert (found["limit"], found["rate"]) == ("requests", 0.01)
        assert found["retry_after_s"] > 0
        assert refused[0].headers["retry-after"] == "60"
        assert refused[0].headers["ratelimit"].startswith('"requests";r=0;t=')
        assert (await http("GET", "/v1/topics", free)).status_code == 200
        assert (await http("GET", "/v1/topics", http.admin)).status_code == 200


async def test_a_body_larger_than_the_burst_is_taken_once_and_then_paid_for(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        await http.principal("slow", EVERYTHING, limits={"bytes_in": 100})
        token = await http.token(principal="slow")

        async def chunks() -> Any:
            yield b'{"value": "' + b"x" * 50_000 + b'"}'

        kind = {"content-type": "application/json"}
        sent = await http("POST", "/v1/topics/t/messages", token, content=chunks(), headers=kind)
        assert sent.status_code == 200, "its length is not known before it has come"
        more = await http("POST", "/v1/topics/t/messages", token, json=ONE)
        assert more.status_code == 429
        assert more.json()["retry_after_s"] > 10
        assert (await http("GET", "/v1/topics/t", token)).status_code == 200, "it has no body"


@pytest.mark.parametrize("limit", NOT_ENFORCED)
async def test_a_limit_that_nothing_enforces_is_refused(tmp_path: Path, limit: str) -> None:
    async with access(tmp_path) as http:
        answer = await http("PUT", "/v1/principals/p", http.admin, json={"grants": EVERYTHING, "limits": {limit: 5}})
        assert answer.status_code == 422
        assert answer.json()["field"] == f"limits.{limit}"
        assert f"do not enforce {limit} yet" in answer.json()["detail"]
        assert await http.status("GET", "/v1/principals/p", http.admin) == 404


class Still:
    now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


def scope(method: str = "GET", length: int | None = None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", b"%d" % length)]
    return {"type": "http", "method": method, "path": "/v1/topics", "headers": headers}


def let_in(rates: Rates, caller: Caller, given: dict[str, Any]) -> bool:
    try:
        rates.admit(caller, given)
    except RateLimited:
        return False
    return True


def test_each_broker_lets_in_an_even_share_and_what_one_limit_refuses_costs_no_other() -> None:
    clock, living = Still(), [4]
    rates = Rates(clock, lambda: living[0])  # type: ignore[arg-type]
    caller = Caller("p", limits=Limits(requests=40, bytes_in=4000))
    assert sum(let_in(rates, caller, scope()) for _ in range(50)) == 11, "10, and one into debt"
    clock.now_s = 10
    assert let_in(rates, caller, scope("POST", 100_000))
    clock.now_s = 11
    assert not any(let_in(rates, caller, scope("POST", 1)) for _ in range(50))
    assert sum(let_in(rates, caller, scope()) for _ in range(50)) == 11, "those refused for their bytes took none"
    living[0] = 1
    assert not let_in(rates, caller, scope()), "the share is larger from now on"
    clock.now_s = 13
    assert sum(let_in(rates, caller, scope()) for _ in range(100)) == 41


def test_a_caller_without_limits_and_an_anonymous_one_are_let_in() -> None:
    rates = Rates(Still(), lambda: 1)  # type: ignore[arg-type]
    assert all(let_in(rates, caller, scope()) for caller in (ANONYMOUS, Caller("p")) for _ in range(1000))
