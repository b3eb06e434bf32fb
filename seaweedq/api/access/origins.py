"""The hosts that a request may name, the web pages that may send it, and the form of its path. Pure, but for a memory
of hosts that were judged.

A browser sends requests of any page to any address that it reaches, also to 127.0.0.1. Headers that no page can change
tell such requests from a client's: Host is the name that the page's address or link had, so a name that a stranger's
DNS points here is refused (421); Origin and Sec-Fetch-Site tell from which page the request came (403). Another port of
the same host is the same site to a browser, and yet another page.

A browser leaves both out of a plain GET, as of an image, to a name without TLS. So a GET that leases messages shows by
a header that no page sent it: a page that sets Authorization or Seaweedq-Client is asked for its origin first. Other
requests without these headers pass.

Pages of other origins may use the broker as `cors_origins` lists them (CORS). Such a page asks by itself, with a token
that it has, and never with credentials that a browser keeps for the broker: answers name its origin and never `*`, and
never allow credentials. A browser asks before it sends a token (a preflight): that is answered for every path, and so
tells nothing of the topics.

Routes are chosen by the decoded path, so encoded characters of a name must not choose another route: a topic
`a%2Fsubscriptions%2Fb` would be a subscription, and `%69nternal` a path that a proxy keeps out.
"""

import re
from collections.abc import Iterable
from ipaddress import ip_address
from urllib.parse import urlsplit

from seaweedq.access.rights import Action
from seaweedq.api.request import Answer, Request
from seaweedq.errors import ForeignOrigin, RouteNotFound, WrongHost

METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
SENT = (
    "Accept, Authorization, Content-Encoding, Content-Type, If-Range, Last-Event-ID, Producer-Id, Producer-Sequence, "
    "Range, Schema-Id, Seaweedq-Client"
)
EXPOSED = (
    "Accept-Ranges, Content-Length, Content-Range, ETag, Lease, Location, Next-Offset, RateLimit, RateLimit-Policy, "
    "Retry-After, Sealed, Successors"
)
MAX_AGE_S = 600  # for which a browser need not ask again
INTERNAL = "/internal"
SHOWN_PATH = 200
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
OWN_SITES = (b"same-origin", b"none")  # a page of this broker, and an address that somebody has typed
SIGNED = "/content"  # below /v1, and GET alone: payloads with a token in their URL, to which any page may link
CLIENT = "Seaweedq-Client"  # the header, with any value
_CLIENT = CLIENT.lower().encode()
PORTS = {"http": 80, "https": 443}
REMEMBERED = 1000
_PLACE = re.compile(r"[A-Za-z0-9._:\[\]-]+")
SHOWN = 100  # characters of a header that an error shows


class CorsRules:
    """The origins whose pages may use this broker."""

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(_normal(one.encode()) for one in origins if one.strip())

    def allow(self, origin: bytes | None) -> bool:
        """Returns whether a page of that origin may."""
        return origin is not None and bool(self._origins) and _normal(origin) in self._origins

    def preflight(self, request: Request) -> Answer | None:
        """Returns the answer to a preflight of an origin that may; None for other requests."""
        if request.method != "OPTIONS":
            return None
        headers = request.headers
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

    def headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        """Returns the headers of an answer, which name the origin of the request, if it may; `Vary` says in any case
        that answers depend on it."""
        origin = request.headers.get(b"origin")
        if origin is None or not self.allow(origin):
            return [(b"vary", b"Origin")]
        exposed = (b"access-control-expose-headers", EXPOSED.encode())
        return [(b"vary", b"Origin"), (b"access-control-allow-origin", origin), exposed]

    def __bool__(self) -> bool:
        return bool(self._origins)


def _normal(origin: bytes) -> bytes:
    return origin.strip().lower().rstrip(b"/")


def check_raw_path(request: Request) -> None:
    """Raises RouteNotFound for a path with an encoded slash, and for an encoded path between brokers."""
    raw = request.raw_path
    if b"%" not in raw:
        return
    path, method = raw.decode("latin-1"), "" if request.is_socket else request.method
    if "%2f" in path.lower():
        raise RouteNotFound(
            f"there is no route {method} {path[:SHOWN_PATH]}: names in a path cannot contain a "
            "slash, not even an encoded slash"
        )
    if request.path.startswith(INTERNAL):
        raise RouteNotFound(f"there is no route {method} {path[:SHOWN_PATH]}; /docs lists all routes")


