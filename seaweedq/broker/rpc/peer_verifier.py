"""The callee's side: tells requests of this cluster's brokers from those of clients.

Hellos and stamps are taken at any level. The secret itself is taken below level PEERS_FROM alone.

A broker may have a port for brokers (`peer_port`). From level PEERS_FROM on it answers brokers there alone: it
`is_apart`. Its record says where that is, for as long as it lives, so each caller goes there, whether or not it has
such a port of its own: ports may come and go with the lives of brokers, in any order.

| level that the callee has seen | at its port for clients | at its port for brokers |
| --- | --- | --- |
| below PEERS_FROM | the secret; hellos and stamps | hellos and stamps |
| PEERS_FROM | calls are 404, stamps are refused as `port`, the secret as `shown` | hellos and stamps |

A caller that has not seen the level shows the secret at the port for clients, is refused before anything is done, and
turns to a hello at the other port. One that has seen it goes there at once, whatever the callee has seen. One that
means an earlier life, which had no such port, is refused, and looks at the roster again.
"""

import hmac

from seaweedq.broker.rpc.peer_keyring import PeerKeyring
from seaweedq.broker.rpc.peer_sessions import Covered, Hello, IncomingSessions, Refusal, Welcome, refused
from seaweedq.clock import Clock, Ids
from seaweedq.errors import NotReady


class PeerVerifier:
    """The gate of one broker."""

    def __init__(self, trust: PeerKeyring, clock: Clock, ids: Ids, has_port: bool = False) -> None:
        self._has_port = has_port
        self._trust = trust
        self._clock = clock
        self._ids = ids
        self._made: IncomingSessions | None = None

    @property
    def is_apart(self) -> bool:
        """Tells whether brokers are answered at the port for brokers alone."""
        return self._has_port and self._trust.is_on

    def welcome(self, hello: str) -> Welcome:
        """Returns the answer to a hello. Raises PeerRefused, NotReady."""
        return self._sessions().welcome(Hello.decode(hello))

    def check_stamp(self, stamp: str, request: Covered) -> str:
        """Takes a request. Returns the id of the broker that sent it. Raises PeerRefused, NotReady."""
        return self._sessions().check(stamp, request)

    def check_shown(self, secret: str) -> None:
        """Takes a request that shows the secret. Raises PeerRefused."""
        if self._trust.is_on:
            raise refused(Refusal.SHOWN, "brokers of this cluster no longer show the secret")
        shown = secret.encode()
        if not any(hmac.compare_digest(shown, one.encode()) for one in self._trust.secrets):
            raise refused(Refusal.SECRET, "only brokers of this cluster may do this, and the secret is another one")

    def _sessions(self) -> IncomingSessions:
        if self._made is None:
            if not self._trust.me:
                raise NotReady("the broker is starting")
            self._made = IncomingSessions(self._trust.keys, self._trust.me, self._clock, self._ids)
        return self._made
