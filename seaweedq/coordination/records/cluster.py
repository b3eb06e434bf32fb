"""The records of the cluster: its identity and level, its brokers with what is suspected of them, journals, secret."""

import msgspec

from seaweedq import levels


class ClusterRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The id of the cluster and, once the store's identity exists, the id of that store; the store's `_cluster.json`
    must match both.

    A broker that joins must read `level`; forms are written at `written`, which follows it. `draft` is the draft number
    of the forms (levels.DRAFT).
    """

    cluster: str
    store: str = ""
    level: int = 1
    written: int = 1
    draft: int = 0

    @staticmethod
    def new(cluster: str, level: int) -> "ClusterRecord":
        """Returns the record of a cluster that begins at a level, and whose store is not known yet."""
        return ClusterRecord(cluster, level=level, written=level, draft=levels.DRAFT)


class BrokerRecord(msgspec.Struct, frozen=True):
    """A living broker: its URL, its given name, its zone. One that is `starting` (its recovery may take long) or
    `draining` gets no new segments.

    It reads the levels from `lowest` to `highest`. `version` is for people. `lease_s` is the time of its lease as
    it was granted; 0: the broker does not say. One that is `spared` lost its last lease while it lived, and is not
    suspected for a while (broker/cluster/suspecting). `peer_url` is where brokers call it, if not at `url`; `proofs`
    show that it knows the cluster's secret (broker/rpc/peer_keys).
    """

    url: str
    name: str
    started_us: int
    zone: str = ""
    draining: bool = False
    starting: bool = False
    lowest: int = 1
    highest: int = 1
    version: str = ""
    lease_s: float = 0.0
    spared: bool = False
    peer_url: str = ""
    proofs: tuple[str, ...] = ()

    @property
    def takes_more(self) -> bool:
        """Tells whether it may get segments and subscriptions."""
        return not self.starting and not self.draining


class SuspicionRecord(msgspec.Struct, frozen=True):
    """One broker's report that another one, which had answered it at this URL, refuses connections there."""

    url: str


class RevocationRecord(msgspec.Struct, frozen=True):
    """The mark of a broker whose lease was ended early, or is about to be: the broker may go on as if it had one for
    `lease_s` after that. `by` is the broker that ends it, `reporters` are those that suspect it; without them it does
    not read the cluster's level."""

    by: str
    reporters: tuple[str, ...]
    lease_s: float


class LeaderRecord(msgspec.Struct, frozen=True):
    """The id of the broker that leads."""

    broker: str


class JournalRecord(msgspec.Struct, frozen=True):
    """The place of a broker's journal: which kind of backend has it, and the id of the broker's home folder (`place`),
    whose lock the broker held.

    `path` is that folder, where the backend needs it. `recovered`: the broker is dead, and its journal has been
    replayed; only the journal's content is still to be removed. The broker reads the levels from `lowest` to `highest`.
    `needs_newer`: no broker that lives reads the journal, as far as the leader knows. `left`: the
    broker is dead, and all of its journal has been replayed but what it holds of these topics, since a record of theirs
    could not be read.
    """

    kind: str
    place: str
    path: str = ""
    recovered: bool = False
    lowest: int = 1
    highest: int = 1
    needs_newer: bool = False
    left: tuple[str, ...] | None = None


class SecretRecord(msgspec.Struct, frozen=True):
    """A key that all brokers share, in hex."""

    secret: str
