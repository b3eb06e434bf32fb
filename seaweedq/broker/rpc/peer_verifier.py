"""The callee's side: tells requests of this cluster's brokers from those of clients.

A broker may have a port for brokers (`peer_port`). It answers brokers there alone: it `is_apart`; at its port for
clients calls are 404, hellos and stamps are refused as `port`. Its record says where that port is, for as long as it
lives, so each caller goes there, whether or not it has such a port of its own: ports may come and go with the lives of
brokers, in any order. A caller that means an earlier life, which had no such port, is refused, and looks at the roster
again.
"""

from seaweedq.broker.rpc.peer_keyring import PeerKeyring
from seaweedq.broker.rpc.peer_sessions import Covered, Hello, IncomingSessions, Welcome
from seaweedq.clock import Clock, Ids
from seaweedq.errors import NotReady


class PeerVerifier:
    """The verifier of one broker. One that `is_apart` answers brokers at the port for brokers alone."""

    def __init__(self, trust: PeerKeyring, clock: Clock, ids: Ids, is_apart: bool = False) -> None:
        self.is_apart = is_apart
        self._trust = trust
        self._clock = clock
        self._ids = ids
        self._made: IncomingSessions | None = None

    def welcome(self, hello: str) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused, NotReady."""
        return self._sessions().welcome(Hello.decode(hello))

    def check_stamp(self, stamp: str, request: Covered) -> str:
        """Takes a request. Returns the id of the broker that sent it. Raises PeerRefused, NotReady."""
        return self._sessions().check(stamp, request)

    def _sessions(self) -> IncomingSessions:
        if self._made is None:
            if not self._trust.me:
                raise NotReady("the broker is starting")
            self._made = IncomingSessions(self._trust.keys, self._trust.me, self._clock, self._ids)
        return self._made
