"""Converts the core's requests to httpx, and httpx's answers to the core's; shared by both transports."""

import os
import re
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import httpx

from seaweedq.client.core.protocol.broker_choice import Brokers
from seaweedq.client.core.protocol.effects import Attempt, Reply, Request, Signed
from seaweedq.client.core.protocol.signed_urls import bare
from seaweedq.client.files.upload_source import Slice
from seaweedq.client.http.credentials import Credentials
from seaweedq.errors import ClientError, ConnectionFailed

# Shorter than servers keep idle connections (uvicorn: 5 s), so that none is used just as it is closed.
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3)
DEFAULT_URL = "http://127.0.0.1:8080"
_CLIENT = {"Seaweedq-Client": "python"}  # no web page sends it, so that brokers know that none has
# A broker that takes longer is as good as gone, and there are others.
_CONNECT_S = 5.0
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class SecretUrl(httpx.URL):
    """A URL that prints only its bare form: httpx logs the URLs of its requests."""

    def __str__(self) -> str:
        return bare(super().__str__())


def given_url(url: str | Sequence[str] | None) -> str | Sequence[str]:
    """Returns the URL, by default that of the environment, else that of a broker on this machine."""
    return os.environ.get("SEAWEEDQ_URL") or DEFAULT_URL if url is None else url


def check_options(timeout_s: float, headers: Mapping[str, str] | None) -> None:
    """Raises ValueError for a timeout in which nothing can be answered, and for headers that HTTP cannot carry."""
    if not 0 < timeout_s < inf:
        raise ValueError(f"timeout_s={timeout_s} is not a number of seconds above 0")
    for name, value in (headers or {}).items():
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of an HTTP header")
        if _CONTROL.search(value):
            raise ValueError(f"the value of header {name!r} has a line break or another control character")


def check_open(http: httpx.Client | httpx.AsyncClient) -> None:
    """Raises ClientError where the client was closed."""
    if http.is_closed:
        raise ClientError("this client is closed")


def is_secure(brokers: Brokers) -> bool:
    """Tells whether certificates are verified: loading them takes longer than a request, and plain HTTP does not need
    them."""
    return brokers.urls[0].startswith("https:")


def shows_secret(credentials: Credentials, headers: Mapping[str, str] | None) -> bool:
    """Tells whether requests show a token, or what users put into the header for one."""
    return credentials.has_token or any(name.lower() == "authorization" for name in headers or {})


def is_ours(brokers: Brokers, url: str) -> bool:
    """Tells whether a signed URL is that of a broker that the user named. Only those get the user's headers."""
    return any(url.startswith(f"{one}/") for one in brokers.urls)


def build(
    http: httpx.Client | httpx.AsyncClient,
    effect: Attempt | Signed,
    chunks: Any,
    timeout_s: float,
    credentials: Credentials,
) -> httpx.Request:
    """Builds the request; `chunks` are those of a body that is a Slice. A signed URL has a right of its own, and gets
    no token. Raises ClientError for an invalid signed URL, and for a token that cannot be read."""
    if isinstance(effect, Attempt):
        request: Request | Signed = effect.request
        url, params = effect.url + effect.request.path, dict(effect.request.params) or None
        timeout_s = min(timeout_s, effect.silent_s)
    else:
        request, url, params = effect, effect.url, None
    content, headers = request.content, dict(request.headers)
    if isinstance(effect, Attempt):
        headers |= credentials.headers() | _CLIENT
    if isinstance(content, Slice):
        headers |= {"Content-Length": str(content.size)}
        content = chunks if content.size else b""
    if request.streamed:
        headers |= {"Accept-Encoding": "identity"}
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S), read=timeout_s + request.wait_s)
    made = _made(http, request.method, url, params=params, headers=headers, content=content or None, timeout=timeout)
    if isinstance(effect, Signed):
        made.url = SecretUrl(made.url)
    return made


def _made(http: httpx.Client | httpx.AsyncClient, method: str, url: str, **more: Any) -> httpx.Request:
    try:
        return http.build_request(method, url, **more)
    except httpx.InvalidURL as error:
        raise ClientError(f"the broker returned an invalid URL: {bare(url)}") from error


def reply_of(url: str, response: httpx.Response, stream: Any = None) -> Reply:
    """Returns the answer; with a `stream` its body is still to be read."""
    return Reply(response.status_code, response.headers, b"" if stream else response.content, url, stream)


def failed(url: str, error: httpx.RequestError) -> ConnectionFailed:
    """Returns the error for a missing or incomplete answer."""
    url = bare(url)
    reason = _ERRNO.sub("", str(error)) or type(error).__name__
    return ConnectionFailed(f"no answer from {url}: {reason}", url=url, sent=not isinstance(error, _UNSENT))
