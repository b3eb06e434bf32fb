"""The caller of a request, as the gate has put it into the request's scope; and the header by which a relay names it.

The broker that a client has asked judges; the one to which it relays trusts that. The header counts only on a request
that is known to be a broker's, so that a client that sends it gains nothing.

The tokens that were shown to a broker and counted, by the header that showed them, with what they were allowed.

They are bounded by the memory that they take: what comes over REMEMBERED_BYTES has all of it forgotten, which costs
each token one judgement. A change that is about a token has it forgotten at once, so that the text of one that was
revoked stays nowhere.

The gate before all routes: it finds the caller of a request and the rule of its route, and judges.

It stands before anything is reserved or read for a request, and knows nothing of what exists. A request without a rule
has no route. A token is taken from the header Authorization, or from a WebSocket's subprotocol `bearer.{token}`, once
in all; never from a URL, which logs and histories keep. Whoever sends a token is judged by it, also where anonymous
requests are allowed: one that does not count is refused, and never taken for none. A text without the form of a token
is somebody else's, as a proxy's, and is no token, unless it is that of the file of the admin.

The gate remembers a token that counts by the value of its header, with the SHA-256 of its text and what it was allowed
to do: to judge it again costs two look-ups then. What is remembered gives no right by itself. It counts only where the
watched view still finds the very same caller by that SHA-256, and the caller's time is not over; each change of a token
or its principal makes another caller, and has the token forgotten (shown_tokens). The gate remembers no text that does
not count, and none of the admin's file.

A request that lasts ends as soon as its caller may no longer do it. It is then cancelled where it waits, as if its
client had gone, and answered with the error; the routes see no difference.
"""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import msgspec

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.access.caller import ANONYMOUS, NEVER_US, NOBODY, Caller
from seaweedq.access.grants import EVERYTHING
from seaweedq.access.tokens import PREFIX, digest_of
from seaweedq.api.access.rules import SOCKET, Kind, find, rules_of
from seaweedq.api.request import Scope, header, headers_of
from seaweedq.broker.access import Callers, Touched
from seaweedq.errors import (
    Forbidden,
    MethodNotAllowed,
    NotReady,
    RouteNotFound,
    SeaweedqError,
    Unauthenticated,
    UnreadableRequest,
)

CALLER = "seaweedq.caller"  # the key in a scope
CALLER_HEADER = "Seaweedq-Caller"
_HEADER = CALLER_HEADER.lower().encode()
ANONYMOUS_KEY = "anonymous"
SHOWN = 200


class Named(msgspec.Struct, omit_defaults=True):
    """A caller in the header of a relay: its principal with the `uid`, the id of its token, and when that ends."""

    principal: str
    token: str | None = None
    expires_us: int = NEVER_US
    uid: str | None = None


_NAMED = msgspec.json.Decoder(Named)


def caller_of(scope: Scope) -> Caller:
    """Returns the caller of a request that has passed the gate."""
    found: Caller = scope[CALLER]
    return found


def key_of(scope: Scope) -> str:
    """Returns the name under which a caller's use is counted: a principal's uid, which no namesake has."""
    found: Caller | None = scope.get(CALLER)
    return (found.uid or found.principal if found else None) or ANONYMOUS_KEY


def check_right(scope: Scope, action: Action, resource: Resource) -> None:
    """Raises Forbidden where the caller may not do an action that its route alone does not tell."""
    check_caller(caller_of(scope), action, resource)


def check_caller(caller: Caller, action: Action, resource: Resource) -> None:
    """Raises Forbidden where a caller may not do an action."""
    if not judge(caller, action, resource):
        raise forbidden(action, resource)


def forbidden(action: Action, resource: Resource) -> Forbidden:
    """Returns the error for a right that is missing. It does not tell whether the resource exists."""
    shown = str(resource)[:SHOWN]
    return Forbidden(f"this needs the right to {action} on {shown!r}", action=str(action), resource=shown)


def header_of(caller: Caller) -> dict[str, str]:
    """Returns the header by which a relay names the caller; none for an anonymous one."""
    if caller.principal is None:
        return {}
    named = Named(caller.principal, caller.token, caller.expires_us, caller.uid)
    return {CALLER_HEADER: msgspec.json.encode(named).decode("ascii")}


