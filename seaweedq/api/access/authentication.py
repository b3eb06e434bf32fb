"""Authenticates and authorises requests: finds the sender of each, a client or a broker, and judges whether it may do
what its route asks.

It stands before anything is reserved or read for a request, and knows nothing of what exists. A token is taken from the
header Authorization, or from a WebSocket's subprotocol `bearer.{token}`, once in all; never from a URL, which logs and
histories keep. A request with a token is judged by it, also if anonymous requests are allowed: one that does not count
is refused, and never taken for none. A text without the form of a token is somebody else's, as a proxy's, and is no
token, unless it is that of the file of the admin.

A token that counts is remembered by the value of its header, with the SHA-256 of its text and its allowed actions: to
judge it again costs two look-ups then. The memory gives no right by itself. An entry counts only while the watched view
still finds the very same caller by that SHA-256, and the caller's time is not over; each change of a token or its
principal makes another caller, and has the token forgotten at once, so that the text of a revoked one stays nowhere.
Neither a text that does not count is remembered, nor that of the admin's file. The memory is bounded: beyond
REMEMBERED_BYTES all of it is forgotten, which costs each token one judgement.

A request that lasts ends as soon as its caller may no longer do it. It is then cancelled while it waits, as if its
client had gone, and answered with the error; the handlers see no difference.

A request of a broker of this cluster has a stamp (broker/rpc/peer_keyring), which is judged once: that uses up its
number. The broker that a client has asked judges the client; the one to which it relays trusts that. The header by
which a relay names the caller counts only on a request with a good stamp, so that a client that sends it gains nothing.
At the port for brokers nobody else is answered; at the one for clients no broker is, once all know the first.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from seaweedq.access.rights import ANONYMOUS, EVERYTHING, NEVER_US, NOBODY, Action, Caller, Resource, judge
from seaweedq.access.tokens import digest_of
from seaweedq.api.access.origins import OWN_SITES
from seaweedq.api.problems import Refusals
from seaweedq.api.request import Request
from seaweedq.broker.access import REFUSED, Callers, Touched
from seaweedq.broker.rpc import HELLO_HEADER, STAMP_HEADER, USUAL, Covered, PeerVerifier, Refusal, Welcome
from seaweedq.broker.rpc import refused as refused_peer
from seaweedq.errors import (
    Forbidden,
    NotReady,
    PeerRefused,
    RouteNotFound,
    Unauthenticated,
    UnreadableRequest,
)

STAMP, _HELLO = (name.lower().encode() for name in (STAMP_HEADER, HELLO_HEADER))
PEER_PREFIX = "/internal/"
SHOWN = 200
CALLER_HEADER = "Seaweedq-Caller"
_HEADER = CALLER_HEADER.lower().encode()
REMEMBERED_BYTES = 8 * 2**20
REMEMBERED_RIGHTS = 64  # of one token
REMEMBERED_PATH = 256  # characters: no name is checked before authentication, so a path may be as long as a head
TOKEN_BYTES, RIGHT_BYTES = 1_000, 400  # beside texts: the objects, and their places in sets and dicts
T = TypeVar("T")
SUBPROTOCOL = "bearer."
BEARER = b"Bearer "


class PeerRequests:
    """The requests of other brokers among all that come."""

    def __init__(self, verifier: PeerVerifier, refusals: Refusals) -> None:
        self._verifier = verifier
        self._refusals = refusals

    def is_authenticated(self, request: Request) -> bool:
        """Returns whether a broker of this cluster sent the request. Raises PeerRefused if the request claims it, and
        it is not so: it must not be relayed once more, and so round and round."""
        if request.sender is None:
            stamp = request.headers.get(STAMP)
            if stamp is None:
                request.sender = ""
                return False
            method = "GET" if request.is_socket else request.method
            covered = Covered.from_request(method, request.raw_path, request.query_string, request.headers.items())
            try:
                if self._verifier.is_apart and not request.at_peer_port:
                    raise _elsewhere()
                request.sender = self._verifier.check_stamp(stamp.decode("latin-1"), covered)
            except PeerRefused as error:
                raise self._noted(error, request) from error
            if request.sender and request.connection:
                request.connection.exempt()
        return bool(request.sender)

    def check_port(self, request: Request) -> None:
        """Raises RouteNotFound for a request of somebody else at the port for brokers, and for a call at the port for
        clients that has no place there; PeerRefused as `is_authenticated`."""
        if request.at_peer_port:
            if not (request.path.startswith(PEER_PREFIX) or self.is_authenticated(request)):
                raise RouteNotFound(
                    "only the cluster's brokers may use this port; clients must use the broker's client port"
                )
        elif self._verifier.is_apart and request.path.startswith(PEER_PREFIX):
            if _HELLO in request.headers:  # refused as stamps are, so that its sender looks for the other port
                raise self._noted(_elsewhere(), request)
            if not self.is_authenticated(request):
                method = "" if request.is_socket else request.method
                raise RouteNotFound(f"there is no route {method} {request.path[:SHOWN]}; /docs lists all routes")

    def welcome(self, request: Request) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused, NotReady."""
        try:
            return self._verifier.welcome(request.header(_HELLO) or "")
        except PeerRefused as error:
            raise self._noted(error, request) from error

    def _noted(self, error: PeerRefused, request: Request) -> PeerRefused:
        """Counts and logs a refusal, with the address of its sender."""
        address = (request.scope.get("client") or ["an unknown address"])[0]
        # Brokers that have not heard of a new peer_port come here for a while: the audit alone tells of these.
        if error.fields["reason"] not in USUAL | {Refusal.PORT}:
            self._refusals.note("peer", f"{error.detail} ({error.fields['reason']}, from {address})")
        return PeerRefused(error.detail, inside=f"from {address}", **error.fields)


