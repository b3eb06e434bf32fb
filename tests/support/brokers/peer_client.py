"""Somebody who has the cluster's secret, and calls a broker as another broker does."""

import ssl
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from seaweedq.broker.broker import Broker
from seaweedq.broker.rpc.client import HELLO_PATH, Peers, Secured
from seaweedq.broker.rpc.peer_keyring import Address, Addresses, PeerKeyring, secrets_of
from seaweedq.broker.rpc.peer_keys import PeerKeys
from seaweedq.broker.rpc.peer_sessions import HELLO_HEADER, STAMP_HEADER, Covered, Hello, Outgoing, Welcome, accepted
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.coordination.memory import MemoryCoordination
from seaweedq.coordination.roster import Roster
from tests.support.brokers import inside
from tests.support.brokers.peer_keys import keys_of

ME = "tester.01"
Post = Callable[[str, Mapping[str, str]], Any]  # of a path and headers; answers as httpx does


def begin_session(post: Post, keys: PeerKeys, callee: str) -> Outgoing:
    """A session with a broker."""
    hello = Hello(ME, callee, SystemIds().nonce()).signed(keys.roots[0])
    answer = post(HELLO_PATH, {HELLO_HEADER: hello.encode()})
    assert answer.status_code == 200, answer.text
    welcome = msgspec.msgpack.decode(answer.content, type=Welcome)
    return accepted(hello, welcome, keys.roots[0], 0.0)


def stamped(session: Outgoing, method: str, path: str) -> dict[str, str]:
    """The headers of one more request."""
    raw, _, query = path.encode().partition(b"?")
    return {STAMP_HEADER: session.stamp(Covered.from_request(method, raw, query, ()))}


class _At(Addresses):
    """Finds one broker, at whatever URL it is asked for, or at the one that is given."""

    def __init__(self, broker: str, keyring: PeerKeyring, at: str = "", secured: Secured | None = None) -> None:
        super().__init__(Roster(MemoryCoordination(SystemClock())), keyring)
        self._broker, self._keys = broker, keyring.keys
        self._at, self._secured = at, secured

    def find(self, url: str) -> Address | None:
        return Address(self._broker, self._at or url, self._keys.roots[0], 0, self._secured)


def stranger_peers(certificates: Callable[[], ssl.SSLContext] | None = None) -> Peers:
    """Peers of no cluster: they say hello at any URL."""
    keyring = PeerKeyring(["secret"], SystemIds())
    keyring.begin(keys_of("secret"), ME)
    peers = Peers(certificates)
    peers.begin(keyring, _At("x.1", keyring), SystemClock(), SystemIds())
    return peers


def peers_of(
    broker: Broker,
    secret: str = "secret",
    certificates: Callable[[], ssl.SSLContext] | None = None,
    at: str = "",
    secured: Secured | None = None,
) -> Peers:
    """Peers that call this broker, wherever it serves, or at its port for brokers."""
    keyring = PeerKeyring(secrets_of(secret), SystemIds())
    keyring.begin(keys_of(*keyring.secrets, cluster=inside.cluster_id(broker)), ME)
    peers = Peers(certificates)
    peers.begin(keyring, _At(broker.id, keyring, at, secured), SystemClock(), SystemIds())
    return peers