def relayed_caller(scope: Scope) -> Caller:
    """Returns the caller of a request that another broker has judged and relayed. It may do what it was let do."""
    text = header(scope, _HEADER)
    if text is None:
        return ANONYMOUS
    try:
        named = _NAMED.decode(text)
    except msgspec.DecodeError:
        raise Forbidden(f"the header {CALLER_HEADER} of another broker cannot be read") from None
    return Caller(named.principal, named.token, (EVERYTHING,), named.expires_us, uid=named.uid)


REMEMBERED_BYTES = 8 * 2**20
REMEMBERED_RIGHTS = 64  # of one token
REMEMBERED_PATH = 256  # characters: no name is checked before the gate, so a path may be as long as a head
TOKEN_BYTES, RIGHT_BYTES = 1_000, 400  # beside texts: the objects, and their places in sets and dicts


@dataclass(slots=True)
class ShownToken:
    """A token as the SHA-256 of its text; the caller that it stood for, what that was allowed, and their `bytes`."""

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
        """Remembers what a caller was allowed by the token that a header has shown."""
        token, size = caller.token or "", RIGHT_BYTES + sum(map(sys.getsizeof, resource))
        seen = self.by_header.get(header)
        if seen is None or seen.caller is not caller or len(seen.allowed) >= REMEMBERED_RIGHTS:
            self._drop(token)
            seen = None
        if self._bytes + size + TOKEN_BYTES > REMEMBERED_BYTES:
            self.forget(None)
            seen = None
        if seen is None:
            seen = self.by_header[header] = ShownToken(digest_of(text), caller)
            self._headers[token] = header
            size += TOKEN_BYTES
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


T = TypeVar("T")
RULE = "seaweedq.rule"  # the key in a scope of the rule and what it is about
RELAYED = "seaweedq.relayed"  # is in the scope of a request that another broker has relayed
SUBPROTOCOL = "bearer."
USUAL = b"Bearer "
REFUSED = "this needs a token that counts, as `Authorization: Bearer sq1_...`"


class Gate:
    """Judges the requests of one broker. `is_of_broker` tells which come from another broker of the cluster."""

    def __init__(self, callers: Callers, needs_token: bool, is_of_broker: Callable[[Scope], bool]) -> None:
        self._callers = callers
        self._needs_token = needs_token
        self._is_of_broker = is_of_broker
        self._shown = ShownTokens()
        callers.tell(self._shown.forget)

    def admit(self, scope: Scope) -> None:
        """Puts the caller into the scope. Raises RouteNotFound and MethodNotAllowed where there is no rule,
        Unauthenticated, Forbidden, UnreadableRequest for two tokens, and NotReady while tokens are not known yet."""
        rule, resource = scope[RULE] = find(_method(scope), scope["path"]) or _no_rule(scope)
        if rule.kind is Kind.OPEN or rule.kind is Kind.OWN_RIGHT:
            scope[CALLER] = NOBODY
            return
        if self._is_of_broker(scope):
            scope[RELAYED] = True
            scope[CALLER] = relayed_caller(scope)
            return
        seen = self._shown.by_header.get(headers_of(scope).get(b"authorization"))
        if seen is not None and (rule.action, resource) in seen.allowed and self._counts(seen, scope):
            scope[CALLER] = seen.caller
            return
        caller = scope[CALLER] = self._caller(scope)
        if rule.action is None:
            if not caller.layers and caller.principal is None:
                raise Unauthenticated(REFUSED)
        elif not judge(caller, rule.action, resource):
            raise Unauthenticated(REFUSED) if caller is NOBODY else forbidden(rule.action, resource)
        elif caller.token is not None and caller.uid is not None:
            self._remember(scope, caller, rule.action, resource)

    async def admit_or_learn(self, scope: Scope) -> None:
        """As `admit`. Of a token that is not known another broker may have told its client a moment ago, so it is
        looked up once. Raises CoordinationUnavailable, too."""
        try:
            self.admit(scope)
        except Unauthenticated:
            text = text_of(scope)
            if text is None or not await self._callers.learn(text):
                raise
            self.admit(scope)

    async def while_allowed(self, scope: Scope, work: Coroutine[Any, Any, T]) -> T:
        """Returns the result of `work`. Where the request lasts, and its caller loses the right, the work is cancelled.
        Raises Unauthenticated then, Forbidden where the token counts still, and may only do less than before, and
        NotReady where the broker had no lease. The broker that has relayed a request ends it: it knows the token, which
        this one may not know yet, or ever, as that of the other one's admin."""
        rule, resource = scope[RULE]
        if not rule.lasts or rule.action is None or caller_of(scope).token is None or self._is_of_broker(scope):
            return await work
        task, ended = asyncio.current_task(), False
        assert task is not None

        def end() -> None:
            """Ends the work, since the caller has lost its right."""
            nonlocal ended
            ended = True
            task.cancel()

        try:
            with self._callers.holding(caller_of(scope), rule.action, resource, end):
                return await work
        except asyncio.CancelledError:
            if not ended or task.uncancel() > 0:  # the broker's stop has cancelled it as well
                raise
            raise self._why_ended(scope, rule.action, resource) from None

    def _why_ended(self, scope: Scope, action: Action, resource: Resource) -> SeaweedqError:
        now = self._callers.again(caller_of(scope))
        if now is None:
            return Unauthenticated(REFUSED)
        if not judge(now, action, resource):
            return forbidden(action, resource)
        return NotReady("this broker did not know which tokens count: its lease had expired, or its clock was set back")

    def _counts(self, seen: ShownToken, scope: Scope) -> bool:
        """Returns whether a token that was remembered is all that this request gives, and still stands for the same
        caller. A WebSocket may give another one."""
        return scope["type"] == "http" and self._callers.find(seen.digest) is seen.caller

    def _remember(self, scope: Scope, caller: Caller, action: Action, resource: Resource) -> None:
        """Remembers what a caller was allowed by a token of the usual form."""
        shown = headers_of(scope).get(b"authorization")
        is_usual = shown is not None and shown.startswith(USUAL) and b"," not in shown
        if shown is None or not is_usual or scope["type"] != "http" or len(scope["path"]) > REMEMBERED_PATH:
            return
        self._shown.add(shown, shown[len(USUAL) :], caller, action, resource)

    def _caller(self, scope: Scope) -> Caller:
        text = text_of(scope)
        if text is None:
            return self._without_token
        found = self._callers.find(digest_of(text))
        if found is not None:
            return found
        if not text.startswith(PREFIX):
            return self._without_token
        if not self._callers.view.loaded:
            raise NotReady("the broker is starting, and does not know yet which tokens count")
        raise Unauthenticated(REFUSED)

    @property
    def _without_token(self) -> Caller:
        return NOBODY if self._needs_token else self._callers.anonymous


