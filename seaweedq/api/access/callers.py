"""The caller of a request, as the gate has put it into the request's scope; and the header by which a relay names it.

The broker that a client has asked judges; the one to which it relays trusts that. The header counts only on a request
that is known to be a broker's, so that a client that sends it gains nothing.
"""

import msgspec

from seaweedq.access.actions import Action, Resource
from seaweedq.access.authorizer import judge
from seaweedq.access.caller import ANONYMOUS, NEVER_US, Caller
from seaweedq.access.grants import EVERYTHING
from seaweedq.api.asgi.http import Scope, header
from seaweedq.errors import Forbidden

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
