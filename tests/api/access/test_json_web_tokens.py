"""JSON Web Tokens at brokers, with an issuer behind HTTP that works, goes away and attacks."""

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from seaweedq.api.connections.protocol import MAX_HEAD_BYTES
from seaweedq.broker.access import callers, issuer_keys
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import until
from tests.support.http.issuer import AUDIENCE, Issuer, Mode, issuing
from tests.support.http.with_tokens import Http, access

pytestmark = pytest.mark.brokers
WHO = "/v1/whoami"


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with issuing() as found:
        yield found


def settings_of(issuer: Issuer, **more: Any) -> dict[str, Any]:
    roles = "reader=describe,read:flights; writer=publish,create:flights; operator=metrics"
    return {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_roles": roles, **more}


async def denials(http: Http, count: int) -> None:
    """Wait until all brokers know so many."""
    await until(lambda: all(len(inside.callers(one).view.denials) == count for one in http.together.brokers))


async def test_a_token_publishes_by_its_role_and_the_audit_says_which(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "seaweedq.audit")
    async with access(tmp_path, audit="log", **settings_of(issuer)) as http:
        token = issuer.token(roles=["writer"], jti="j7", sub="alice smith/ops")
        sent = await http("POST", "/v1/topics/flights/messages", token, json={"value": 1})
        assert sent.status_code == 200, sent.text
        headers = {"producer-id": "p", "producer-sequence": "1"}
        for duplicate in (None, True):
            again = await http("POST", "/v1/topics/flights/messages", token, headers=headers, json={"value": 1})
            assert again.json().get("duplicate") is duplicate, again.text
        found = (await http("GET", WHO, token)).json()
        assert (found["principal"], found["token"], found["identity"]) == ("oidc:alice smith/ops", "jwt:j7", "jwt")
        assert await http.status("GET", "/v1/topics/flights/segments/0/messages", token) == 403
        assert (await http("GET", WHO, http.admin)).json()["identity"] == "token"
        assert await http.status("GET", WHO, issuer.token(aud="other", jti="j8")) == 401
    events = [json.loads(record.message) for record in caplog.records if record.name == "seaweedq.audit"]
    created = next(one for one in events if one["audit"] == "change")
    shown = {name: created[name] for name in ("principal", "token", "identity", "topic")}
    assert shown == {"principal": "oidc:alice smith/ops", "token": "jwt:j7", "identity": "jwt", "topic": "flights"}
    refused = next(one for one in events if one.get("reason") == "jwt-audience")
    assert (refused["token"], refused["status"], refused.get("principal")) == ("jwt:j8", 401, None)
    assert not any(token.rpartition(".")[2] in record.getMessage() for record in caplog.records)


async def test_one_text_for_all_that_is_refused(tmp_path: Path, issuer: Issuer) -> None:
    async with access(tmp_path, **settings_of(issuer)) as http:
        good = issuer.token()
        assert await http.status("GET", WHO, good) == 200
        bad = [
            *(issuer.token(iss="https://evil.example"), issuer.token(exp=1), issuer.token(headers={"jku": issuer.url})),
            *(good[:-4] + "AAAA", "eyJhbGciOiJub25lIn0.e30.", issuer.token(headers={"kid": "k9"}), "sq1_x"),
        ]
        answers = {(await http("GET", WHO, one)).text for one in bad}
        assert len(answers) == 1
        assert "jwt" not in answers.pop()
        large = "eyJ" + "a" * (MAX_HEAD_BYTES // 2) + ".e.e"
        assert await http.status("GET", WHO, large) == 401
        metrics = (await http("GET", "/metrics", http.admin)).text
        assert 'seaweedq_jwts_refused_total{reason="jwt-length"} 1.0' in metrics
        assert 'seaweedq_jwts_refused_total{reason="jwt-signature"} 1.0' in metrics
        assert 'seaweedq_oidc_fetches_total{outcome="ok"} 1.0' in metrics
        assert "seaweedq_oidc_keys_age_seconds" in metrics


@pytest.mark.parametrize("kind", ["jti", "sub"])
async def test_a_denial_ends_streams_on_all_brokers_at_once(
    tmp_path: Path, issuer: Issuer, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(callers, "LOOK_S", 3600.0)  # the watch alone ends them
    async with access(tmp_path, 3, **settings_of(issuer)) as http:
        assert await http.status("PUT", "/v1/topics/flights", http.admin, json={}) == 201
        token = issuer.token(roles=["reader"], jti="j1", sub="system:serviceaccount:ns:a")
        sent: list[list[Any]] = [[], [], []]
        path = "/v1/topics/flights/stream"
        streams = [asyncio.create_task(http.stream(path, token, at, sent[at])) for at in range(3)]
        await until(lambda: all(sent))
        body = {"kind": kind, "value": "j1" if kind == "jti" else "system:serviceaccount:ns:a", "note": "leaked"}
        made = await http("POST", "/v1/denials", http.admin, json=body)
        assert made.status_code == 201, made.text
        await asyncio.wait_for(asyncio.gather(*streams), 60)
        assert all(b"event: bye" in b"".join(part.get("body", b"") for part in parts) for parts in sent)
        assert [await http.status("GET", WHO, token, at) for at in range(3)] == [401] * 3
        assert await http.status("GET", WHO, issuer.token(jti="j2", sub="b"), 1) == 200
        listed = (await http("GET", "/v1/denials", http.admin, 2)).json()["denials"]
        assert [(one["kind"], one["value"], one["issuer"]) for one in listed] == [(kind, body["value"], "admin")]
        denial = f"/v1/denials/{listed[0]['id']}"
        assert [await http.status("DELETE", denial, http.admin) for _ in range(2)] == [204, 404]
        await denials(http, 0)
        assert await http.status("GET", WHO, token, 1) == 200


async def test_a_principal_that_is_disabled_ends_the_streams_of_its_tokens(tmp_path: Path, issuer: Issuer) -> None:
    async with access(tmp_path, 2, **settings_of(issuer)) as http:
        assert await http.status("PUT", "/v1/topics/flights", http.admin, json={}) == 201
        grants = [{"actions": ["read"], "topics": ["flights"]}]
        await http.principal("alice", grants)
        token, sent = issuer.token(), list[Any]()
        stream = asyncio.create_task(http.stream("/v1/topics/flights/stream", token, 1, sent))
        await until(lambda: sent)
        await http.principal("alice", grants, disabled=True)
        await asyncio.wait_for(stream, 60)
        assert await http.status("GET", WHO, token, 1) == 401
        await http.principal("alice", grants)
        assert (await http("GET", WHO, token, 1)).json()["principal"] == "alice"


async def test_a_stream_ends_with_its_token(tmp_path: Path, issuer: Issuer) -> None:
    async with access(tmp_path, **settings_of(issuer)) as http:
        assert await http.status("PUT", "/v1/topics/flights", http.admin, json={}) == 201
        sent: list[Any] = []
        now_s = http.together.brokers[0].process.clock.now_us() / 1e6
        token = issuer.token(roles=["reader"], exp=now_s - 59)
        stream = asyncio.create_task(http.stream("/v1/topics/flights/stream", token, 0, sent))
        await until(lambda: sent)
        await asyncio.wait_for(stream, 60)
        assert await http.status("GET", WHO, token) == 401


async def test_a_caller_without_a_principal_leaves_nothing_behind(tmp_path: Path, issuer: Issuer) -> None:
    roles = "all=describe,create,publish,read,consume,subscribe:*"
    async with access(tmp_path, **settings_of(issuer, oidc_roles=roles)) as http:
        token = issuer.token(roles=["all"])
        assert await http.status("PUT", "/v1/topics/t", token, json={}) == 201
        sub, wanted = "/v1/topics/t/subscriptions/s", {"dead_letter_topic": "dead"}
        refused = await http("PUT", sub, token, json=wanted)
        assert (refused.status_code, "with the rights of the principal" in refused.text) == (403, True)
        assert await http.status("PUT", sub, token, json={}) == 201
        assert await http.status("POST", "/v1/tokens", token, json={}) == 422
        assert await http.status("POST", "/v1/denials", token, json={"kind": "sub", "value": "x"}) == 403
        assert (await http("GET", "/v1/principals", http.admin)).json() == {"principals": []}


async def test_subjects_without_principals_have_the_default_limits(tmp_path: Path, issuer: Issuer) -> None:
    async with access(tmp_path, **settings_of(issuer)) as http:
        await http("PUT", "/v1/principals/*", http.admin, json={"limits": {"requests": 1, "topics": 1}})
        a, b = issuer.token(sub="a", roles=["writer"]), issuer.token(sub="b", roles=["writer"])
        statuses = [await http.status("GET", WHO, a) for _ in range(40)]
        assert 429 in statuses
        assert await http.status("GET", WHO, b) == 200, "each has its own"


ATTACKS: list[tuple[Mode, str]] = [
    ("hangs", "no answer within"),
    ("endless", "more than 262144 bytes"),
    ("redirects", "answered 302"),
    ("fails", "answered 500"),
    ("lies", "not 'https://evil.example'"),
    ("nonsense", "not a JSON object"),
    ("plain", "must be an https:// URL"),
]


@pytest.mark.parametrize(("mode", "told"), ATTACKS)
async def test_an_issuer_that_attacks_costs_little(
    tmp_path: Path,
    issuer: Issuer,
    mode: Mode,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(issuer_keys, "TOTAL_S", 0.3)
    issuer.mode = mode
    async with access(tmp_path, **settings_of(issuer)) as http:
        began_s = monotonic()
        answer = await http("GET", WHO, issuer.token())
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert monotonic() - began_s < 20
        assert told in caplog.text
        assert await http.status("GET", WHO, http.admin) == 200, "other tokens count"
        for _ in range(20):
            assert await http.status("GET", WHO, issuer.token()) == 503
        assert len(issuer.requests) <= 2, "nobody is asked again before the time"


async def test_a_flood_of_unknown_keys_beside_a_hung_issuer(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer_keys, "EVERY_S", 0.0)
    monkeypatch.setattr(issuer_keys, "TOTAL_S", 60.0)
    async with access(tmp_path, **settings_of(issuer)) as http:
        good = issuer.token()
        assert await http.status("GET", WHO, good) == 200
        issuer.mode = "hangs"
        flood = [
            asyncio.create_task(http.status("GET", WHO, issuer.token(headers={"kid": f"x{number}"})))
            for number in range(100)
        ]
        await until(lambda: len(issuer.requests) == 3)
        assert await http.status("GET", WHO, good) == 200
        assert await http.status("GET", WHO, issuer.token(jti="new")) == 200
        assert not any(one.done() for one in flood), "they wait for the issuer"
        for one in flood:
            one.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        assert len(issuer.requests) == 3, "two, and one that hangs"


async def test_the_brokers_own_token_goes_to_its_issuer(tmp_path: Path, issuer: Issuer) -> None:
    file = tmp_path / "own-token"
    file.write_text("of-this-broker\n")
    async with access(tmp_path / "b", **settings_of(issuer, oidc_token_file=str(file))) as http:
        assert await http.status("GET", WHO, issuer.token()) == 200
    assert issuer.requests == [
        ("/.well-known/openid-configuration", "Bearer of-this-broker"),
        ("/keys", "Bearer of-this-broker"),
    ]


async def test_with_auth_none_a_bad_token_is_not_taken_for_none(tmp_path: Path, issuer: Issuer) -> None:
    async with access(tmp_path, auth="none", **settings_of(issuer)) as http:
        assert await http.status("GET", WHO, None) == 200
        assert (await http("GET", WHO, issuer.token())).json()["principal"] == "oidc:alice"
        assert await http.status("GET", WHO, issuer.token(aud="x")) == 401
        endless = await http("GET", WHO, issuer.token(exp=1e300))
        assert endless.json()["expires_at"].startswith("9999-12-31"), endless.text
        assert await http.status("GET", WHO, "a-proxys-own") == 200