def _elsewhere() -> PeerRefused:
    return refused_peer(Refusal.PORT, "this broker answers other brokers only on its peer_port")


class CallerHeader(msgspec.Struct, omit_defaults=True):
    """A caller in the header of a relay: its principal with the `uid`, the id of its token, and when that ends."""

    principal: str
    token: str | None = None
    expires_us: int = NEVER_US
    uid: str | None = None


_CALLER_HEADER = msgspec.json.Decoder(CallerHeader)


def check_right(caller: Caller, action: Action, resource: Resource) -> None:
    """Raises Forbidden if a caller may not do an action."""
    if not judge(caller, action, resource):
        raise forbidden(action, resource)


def forbidden(action: Action, resource: Resource) -> Forbidden:
    """Returns the error for a right that is missing. It does not tell whether the resource exists."""
    shown = str(resource)[:SHOWN]
    return Forbidden(f"the request needs the right {action} on {shown!r}", action=str(action), resource=shown)


def header_of(caller: Caller) -> dict[str, str]:
    """Returns the header by which a relay names the caller; none for an anonymous one."""
    if caller.principal is None:
        return {}
    named = CallerHeader(caller.principal, caller.token, caller.expires_us, caller.uid)
    return {CALLER_HEADER: msgspec.json.encode(named).decode("ascii")}


def relayed_caller(request: Request) -> Caller:
    """Returns the caller of a request that another broker has judged and relayed. It may do all: it was judged."""
    text = request.header(_HEADER)
    if text is None:
        return ANONYMOUS
    try:
        named = _CALLER_HEADER.decode(text)
    except msgspec.DecodeError:
        raise Forbidden(f"another broker sent an invalid header {CALLER_HEADER}") from None
    return Caller(named.principal, named.token, (EVERYTHING,), named.expires_us, uid=named.uid)


@dataclass(slots=True)
class ShownToken:
    """A token as the SHA-256 of its text; its caller, the actions that were allowed, and their `bytes`."""

    digest: bytes
    caller: Caller
    bytes: int = 0
    allowed: set[tuple[Action | None, Resource]] = field(default_factory=set)


class ShownTokens:
    """Those of one broker, `by_header`."""

    def __init__(self) -> None:
        self.by_header: dict[bytes | None, ShownToken] = {}
        self._headers: dict[str, bytes] = {}  # by the tokens' ids
        self._bytes = 0

    def add(self, header: bytes, text: bytes, caller: Caller, action: Action | None, resource: Resource) -> None:
        """Remembers an allowed action of a caller, with the token that a header has shown."""
        token, size = caller.token or "", RIGHT_BYTES + sum(map(sys.getsizeof, resource))
        seen = self.by_header.get(header)
        if seen is None or seen.caller is not caller or len(seen.allowed) >= REMEMBERED_RIGHTS:
            self._drop(token)
            seen = None
        if self._bytes + size + TOKEN_BYTES + len(header) > REMEMBERED_BYTES:
            self.forget(None)
            seen = None
        if seen is None:
            seen = self.by_header[header] = ShownToken(digest_of(text), caller)
            self._headers[token] = header
            size += TOKEN_BYTES + len(header)
        seen.allowed.add((action, resource))
        seen.bytes += size
        self._bytes += size

    def forget(self, touched: Touched) -> None:
        """Forgets the tokens that a change is about."""
        if touched is None:
            self.by_header.clear()
            self._headers.clear()
            self._bytes = 0
            return
        for token in touched:
            self._drop(token)

    def _drop(self, token: str) -> None:
        header = self._headers.pop(token, None)
        if header is not None:
            self._bytes -= self.by_header.pop(header).bytes


