"""HTTP for both shells: converts the core's requests to httpx, and httpx's answers to the core's; holds the token of a
client, and the certificates that it trusts.

A token is given as it is or as a file, which is read again when it changes; without either in SEAWEEDQ_TOKEN or
SEAWEEDQ_TOKEN_FILE, as the CA in SEAWEEDQ_CA_FILE. The token goes to the brokers that the user named, and to learned
ones only over https, whose certificates the same authority has signed, or on loopback (client/core/attempts); never to
stores.
"""

import os
import re
import ssl
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import httpx

from seaweedq.client.core.effects import Attempt, Request, SignedRequest
from seaweedq.client.core.problems import bare
from seaweedq.client.files import Slice
from seaweedq.errors import ClientError, ConnectionFailed

TOKEN, TOKEN_FILE, CA_FILE = "SEAWEEDQ_TOKEN", "SEAWEEDQ_TOKEN_FILE", "SEAWEEDQ_CA_FILE"
_TOKEN = re.compile(r"[\x21-\x7e]+")
_HINTS = {
    "WRONG_VERSION_NUMBER": "; a broker without TLS has a URL that begins with http://",
    "CERTIFICATE_VERIFY_FAILED": f"; name the brokers' authority with ca_file, or in {CA_FILE}",
    "disconnected without sending a response": "; a broker with TLS has a URL that begins with https://",
}


class InvalidToken(ValueError):
    """Raised for a token with a character that HTTP headers must not contain."""


class Credentials:
    """A client's token, and the CA that the client trusts. Raises ValueError if both a token and a file are given, or
    if the token has a character that HTTP headers must not contain."""

    def __init__(
        self,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca_file: str | Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if token is not None and token_file is not None:
            raise ValueError("pass either token or token_file, not both")
        environment = os.environ if environment is None else environment
        named = "the token"
        if token is None and token_file is None:
            named = TOKEN
            token, token_file = environment.get(TOKEN) or None, environment.get(TOKEN_FILE) or None
        if token is not None and not _TOKEN.fullmatch(token):
            raise InvalidToken(f"{named} contains a blank or another character that is not valid in a token")
        self._token = token
        self._file = Path(token_file) if token is None and token_file is not None else None
        self._seen: tuple[int, int, int] | None = None
        self._ca_file = ca_file or environment.get(CA_FILE) or None

    def __repr__(self) -> str:
        return "Credentials()"

    @property
    def has_token(self) -> bool:
        """Returns whether the client sends a token."""
        return self._token is not None or self._file is not None

    def verify(self, url: str) -> bool | ssl.SSLContext:
        """Returns the TLS verification (httpx's `verify`) for the broker at a URL. For plain HTTP, no certificates are
        loaded, because loading them takes longer than a request. Raises ClientError if the CA's file cannot be read."""
        if not url.startswith("https:"):
            return False
        if self._ca_file is None:
            return True
        try:
            return ssl.create_default_context(cafile=self._ca_file)
        except OSError as error:  # that of ssl is one, too
            reason = error.strerror or type(error).__name__
            raise ClientError(f"the CA file {str(self._ca_file)!r} cannot be read: {reason}") from None

    def headers(self) -> dict[str, str]:
        """Returns the headers that contain the token. Raises ClientError if the token file cannot be read."""
        if (file := self._file) is not None:
            try:
                found = os.stat(file)
                seen = (found.st_ino, found.st_mtime_ns, found.st_size)
                text = self._token if seen == self._seen else file.read_text("ascii").strip()
            except (OSError, ValueError) as error:
                raise ClientError(f"the token file {str(file)!r} cannot be read: {type(error).__name__}") from None
            if not _TOKEN.fullmatch(text or ""):
                raise ClientError(f"the token file {str(file)!r} contains no token")
            self._token, self._seen = text, seen
        return {} if self._token is None else {"Authorization": f"Bearer {self._token}"}


# Shorter than servers keep idle connections (uvicorn: 5 s), so that none is used just as it is closed.
LIMITS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=3)
DEFAULT_URL = "http://127.0.0.1:8080"
_CLIENT = {"Seaweedq-Client": "python"}  # no web page sends it, so that brokers know that none has
# A broker that takes longer is as good as gone, and there are others.
_CONNECT_S = 5.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_UNSENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class SecretUrl(httpx.URL):
    """A URL that is printed without its query, so that no signature appears in the log of httpx."""

    def __str__(self) -> str:
        return bare(super().__str__())


def check_options(timeout_s: float, headers: Mapping[str, str] | None) -> None:
    """Raises ValueError for a timeout that no answer could meet, and for invalid HTTP headers."""
    if not 0 < timeout_s < inf:
        raise ValueError(f"timeout_s={timeout_s} must be a number of seconds above 0")
    for name, value in (headers or {}).items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not a valid name of an HTTP header")
        if _CONTROL.search(value):
            raise ValueError(f"the value of header {name!r} contains a line break or another control character")


def build(
    http: httpx.Client | httpx.AsyncClient,
    effect: Attempt | SignedRequest,
    chunks: Any,
    timeout_s: float,
    credentials: Credentials,
) -> httpx.Request:
    """Builds the request. If the body is a Slice, `chunks` yields its bytes. A request to a signed URL needs no token,
    because the URL itself is the permission. Raises ClientError for an invalid signed URL, and for a token that cannot
    be read."""
    if isinstance(effect, Attempt):
        request: Request | SignedRequest = effect.request
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
    try:
        made = http.build_request(
            request.method, url, params=params, headers=headers, content=content or None, timeout=timeout
        )
    except httpx.InvalidURL as error:
        raise ClientError(f"the broker returned an invalid URL: {bare(url)}") from error
    if isinstance(effect, SignedRequest):
        made.url = SecretUrl(made.url)
    return made


def failed(url: str, error: httpx.RequestError) -> ConnectionFailed:
    """Returns the error for a missing or incomplete answer."""
    url = bare(url)
    reason = _ERRNO.sub("", str(error)) or type(error).__name__
    hint = next((hint for part, hint in _HINTS.items() if part in reason), "")
    return ConnectionFailed(f"no answer from {url}: {reason}{hint}", url=url, sent=not isinstance(error, _UNSENT))
