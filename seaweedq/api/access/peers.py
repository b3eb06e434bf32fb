"""Tells requests of this cluster's brokers from those of clients (broker/rpc/peer_verifier), once for each request: the
number of a stamp is taken by the first look.

It also tells the port for brokers from the one for clients: at the first nobody else is answered, at the second no
broker is, once all know the first.
"""

from seaweedq.api.refusals import Refusals
from seaweedq.api.request import Scope, connection_of, header, headers_of
from seaweedq.broker.rpc import HELLO_HEADER, STAMP_HEADER, USUAL, Covered, PeerVerifier, Refusal, Welcome
from seaweedq.broker.rpc import refused as refused_peer
from seaweedq.errors import PeerRefused, RouteNotFound

_STAMP, _HELLO = (name.lower().encode() for name in (STAMP_HEADER, HELLO_HEADER))
_SENDER = "seaweedq.peer"  # the key in a scope of the broker that sent the request
PEER_PORT = "seaweedq.peer_port"  # the key in a scope of a request that came at the port for brokers
PREFIX = "/internal/"
SHOWN = 200


class PeerRequests:
    """The requests of other brokers among all that come."""

    def __init__(self, gate: PeerVerifier, refusals: Refusals) -> None:
        self._gate = gate
        self._refusals = refusals

    def authenticated(self, scope: Scope) -> bool:
        """Tells whether a broker of this cluster sent the request. Raises PeerRefused where the request claims it, and
        it is not so: it must not be relayed once more, and so round and round."""
        if _SENDER not in scope:
            sender = scope[_SENDER] = self._sender(scope)
            if sender and (connection := connection_of(scope)):
                connection.exempt()
        return bool(scope[_SENDER])

    def was_found(self, scope: Scope) -> bool:
        """Tells whether a look has found that a broker of this cluster sent the request."""
        return bool(scope.get(_SENDER))

    def check_port(self, scope: Scope) -> bool:
        """Tells whether a request came at the port for brokers. Raises RouteNotFound for one of somebody else there,
        and for a call at the port for clients that has no place there; PeerRefused as `authenticated`."""
        if PEER_PORT in scope:
            if not (scope["path"].startswith(PREFIX) or self.authenticated(scope)):
                raise RouteNotFound("this port is for brokers of the cluster; clients have another one")
            return True
        if self._gate.is_apart and scope["path"].startswith(PREFIX) and not self._is_claimed(scope):
            raise RouteNotFound(f"there is no route {scope.get('method', '')} {scope['path'][:SHOWN]}; see /docs")
        return False

    def _is_claimed(self, scope: Scope) -> bool:
        """Refuses a hello at the port for clients, as it refuses stamps, so that who sends it looks for the other one.
        Tells whether the request claims to be a broker's."""
        if header(scope, _HELLO) is not None:
            raise self._noted(_elsewhere(), scope)
        return self.authenticated(scope)

    def welcome(self, scope: Scope) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused, NotReady."""
        try:
            return self._gate.welcome(header(scope, _HELLO) or "")
        except PeerRefused as error:
            raise self._noted(error, scope) from error

    def _sender(self, scope: Scope) -> str:
        stamp = headers_of(scope).get(_STAMP)
        if stamp is None:
            return ""
        try:
            if self._gate.is_apart and PEER_PORT not in scope:
                raise _elsewhere()
            return self._gate.check_stamp(stamp.decode("latin-1"), _covered(scope))
        except PeerRefused as error:
            raise self._noted(error, scope) from error

    def _noted(self, error: PeerRefused, scope: Scope) -> PeerRefused:
        """Counts and logs a refusal, with the address of its sender."""
        address = (scope.get("client") or ["an unknown address"])[0]
        # Brokers that have not heard of a new peer_port come here for a while: the audit alone tells of these.
        if error.fields["reason"] not in USUAL | {Refusal.PORT}:
            self._refusals.note("peer", f"{error.detail} ({error.fields['reason']}, from {address})")
        return PeerRefused(error.detail, inside=f"from {address}", **error.fields)


def _elsewhere() -> PeerRefused:
    return refused_peer(Refusal.PORT, "this broker answers brokers at its peer_port alone")


def _covered(scope: Scope) -> Covered:
    method = scope.get("method", "GET")  # that of a WebSocket's handshake, for which no broker asks
    return Covered.of(method, scope["raw_path"], scope["query_string"], headers_of(scope).items())
