"""Who has no right learns nothing of what exists: each route answers for an existing name as for a missing one."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from seaweedq.api.routes import SOCKET, Kind
from seaweedq.clock import SystemIds
from tests.support.http.requests import every
from tests.support.http.with_tokens import EVERYTHING, Http, access, id_of

pytestmark = pytest.mark.brokers

THERE = {"topic": "t1", "subscription": "s1", "segment": "0", "schema": "0", "offset": "0", "principal": "p"}
MISSING = {"topic": "t2", "subscription": "s2", "segment": "7", "schema": "7", "offset": "9", "principal": "q"}
EXPIRES_S = 4_000_000_000
SIGNED = ("", f"?expires={EXPIRES_S}&token={'0' * 64}", "?expires=0&token=")
ROUTES = [(m, p, r) for m, p, r in every() if "{" in p and m != SOCKET and r.kind is not Kind.OPEN]


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[Http]:
    """A broker with a topic, a subscription, an upload, a principal and a token."""
    async with access(tmp_path) as found:
        await found.principal("p", EVERYTHING)
        await found("PUT", "/v1/topics/t1", found.admin)
        await found("PUT", "/v1/topics/t1/subscriptions/s1", found.admin, json={})
        yield found


async def test_an_existing_name_is_answered_as_a_missing_one(http: Http) -> None:
    uploads, nonce = "/v1/topics/t1/uploads", SystemIds().nonce()
    upload = (await http("POST", uploads, http.admin, json={"size": 3})).json()
    named = {"uploads": [upload["upload_id"]], "format": "arrow"}
    await http("PUT", "/v1/topics/t1/writes/w1/1?wait_s=0", http.admin, json=named)
    await http.principal("nothing", [])
    there = {
        **THERE,
        "writer": "w1",
        "number": "1",
        "upload": upload["upload_id"],
        "token": id_of(await http.token(principal="p")),
        "denial": (await http("POST", "/v1/denials", http.admin, json={"kind": "sub", "value": "a"})).json()["id"],
    }
    missing = {**MISSING, "writer": "w2", "number": "2", "upload": f"20260131-0-{nonce}", "token": nonce[:16]}
    missing["denial"] = f"sub-{nonce}"
    shown = [None, await http.token(principal="nothing"), http.admin[:-1] + "x"]
    tried = 0
    for method, path, rule in ROUTES:
        for token in shown[1:2] if rule.kind is Kind.KNOWN else shown:  # such a route judges what it shows by itself
            for query in SIGNED if rule.kind is Kind.OWN_RIGHT else SIGNED[:1]:
                answers = [await said(http, method, path, names, token, query) for names in (there, missing)]
                assert answers[0] == answers[1], (method, path)
                assert answers[0][0] in (401, 403), (method, path, answers)
                assert rule.kind is not Kind.OWN_RIGHT or answers[0][0] == 403
                tried += 1
    assert tried > 3 * len([1 for _, _, rule in ROUTES if rule.kind is Kind.ACTION])


async def said(
    http: Http, method: str, path: str, names: dict[str, str], token: str | None, query: str
) -> tuple[int, str]:
    """Status and body of an answer, with the names that were asked for taken out."""
    answer = await http(method, path.format(**names) + query, token, content=b"abc" if method == "PUT" else b"")
    text = json.dumps({**answer.json(), "resource": ""}) if answer.content else ""
    for name in names.values():
        text = text.replace(f"'{name}'", "'...'").replace(f"'{names['topic']}/{name}'", "'...'")
    return answer.status_code, text


async def test_a_guess_at_an_upload_looks_nothing_up_and_is_in_the_audit(
    http: Http, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("DEBUG")
    asked: list[str] = []
    coordination = http.together.coordination
    for read in ("get", "range"):
        real = getattr(coordination, read)

        async def noted(key: str, *more: Any, real: Any = real, **named: Any) -> Any:
            """Reads, and keeps what was asked for."""
            asked.append(key)
            return await real(key, *more, **named)

        monkeypatch.setattr(coordination, read, noted)
    path = f"/v1/topics/guessed/uploads/20260131-0-{SystemIds().nonce()}/content"
    for method in ("PUT", "GET", "HEAD"):
        assert await http.status(method, f"{path}?expires={EXPIRES_S}&token=x", None) == 403
    assert not [key for key in asked if "guessed" in key]
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "seaweedq.audit"]
    found = [(one["method"], one["path"], one["status"], one["reason"]) for one in lines if one["audit"] == "denial"]
    assert found == [(method, path, 403, "forbidden") for method in ("PUT", "GET", "HEAD")]
