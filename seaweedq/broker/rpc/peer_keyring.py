"""Which brokers of the roster this one trusts, with which keys, and whether the cluster has come so far.

Below level PEERS_FROM brokers show each other the secret itself. They read each other's proofs from the moment at which
the cluster *writes* that level: by then each living broker has a version that proves and greets. Brokers see that
moment one after another, and no request is lost: a broker answers hellos and stamps at any level, and takes the secret
itself until it has seen the moment; one that is shown the secret afterwards refuses it as `shown`, before it does
anything, and the caller turns to a hello. The level never falls, so the secret is never shown again.

Whoever can write to coordination could tell a starting broker of a lower level. The store's mark of the level
(storage/level_marks), which nobody removes, counts as well. Where a rise was broken off behind that mark, a broker that
starts neither shows the secret nor takes it; those from before it answer its hellos, as they read the level.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import starmap
from typing import TYPE_CHECKING

from seaweedq.broker.rpc.peer_keys import PEERS_FROM, LinkRoot, PeerKeys, RootKeys
from seaweedq.broker.rpc.transport import Secured
from seaweedq.clock import Ids
from seaweedq.coordination.records.cluster import BrokerRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.coordination.roster import Roster

if TYPE_CHECKING:
    from seaweedq.broker.rpc.peer_tls import PeerTls

logger = logging.getLogger(__name__)


def secrets_of(setting: str) -> tuple[str, ...]:
    """Returns the secrets of a `cluster_secret`, which are separated by commas."""
    return tuple(secret for one in setting.split(",") if (secret := one.strip()))


class PeerKeyring:
    """One broker's knowledge of the secrets; `keys` are empty until the cluster's id is known, `me` is its own id."""

    def __init__(self, secrets: Sequence[str], level: Callable[[], int], ids: Ids) -> None:
        self.secrets = tuple(secrets)
        self.keys = PeerKeys()
        self.me = ""
        self._level = level
        self._ids = ids
        self._marked = 0

    def begin(self, keys: PeerKeys, me: str, marked: int = 0) -> None:
        """Takes the keys, the id of this broker, and the level that the store names."""
        self.keys, self.me, self._marked = keys, me, marked

    @cached_property
    def tls(self) -> "PeerTls":
        """Returns the contexts of ports for brokers. They are made when they are first needed, which takes a while."""
        from seaweedq.broker.rpc.peer_tls import PeerTls  # which imports cryptography

        return PeerTls(self.keys, self.me, self._ids)

    @property
    def is_on(self) -> bool:
        """Tells whether brokers prove what they are; else they show the secret."""
        return self._level() >= PEERS_FROM or self._marked >= PEERS_FROM

    def is_known(self, broker: str, record: BrokerRecord) -> bool:
        """Tells whether a broker's record shows that it knows a secret of this broker. One without any believes all
        records, and calls nobody."""
        return not (self.is_on and self.secrets) or self.keys.shared(broker, record) is not None

    def link_roots(self, brokers: Mapping[str, Versioned[BrokerRecord]]) -> list[LinkRoot]:
        """Returns what signs payload links. The first is one that all of these brokers take, if there is one: while the
        secret is changed, a link of one broker opens at each other one. Brokers that prove nothing have no say."""
        pairs = list(zip(self.keys.roots, self.secrets, strict=False))  # no keys before the cluster's id is known
        if len(pairs) > 1:
            proving = [(broker, known.record) for broker, known in brokers.items() if known.record.proofs]
            pairs.sort(key=lambda pair: not all(starmap(pair[0].is_proven, proving)))
        return [LinkRoot(keys.derive(b"links"), secret.encode()) for keys, secret in pairs]

    def tell(self) -> None:
        """Logs that secrets go over the wire."""
        if self.secrets and not self.is_on:
            logger.warning(
                "the cluster has level %d: its brokers show each other cluster_secret itself. "
                "`seaweedq cluster level %d` ends that, once all brokers read that level",
                self._level(),
                PEERS_FROM,
            )


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

    def __init__(self, roster: Roster, trust: PeerKeyring) -> None:
        self._roster = roster
        self._trust = trust
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
            if keys := self._trust.keys.shared(broker, known.record):
                apart = known.record.peer_url
                secured = self._trust.tls.client(broker, keys) if apart else None
                found = self._found[url] = Address(broker, apart or url, keys, known.revision, secured)
                return found
        return None
