"""Tells requests of this cluster's brokers from those of clients (broker/rpc/peer_gate), once for each request: the
number of a stamp is taken by the first look."""

from seaweedq.api.asgi.http import Scope, header, headers_of
from seaweedq.api.asgi.refusals import Refusals
from seaweedq.broker.rpc.client import SECRET_HEADER
from seaweedq.broker.rpc.peer_gate import PeerGate
from seaweedq.broker.rpc.peer_sessions import HELLO_HEADER, STAMP_HEADER, Covered, Refusal, Welcome
from seaweedq.errors import PeerRefused

_SECRET, _STAMP, _HELLO = (name.lower().encode() for name in (SECRET_HEADER, STAMP_HEADER, HELLO_HEADER))
_SENDER = "seaweedq.peer"  # the key in a scope of the broker that sent the request
_USUAL = (Refusal.SESSION, Refusal.LATE)  # after a restart, after an hour, behind a slow connection
_SHOWN_SECRET = "?"  # stands for a sender that shows the secret, and no id


class PeerRequests:
    """The requests of other brokers among all that come."""

    def __init__(self, gate: PeerGate, refusals: Refusals) -> None:
        self._gate = gate
        self._refusals = refusals

    def authenticated(self, scope: Scope) -> bool:
        """Tells whether a broker of this cluster sent the request. Raises PeerRefused where the request claims it, and
        it is not so: it must not be relayed once more, and so round and round."""
        if _SENDER not in scope:
            scope[_SENDER] = self._sender(scope)
        return bool(scope[_SENDER])

    def was_found(self, scope: Scope) -> bool:
        """Tells whether a look has found that a broker of this cluster sent the request."""
        return bool(scope.get(_SENDER))

    def welcome(self, scope: Scope) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused, NotReady."""
        try:
            return self._gate.welcome(header(scope, _HELLO) or "")
        except PeerRefused as error:
            raise self._noted(error, scope) from error

    def _sender(self, scope: Scope) -> str:
        headers = headers_of(scope)
        stamp, shown = headers.get(_STAMP), headers.get(_SECRET)
        if stamp is None and shown is None:
            return ""
        try:
            if stamp is not None:
                return self._gate.check_stamp(stamp.decode("latin-1"), _covered(scope))
            self._gate.check_shown((shown or b"").decode("latin-1"))
        except PeerRefused as error:
            raise self._noted(error, scope) from error
        return _SHOWN_SECRET

    def _noted(self, error: PeerRefused, scope: Scope) -> PeerRefused:
        """Counts and logs a refusal, with the address of its sender."""
        address = (scope.get("client") or ["an unknown address"])[0]
        if error.fields["reason"] not in _USUAL:
            self._refusals.note("peer", f"{error.detail} ({error.fields['reason']}, from {address})")
        return PeerRefused(error.detail, inside=f"from {address}", **error.fields)


def _covered(scope: Scope) -> Covered:
    method = scope.get("method", "GET")  # that of a WebSocket's handshake, for which no broker asks
    return Covered.of(method, scope["raw_path"], scope["query_string"], headers_of(scope).items())