class Authentication:
    """Judges the requests of one broker. `is_of_broker` tells which come from another broker of the cluster."""

    def __init__(self, callers: Callers, needs_token: bool, is_of_broker: Callable[[Request], bool]) -> None:
        self._callers = callers
        self._needs_token = needs_token
        self._is_of_broker = is_of_broker
        self._shown = ShownTokens()
        callers.on_change(self._shown.forget)

    async def authenticate(self, request: Request) -> None:
        """Finds the caller of a request. Raises UnreadableRequest for two tokens, PeerRefused, and as
        `Callers.caller_of`."""
        if not request.route.is_judged:
            return
        headers, callers = request.headers, self._callers
        if STAMP in headers and self._is_of_broker(request):
            request.is_relayed, request.caller = True, relayed_caller(request)
            return
        header = headers.get(b"authorization")
        if header is not None and not request.is_socket:  # a WebSocket may give another token
            shown = self._shown.by_header.get(header)
            if shown is not None and callers.find(shown.digest) is shown.caller:
                request.caller = shown.caller
                return
        text = None if header is None and not request.is_socket else text_of(request)
        found = None if text is None else await callers.caller_of(text)
        found = found or self._of_certificate(request)
        request.caller = found or (NOBODY if self._needs_token else callers.view.anonymous)

    def _of_certificate(self, request: Request) -> Caller | None:
        """Returns the caller of the certificate of a request's connection; None if it shows none, or none that counts,
        or if a page of another origin sends the request. Raises NotReady."""
        connection, headers = request.connection, request.headers
        if connection is None or connection.certificate is None:
            return None
        site = headers.get(b"sec-fetch-site")
        if (site is not None or b"origin" in headers) and site not in OWN_SITES:
            return None
        try:
            return self._callers.of_certificate(connection.certificate)
        except NotReady:
            connection.end_after_answer()
            raise

    def authorise(self, request: Request) -> None:
        """Raises Unauthenticated or Forbidden if the caller may not do its route's action."""
        route, resource, caller = request.route, request.resource, request.caller
        if not route.is_judged or request.is_relayed or caller is ANONYMOUS:  # no tokens: there is nothing to judge
            return
        if route.action is None:
            if not caller.layers and caller.principal is None:
                raise Unauthenticated(REFUSED)
            return
        header = request.headers.get(b"authorization")
        shown = self._shown.by_header.get(header)
        if shown is not None and shown.caller is caller and (route.action, resource) in shown.allowed:
            return
        if not judge(caller, route.action, resource):
            raise Unauthenticated(REFUSED) if caller is NOBODY else forbidden(route.action, resource)
        if header is None or caller.token is None or caller.uid is None or request.is_socket:
            return
        if header.startswith(BEARER) and b"," not in header and len(request.path) <= REMEMBERED_PATH:
            self._shown.add(header, header[len(BEARER) :], caller, route.action, resource)

    async def while_allowed(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of the `work` of a request that lasts. It is cancelled if its caller loses the right; if
        its route needs none, once the caller counts no more. Raises Unauthenticated then, Forbidden if the token counts
        still, and may only do less than before, and NotReady if the broker had no lease. The broker that has relayed a
        request ends it: it knows the token, which this one may not know yet, or ever, as that of the other one's
        admin."""
        action, resource = request.route.action, request.resource
        if request.caller.token is None or request.is_relayed:
            return await work
        task, ended = asyncio.current_task(), False
        assert task is not None

        def end() -> None:
            """Ends the work, since the caller has lost its right."""
            nonlocal ended
            ended = True
            task.cancel()

        try:
            with self._callers.holding(request.caller, action, resource, end):
                return await work
        except asyncio.CancelledError:
            if not ended or task.uncancel() > 0:  # the broker's stop has cancelled it as well
                raise
            now = self._callers.current(request.caller)
            if now is None:
                raise Unauthenticated(REFUSED) from None
            if action is not None and not judge(now, action, resource):
                raise forbidden(action, resource) from None
            raise NotReady(
                "this broker cannot check tokens: its lease has expired, or its clock was set back"
            ) from None


def text_of(request: Request) -> bytes | None:
    """Returns the token that a request gives, whether or not it counts. Raises UnreadableRequest if it gives two."""
    shown = request.headers.get(b"authorization")
    text: bytes | None
    if shown is None:
        text = None
    elif shown.startswith(BEARER) and b"," not in shown:
        text = shown[len(BEARER) :]
    else:
        if b"," in shown and sum(name == b"authorization" for name, _ in request.scope["headers"]) > 1:
            raise UnreadableRequest("the request has more than one Authorization header; send only one")
        scheme, _, text = shown.partition(b" ")
        text = text.strip() if scheme.lower() == b"bearer" else None  # a proxy may have another scheme for itself
    if request.is_socket:  # a browser's can send no header
        found: list[str] = [one for one in request.scope.get("subprotocols", ()) if one.startswith(SUBPROTOCOL)]
        if len(found) > 1:
            raise UnreadableRequest(
                "the request lists the subprotocol bearer.{token} more than once; send it only once"
            )
        if found and text is not None:
            raise UnreadableRequest(
                "the request has two tokens: one in the Authorization header and one in a "
                "subprotocol bearer.{token}; send only one"
            )
        if found:
            return found[0].removeprefix(SUBPROTOCOL).encode("latin-1", "replace")
    return text
