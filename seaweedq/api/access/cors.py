"""Pages of other origins that may use the broker (CORS), as `cors_origins` lists them. Pure.

Such a page asks by itself, with a token that it has, and never with what a browser keeps for the broker: answers name
its origin and never `*`, and never allow credentials. A browser asks before it sends a token (a preflight): that is
answered for every path, since it says nothing of what there is.
"""

from collections.abc import Iterable, MutableMapping
from typing import Any

from seaweedq.api.asgi.http import Answer, Scope, Send, headers_of

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
SENT = (
    "Accept, Authorization, Content-Encoding, Content-Type, If-Range, Last-Event-ID, Producer-Id, Producer-Sequence, "
    "Range, Seaweedq-Client"
)
SHOWN = (
    "Accept-Ranges, Content-Length, Content-Range, ETag, Lease, Location, Next-Offset, RateLimit, RateLimit-Policy, "
    "Retry-After, Sealed, Successors"
)
MAX_AGE_S = 600  # for which a browser need not ask again


class CorsRules:
    """The origins whose pages may use this broker."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(_normal(one.encode()) for one in origins if one.strip())

    def allow(self, origin: bytes | None) -> bool:
        """Returns whether a page of that origin may."""
        return origin is not None and bool(self._origins) and _normal(origin) in self._origins

    def preflight(self, scope: Scope) -> Answer | None:
        """Returns the answer to a preflight of an origin that may; None for other requests."""
        if not self._origins or scope["type"] != "http" or scope["method"] != "OPTIONS":
            return None
        headers = headers_of(scope)
        if b"access-control-request-method" not in headers or not self.allow(headers.get(b"origin")):
            return None
        return Answer(
            204,
            headers={
                "access-control-allow-methods": METHODS,
                "access-control-allow-headers": SENT,
                "access-control-max-age": str(MAX_AGE_S),
            },
        )

    def naming(self, scope: Scope, out: Send) -> Send:
        """Returns what sends answers that name the origin of a request, if it may; `Vary` says in any case that they
        depend on it."""
        origin = headers_of(scope).get(b"origin")
        more = [(b"vary", b"Origin")]
        if origin is not None and self.allow(origin):
            more += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", SHOWN.encode())]

        async def send(message: MutableMapping[str, Any]) -> None:
            """Sends a part; the first one gets the headers."""
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *more]
            await out(message)

        return send

    def __bool__(self) -> bool:
        return bool(self._origins)


def _normal(origin: bytes) -> bytes:
    return origin.strip().lower().rstrip(b"/")
