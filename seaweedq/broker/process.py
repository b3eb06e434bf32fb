"""The process stage of a broker: what its process chose for it, before it knows its cluster (broker/context)."""

from dataclasses import dataclass, field

from seaweedq.broker.imports.reader_process import StartReader, no_reader
from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.rpc.peer_keys import MakeKeys, make_keys
from seaweedq.broker.suspicion.own_revocations import OwnRevocations
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.thread_loop import Aside, StartAside
from seaweedq.journal.interface import JournalSetup
from seaweedq.settings import Settings
from seaweedq.storage.counting import Counted


@dataclass(frozen=True)
class ProcessContext:
    """The backends that a broker's process chose for it, and how it and others reach each other: clients at `url`,
    brokers at `peer_url` if there is one.

    `secret` is the setting by which brokers of the cluster know each other; an empty one matches nothing. `make_keys`
    makes the keys of its secrets, which takes a while. `import_reader` starts the reader of an import. `aside` runs
    what must go on while the event loop stands still; None runs it on the loop. `pools` are the threads of the process,
    for its metrics. `revoked` remembers over all lives of the process which of its leases others have ended.
    """

    settings: Settings
    store: Counted
    coordination: Coordination
    journals: JournalSetup
    clock: Clock
    ids: Ids
    peers: Peers
    url: str
    revoked: OwnRevocations
    secret: str = ""
    import_reader: StartReader = no_reader
    aside: StartAside | None = Aside
    pools: Pools = field(default_factory=Pools)
    peer_url: str = ""
    make_keys: MakeKeys = make_keys