def text_of(scope: Scope) -> bytes | None:
    """Returns the token that a request gives, whether or not it counts. Raises UnreadableRequest where it gives two."""
    shown = headers_of(scope).get(b"authorization")
    if shown is None:
        text = None
    elif shown.startswith(USUAL) and b"," not in shown:
        text = shown[len(USUAL) :]
    else:
        text = _bearer(scope, shown)
    if scope["type"] == "websocket" and (of_socket := _of_subprotocols(scope)) is not None:
        if text is not None:
            raise UnreadableRequest("the header Authorization and a subprotocol bearer.{token} both give a token")
        return of_socket
    return text


def _method(scope: Scope) -> str:
    return SOCKET if scope["type"] == "websocket" else str(scope["method"])


def _no_rule(scope: Scope) -> NoReturn:
    method, path = _method(scope), scope["path"][:SHOWN]
    if method == SOCKET:
        raise RouteNotFound(f"there is no WebSocket at {path}; see /docs")
    allowed = sorted(rules_of(scope["path"]).keys() - {SOCKET, "HEAD"})  # who may GET knows that
    if allowed:
        raise MethodNotAllowed(f"{method} is not allowed on {path}, only {', '.join(allowed)}", allowed=allowed)
    raise RouteNotFound(f"there is no route {method} {path}; see /docs")


def _bearer(scope: Scope, shown: bytes) -> bytes | None:
    """Returns the token of the header Authorization; None for another scheme, which a proxy may have for itself."""
    if b"," in shown and sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
        raise UnreadableRequest("the header Authorization is given more than once")
    scheme, _, text = shown.partition(b" ")
    return text.strip() if scheme.lower() == b"bearer" else None


def _of_subprotocols(scope: Scope) -> bytes | None:
    """Returns the token of a browser's WebSocket, which can send no header."""
    found = [one for one in scope.get("subprotocols", ()) if one.startswith(SUBPROTOCOL)]
    if len(found) > 1:
        raise UnreadableRequest("the subprotocol bearer.{token} is given more than once")
    return found[0].removeprefix(SUBPROTOCOL).encode("latin-1", "replace") if found else None
