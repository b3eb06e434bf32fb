"""Serves the console's static files; at `/` the page to browsers and a document with links to everybody else; and
`/docs`, the page of the OpenAPI document.

The files lie in `static`, as they are edited: nothing is built. The page uses public routes alone, and relative URLs,
so that a broker may stand behind a path prefix. Its places are behind `#`, so all of them are this one page. The policy
of its answers lets it load, and send to, nothing but its own origin, and lets no page frame it. That of `/docs` allows
one script in the page, by its hash, and the styles that Swagger UI writes into the page.
"""

import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from mimetypes import guess_type
from pathlib import Path

from fastapi import Response
from fastapi.openapi.docs import get_swagger_ui_html
from msgspec import Struct

from seaweedq.api.parameters import RequestDep, json_answer
from seaweedq.api.request import Request
from seaweedq.api.routes import OPEN, Lead, Router, nobody
from seaweedq.errors import RouteNotFound
from seaweedq.rows.bodies import JSON

STATIC = Path(__file__).parent / "static"
PAGE, HTML = "index.html", "text/html"
SAFE = "GET HEAD"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",  # the arrows and ticks in the style sheet of Pico
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
STATIC_DOCS = "static-offline-docs"  # where fastapi_offline serves Swagger UI
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # which asks again each time: a broker of another version may answer
}

router = Router("cluster")


class Start(Struct):
    """The program's name and version, and `links`, which are relative to this document."""

    name: str
    version: str
    links: dict[str, str]


LINKS = {
    "topics": "v1/topics",
    "subscriptions": "v1/subscriptions",
    "cluster": "v1/cluster",
    "documentation": "docs",
    "openapi": "openapi.json",
    "metrics": "metrics",
    "health": "healthz",
    "readiness": "readyz",
}
_SHOWN = {"name": "seaweedq", "version": "0.1.0", "links": LINKS}


@dataclass(frozen=True)
class _File:
    content: bytes
    media_type: str
    tag: str


@router.route(
    SAFE,
    "/",
    OPEN,
    "getLinks",
    "Get links to routes or, in a browser, the console",
    answers={200: {JSON: {"schema": Start, "example": _SHOWN}, HTML: {"schema": {"type": "string"}}}},
    leads=(
        Lead(
            (
                "listTopics",
                "listAllSubscriptions",
                "listPrincipals",
                "listTokens",
                "getCluster",
                "whoAmI",
                "isAlive",
                "isReady",
                "getMetrics",
            ),
            {},
        ),
    ),
)
async def start(request: RequestDep) -> Response:
    """Returns links to what there is here; to a browser, which asks for HTML, the console."""
    if request.asks_for(HTML):
        return _file(request, PAGE)
    answer = json_answer(Start("seaweedq", version("seaweedq"), LINKS))
    answer.headers["vary"] = "accept"
    return answer


@router.route("GET", "/docs", OPEN)
async def documentation() -> Response:
    """Returns the page that shows the OpenAPI document, and sends requests of its routes."""
    content, policy = _documentation()
    return Response(content, headers={**HEADERS, "content-security-policy": policy}, media_type=HTML)


@router.route(SAFE, "/console", OPEN)
async def console() -> Response:
    """Leads to the page, whose links are relative to its own folder."""
    return Response(status_code=308, headers={"location": "./"})


@router.route(SAFE, "/console/*", OPEN)
async def console_file(request: RequestDep, name: str) -> Response:
    """Returns a file of the console; leads to the page if none is named. Raises RouteNotFound."""
    if not name:
        return Response(status_code=308, headers={"location": "../"})
    if name == PAGE or name not in _places():
        raise RouteNotFound(f"the console has no file {name[:200]!r}")
    return _file(request, name)


router.route(SAFE, "/openapi.json", OPEN)(nobody)  # FastAPI has these two by itself
router.route(SAFE, f"/{STATIC_DOCS}/*", OPEN)(nobody)


@cache
def _documentation() -> tuple[str, str]:
    """Returns the page and its policy."""
    page = get_swagger_ui_html(
        openapi_url="openapi.json",
        title="seaweedq",
        swagger_js_url=f"{STATIC_DOCS}/swagger-ui-bundle.js",
        swagger_css_url=f"{STATIC_DOCS}/swagger-ui.css",
        swagger_favicon_url=f"{STATIC_DOCS}/favicon.png",
    )
    content = bytes(page.body).decode()
    (script,) = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    changes = {"script-src": f"'self' 'sha256-{digest}'", "style-src": "'self' 'unsafe-inline'"}
    wanted = dict(part.split(" ", 1) for part in POLICY.split("; ")) | changes
    del wanted["require-trusted-types-for"]  # Swagger UI writes HTML
    return content, "; ".join(f"{name} {value}" for name, value in wanted.items())


def _file(request: Request, name: str) -> Response:
    path = _places()[name]
    file = _read(path, path.stat().st_mtime_ns)
    headers = {**HEADERS, "etag": file.tag, "vary": "accept"}
    if request.header(b"if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)


@cache
def _places() -> dict[str, Path]:
    """Returns the files' places by their names; all others are none of the console's."""
    return {str(path.relative_to(STATIC)): path for path in STATIC.rglob("*") if path.is_file()}


@lru_cache(100)
def _read(path: Path, changed_ns: int) -> _File:
    """Returns a file as it was changed last: an edited line is there at the next look."""
    content = path.read_bytes()
    media_type = guess_type(path.name)[0] or "text/plain"
    return _File(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