NO_CORS = CorsRules()


class HostRules:
    """The rules of one broker: `advertised` is the URL at which others reach it, `allowed` are patterns of further
    names: a name, `*.suffix`, or `*`. `cors` has further origins whose pages may send all requests."""

    def __init__(self, advertised: str, allowed: Iterable[str], cors: CorsRules = NO_CORS) -> None:
        self._cors = cors
        patterns = [one.strip().lower().rstrip(".") for one in allowed if one.strip()]
        self._any = "*" in patterns
        self._names = {one for one in patterns if not one.startswith("*")}
        self._suffixes = tuple(one[1:] for one in patterns if one.startswith("*."))
        self._own = {"localhost", (urlsplit(advertised).hostname or "localhost").lower().rstrip(".")}
        self._passed: set[bytes] = set()

    def check(self, request: Request) -> None:
        """Raises WrongHost if Host is a name that is not this broker's, and ForeignOrigin if a page of another
        site sends a request that it must not. Of a repeated header all count: two hosts together are no name."""
        headers = request.headers
        host = headers.get(b"host")
        if host is not None and host not in self._passed:
            self._check_host(host)
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if origin is None and (site is None or site in OWN_SITES):
            return
        # Pages of other sites must send nothing that changes something, and nothing below /v1.
        if request.method not in SAFE_METHODS or request.path == "/v1" or request.path.startswith("/v1/"):
            self._check_origin(origin, host or b"", request)

    def _check_host(self, raw: bytes) -> None:
        host = raw.decode("latin-1")
        place = _place(host)
        name = place[0] if place else ""
        if host and not (name and (self._any or name in self._own or self._is_named(name) or _is_address(name))):
            raise WrongHost(
                f"this broker does not accept requests for the host {host[:SHOWN]!r}; the broker's "
                "administrator can add that host to the setting allowed_hosts",
                host=host[:SHOWN],
                setting="allowed_hosts",
            )
        if len(self._passed) < REMEMBERED:
            self._passed.add(raw)

    def _check_origin(self, sent: bytes | None, host: bytes, request: Request) -> None:
        if sent is None:
            if request.method not in ("GET", "HEAD") or not request.path.endswith(SIGNED):
                raise ForeignOrigin("web pages from another site or another port are not allowed to send this request")
            return
        if self._cors.allow(sent):
            return
        origin = sent.decode("latin-1")
        scheme, _, rest = origin.partition("://")
        port = PORTS.get(scheme.lower(), 0)
        theirs, ours = _place(rest, port), _place(host.decode("latin-1"), port)
        if theirs is None or (theirs != ours and not self._is_named(theirs[0])):
            raise ForeignOrigin(
                f"web pages from {origin[:SHOWN]!r} are not allowed to send this request; the "
                "broker's administrator can add the page's host to the setting allowed_hosts",
                origin=origin[:SHOWN],
                setting="allowed_hosts",
            )

    def _is_named(self, name: str) -> bool:
        return name in self._names or name.endswith(self._suffixes)


def _place(text: str, default_port: int = 0) -> tuple[str, int] | None:
    """Returns name and port of a host, None if it is none. Names are in lower case, addresses without brackets."""
    if not _PLACE.fullmatch(text):
        return None
    try:
        parts = urlsplit(f"//{text}")
        return (parts.hostname or "").rstrip("."), parts.port or default_port
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def check_client(request: Request) -> None:
    """Raises ForeignOrigin for a GET that leases messages, and shows neither its page nor that no page has sent it.
    Credentials of another scheme show nothing: a browser adds those that it keeps for a proxy."""
    if request.method != "GET" or request.route.action is not Action.CONSUME:
        return
    headers = request.headers
    is_asked = b"origin" in headers or b"sec-fetch-site" in headers  # and was found to be none of a foreign page
    if not (is_asked or _CLIENT in headers or headers.get(b"authorization", b"")[:7].lower() == b"bearer "):
        raise ForeignOrigin(
            f"a GET that leases messages needs the header {CLIENT} (with any value) or "
            "`Authorization: Bearer ...`; without this rule, any web page could lease messages through the browser of "
            "its visitor",
            header=CLIENT,
        )
