"""The answers at `/` and below `/console`: to whom, with which headers; and the vendored files, which are as pinned."""

import hashlib
import importlib.util
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from seaweedq.api.app import Application
from seaweedq.api.console.pages import LINKS, POLICY, STATIC
from seaweedq.api.routes import Kind
from tests.support.brokers.in_process import running
from tests.support.http.requests import every
from tests.support.paths import ROOT

VENDOR = STATIC / "vendor"


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with running(tmp_path) as broker:
        transport = httpx.ASGITransport(Application(broker))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/json, text/html;q=0", ""])
async def test_programs_get_links_and_each_of_them_leads_somewhere(http: httpx.AsyncClient, accept: str) -> None:
    answer = await http.get("/", headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers["vary"] == "accept"
    assert answer.json()["name"] == "seaweedq"
    assert answer.json()["links"] == LINKS
    for link in LINKS.values():
        assert not link.startswith("/")
        assert (await http.get(f"/{link}")).status_code == 200


async def test_browsers_get_the_page_also_when_another_site_leads_there(http: httpx.AsyncClient) -> None:
    led = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "sec-fetch-site": "cross-site"}
    answer = await http.get("/", headers=led)
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["vary"] == "accept"
    again = await http.get("/", headers={**led, "if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await http.head("/", headers=led)).headers["etag"] == answer.headers["etag"]
    assert (await http.get("/v1/topics", headers=led)).status_code == 403  # the API's rules stay
    assert (await http.get("/", headers={**led, "host": "stranger.example"})).status_code == 421


async def test_all_files_are_served_with_a_policy_and_nothing_else_is(http: httpx.AsyncClient) -> None:
    for path in STATIC.rglob("*"):
        if path.is_file() and path.name != "index.html":
            answer = await http.get(f"/console/{path.relative_to(STATIC)}")
            assert answer.content == path.read_bytes()
            assert answer.headers["content-security-policy"] == POLICY
            assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await http.get("/console/app.js")).headers["content-type"].startswith("text/javascript")
    for name in ("nothing", "index.html", "../pages.py", "%2e%2e/pages.py", "vendor", "vendor/"):
        assert (await http.get(f"/console/{name}")).status_code == 404
    assert (await http.get("/console/")).headers["location"] == "../"
    assert (await http.get("/console")).headers["location"] == "./"


async def test_every_page_has_a_policy_and_no_other_page_may_frame_it(http: httpx.AsyncClient) -> None:
    pages = []
    for method, path, rule in every():
        if method == "GET" and rule.kind is Kind.OPEN and "*" not in path:
            answer = await http.get(path, headers={"accept": "text/html"})
            if answer.headers.get("content-type", "").startswith("text/html"):
                pages.append(path)
                policy = dict(one.split(" ", 1) for one in answer.headers["content-security-policy"].split("; "))
                assert (policy["default-src"], policy["frame-ancestors"]) == ("'none'", "'none'"), path
                assert "unsafe" not in policy["script-src"]
                assert answer.headers["x-content-type-options"] == "nosniff", path
                assert answer.headers["referrer-policy"] == "no-referrer"
                assert not re.search(r"https?://", answer.text), path
    assert pages == ["/", "/docs"]


def test_no_file_names_another_origin_and_no_url_begins_at_the_root() -> None:
    for path in [*STATIC.glob("*.js"), *STATIC.glob("*.html"), *STATIC.glob("*.css")]:
        text = path.read_text()
        assert not re.search(r"""(https?|wss?):|["'`(]//""", text), path
        assert not re.search(r"""(href|src|from)\s*=?\s*["'`]/""", text), path
        assert "innerHTML" not in text, path


def test_vendored_files_are_those_that_the_script_pins() -> None:
    spec = importlib.util.spec_from_file_location("vendor_console", ROOT / "scripts/vendor_console.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    manifest = json.loads((VENDOR / script.MANIFEST).read_text())
    pinned = [(one.name, one.version, sorted(one.files)) for one in script.PACKAGES]
    assert [(one["name"], one["version"], sorted(one["files"])) for one in manifest] == pinned
    digests = {name: digest for one in manifest for name, digest in one["files"].items()}
    found = {
        one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in VENDOR.iterdir() if one.suffix != ".json"
    }
    assert found == digests
