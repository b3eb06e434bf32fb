"""Pages of other origins: only listed ones may ask, and never with what a browser keeps."""

from pathlib import Path

import httpx
import pytest

from seaweedq.api.access.cors import CorsRules
from seaweedq.settings import Settings
from tests.support.http.with_tokens import EVERYTHING, access

ORIGIN, FOREIGN = "https://app.example.com", "https://evil.example"
ASKS = {"access-control-request-method": "PUT", "access-control-request-headers": "authorization, content-type"}


def never_with_credentials(answer: httpx.Response) -> bool:
    named = answer.headers.get("access-control-allow-origin")
    return named != "*" and "access-control-allow-credentials" not in answer.headers


async def test_a_listed_origin_may_ask_with_a_token_and_a_foreign_one_may_not(tmp_path: Path) -> None:
    async with access(tmp_path, cors_origins=f"{ORIGIN}, http://localhost:3000") as http:
        await http.principal("p", EVERYTHING)
        token = await http.token(principal="p")
        for path in ("/v1/topics/t", "/v1/topics/none/messages", "/nothing"):
            preflight = await http("OPTIONS", path, headers={"origin": ORIGIN, **ASKS})
            assert preflight.status_code == 204
            assert preflight.headers["access-control-allow-origin"] == ORIGIN
            assert "PUT" in preflight.headers["access-control-allow-methods"]
            assert "Authorization" in preflight.headers["access-control-allow-headers"]
            assert never_with_credentials(preflight)
            refused = await http("OPTIONS", path, headers={"origin": FOREIGN, **ASKS})
            assert refused.status_code in (403, 404)
            assert "access-control-allow-origin" not in refused.headers
        made = await http("PUT", "/v1/topics/t", token, headers={"origin": ORIGIN, "sec-fetch-site": "cross-site"})
        assert (made.status_code, made.headers["access-control-allow-origin"]) == (201, ORIGIN)
        assert never_with_credentials(made)
        unknown = await http("GET", "/v1/topics/t", headers={"origin": ORIGIN})
        assert (unknown.status_code, unknown.headers["access-control-allow-origin"]) == (401, ORIGIN)
        foreign = await http("GET", "/v1/topics/t", token, headers={"origin": FOREIGN})
        assert foreign.status_code == 403
        assert "access-control-allow-origin" not in foreign.headers
        assert [one.headers["vary"] for one in (made, foreign)] == ["Origin"] * 2, "caches keep them apart"


async def test_a_page_may_read_the_headers_by_which_it_goes_on(tmp_path: Path) -> None:
    async with access(tmp_path, cors_origins=ORIGIN) as http:
        headers = {"origin": ORIGIN, "accept": "application/vnd.apache.arrow.stream"}
        await http("PUT", "/v1/topics/t", http.admin)
        page = await http("GET", "/v1/topics/t/segments/0/messages", http.admin, headers=headers)
        assert page.headers["next-offset"] == "0"
        shown = page.headers["access-control-expose-headers"].lower().split(", ")
        assert {"next-offset", "sealed", "successors", "lease"} <= {*shown}


async def test_by_default_no_origin_may(tmp_path: Path) -> None:
    async with access(tmp_path) as http:
        preflight = await http("OPTIONS", "/v1/topics/t", headers={"origin": ORIGIN, **ASKS})
        assert preflight.status_code == 403
        assert "access-control-allow-origin" not in preflight.headers
        assert "vary" not in (await http("GET", "/v1/topics", http.admin)).headers


def test_origins_are_exact() -> None:
    rules = CorsRules(["https://App.example.com/ "])
    assert rules.allow(b"https://app.example.com")
    for other in (b"http://app.example.com", b"https://app.example.com:8443", b"https://app.example.com.evil", b"null"):
        assert not rules.allow(other)
    assert not CorsRules([""]).allow(b"")
    for wrong in ("*", "app.example.com", "https://*.example.com", "https://app.example.com/path"):
        with pytest.raises(ValueError, match="cors_origins"):
            Settings(cors_origins=wrong)
