"""The brokers of the roster that this one trusts, with their keys and addresses; and the callee's side, which tells
requests of this cluster's brokers from those of clients.

A broker may have a port for brokers (`peer_port`). It answers brokers there alone: it `is_apart`; at its port for
clients calls are 404, hellos and stamps are refused as `port`. Its record names that port for as long as it lives, so
each caller goes there, whether or not it has such a port of its own: ports may come and go with the lives of brokers,
in any order. A caller that means an earlier life, which had no such port, is refused, and looks at the roster again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING

from seaweedq.broker.rpc.peer_keys import PeerKeys, RootKeys, Secured
from seaweedq.broker.rpc.peer_sessions import Covered, Hello, IncomingSessions, Welcome
from seaweedq.clock import Clock, Ids
from seaweedq.coordination.records import BrokerRecord
from seaweedq.coordination.roster import Roster
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import NotReady

if TYPE_CHECKING:
    from seaweedq.broker.rpc.peer_tls import PeerTls


def secrets_of(setting: str) -> tuple[str, ...]:
    """Returns the secrets of a `cluster_secret`, which are separated by commas."""
    return tuple(secret for one in setting.split(",") if (secret := one.strip()))


class PeerKeyring:
    """One broker's knowledge of the secrets; `keys` are empty until the cluster's id is known, `me` is its own id."""

    def __init__(self, secrets: Sequence[str], ids: Ids) -> None:
        self.secrets = tuple(secrets)
        self.keys = PeerKeys()
        self.me = ""
        self._ids = ids

    def begin(self, keys: PeerKeys, me: str) -> None:
        """Takes the keys, and the id of this broker."""
        self.keys, self.me = keys, me

    @cached_property
    def tls(self) -> "PeerTls":
        """Returns the contexts of ports for brokers. They are made when they are first needed, which takes a while."""
        from seaweedq.broker.rpc.peer_tls import PeerTls  # which imports cryptography

        return PeerTls(self.keys, self.me, self._ids)

    def is_known(self, broker: str, record: BrokerRecord) -> bool:
        """Tells whether a broker's record shows that it knows a secret of this broker. One without any believes all
        records, and calls nobody."""
        return not self.secrets or self.keys.shared(broker, record) is not None

    def link_roots(self, brokers: Mapping[str, Versioned[BrokerRecord]]) -> list[bytes]:
        """Returns the keys that sign payload links. The first is one that all of these brokers take, if there is one:
        while the secret is changed, a link of one broker opens at each other one. Brokers that prove nothing have no
        say."""
        roots = list(self.keys.roots)
        if len(roots) > 1:
            proving = [(broker, known.record) for broker, known in brokers.items() if known.record.proofs]
            roots.sort(key=lambda root: not all(starmap(root.is_proven, proving)))
        return [root.derive(b"links") for root in roots]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker is called, and the keys that both know. `revision` is that of its record. A connection to a port
    for brokers is `secured`."""

    broker: str
    base: str
    keys: RootKeys
    revision: int
    secured: Secured | None = None


class Addresses:
    """The brokers by the URL that their records tell clients, which is how all of this broker names them."""

    def __init__(self, roster: Roster, keyring: PeerKeyring) -> None:
        self._roster = roster
        self._keyring = keyring
        self._found: dict[str, Address] = {}

    def find(self, url: str) -> Address | None:
        """Returns the broker at a URL; of several lives of one the latest. None: no broker that is trusted is there."""
        found = self._found.get(url)
        if found is None or self._roster.compare(found.broker).revision != found.revision:
            found = self._look(url)
        return found

    def forget(self, url: str) -> None:
        """Looks at the roster again for the next call of a URL: another life may have begun there."""
        self._found.pop(url, None)

    def _look(self, url: str) -> Address | None:
        self._found.pop(url, None)
        records = {broker: known.record for broker, known in self._roster.brokers.items() if known.record.url == url}
        for broker in sorted(records, key=lambda broker: records[broker].started_us, reverse=True):
            known = self._roster.brokers[broker]
            if keys := self._keyring.keys.shared(broker, known.record):
                apart = known.record.peer_url
                secured = self._keyring.tls.client(broker, keys) if apart else None
                found = self._found[url] = Address(broker, apart or url, keys, known.revision, secured)
                return found
        return None


class PeerVerifier:
    """The verifier of one broker. One that `is_apart` answers brokers at the port for brokers alone."""

    def __init__(self, keyring: PeerKeyring, clock: Clock, ids: Ids, is_apart: bool = False) -> None:
        self.is_apart = is_apart
        self._keyring = keyring
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
            if not self._keyring.me:
                raise NotReady("the broker is starting")
            self._made = IncomingSessions(self._keyring.keys, self._keyring.me, self._clock, self._ids)
        return self._made
