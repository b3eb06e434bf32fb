"""Tells requests of this cluster's brokers from those of clients (broker/rpc/peer_keyring), once for each request: the
number of a stamp is taken by the first look.

It also tells the port for brokers from the one for clients: at the first nobody else is answered, at the second no
broker is, once all know the first.
"""

from seaweedq.api.refusals import Refusals
from seaweedq.api.request import Request
from seaweedq.broker.rpc import HELLO_HEADER, STAMP_HEADER, USUAL, Covered, PeerVerifier, Refusal, Welcome
from seaweedq.broker.rpc import refused as refused_peer
from seaweedq.errors import PeerRefused, RouteNotFound

STAMP, _HELLO = (name.lower().encode() for name in (STAMP_HEADER, HELLO_HEADER))
PREFIX = "/internal/"
SHOWN = 200


class PeerRequests:
    """The requests of other brokers among all that come."""

    def __init__(self, gate: PeerVerifier, refusals: Refusals) -> None:
        self._gate = gate
        self._refusals = refusals

    def authenticated(self, request: Request) -> bool:
        """Tells whether a broker of this cluster sent the request. Raises PeerRefused where the request claims it, and
        it is not so: it must not be relayed once more, and so round and round."""
        if request.sender is None:
            request.sender = self._sender(request)
            if request.sender and request.connection:
                request.connection.exempt()
        return bool(request.sender)

    def check_port(self, request: Request) -> None:
        """Raises RouteNotFound for a request of somebody else at the port for brokers, and for a call at the port for
        clients that has no place there; PeerRefused as `authenticated`."""
        if request.at_peer_port:
            if not (request.path.startswith(PREFIX) or self.authenticated(request)):
                raise RouteNotFound("this port is for brokers of the cluster; clients have another one")
        elif self._gate.is_apart and request.path.startswith(PREFIX) and not self._is_claimed(request):
            raise RouteNotFound(
                f"there is no route {'' if request.is_socket else request.method} {request.path[:SHOWN]}; see /docs"
            )

    def _is_claimed(self, request: Request) -> bool:
        """Refuses a hello at the port for clients, as it refuses stamps, so that who sends it looks for the other one.
        Tells whether the request claims to be a broker's."""
        if request.header(_HELLO) is not None:
            raise self._noted(_elsewhere(), request)
        return self.authenticated(request)

    def welcome(self, request: Request) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused, NotReady."""
        try:
            return self._gate.welcome(request.header(_HELLO) or "")
        except PeerRefused as error:
            raise self._noted(error, request) from error

    def _sender(self, request: Request) -> str:
        stamp = request.headers.get(STAMP)
        if stamp is None:
            return ""
        try:
            if self._gate.is_apart and not request.at_peer_port:
                raise _elsewhere()
            return self._gate.check_stamp(stamp.decode("latin-1"), _covered(request))
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
    return refused_peer(Refusal.PORT, "this broker answers brokers at its peer_port alone")


def _covered(request: Request) -> Covered:
    method = "GET" if request.is_socket else request.method
    return Covered.from_request(method, request.raw_path, request.query_string, request.headers.items())
