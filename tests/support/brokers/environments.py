"""The environment of a broker in a test's own process, with peers and a machine that a test may replace."""

from pathlib import Path

from seaweedq.broker.broker import ProcessContext
from seaweedq.broker.cluster.suspecting import OwnRevocations
from seaweedq.broker.imports.reader_process import StartReader, no_reader
from seaweedq.broker.rpc.client import Peers
from seaweedq.cli.server.journals import journal_setup
from seaweedq.coordination.interface import Coordination
from seaweedq.journal.holdings import Holdings
from seaweedq.settings import Settings
from seaweedq.storage.file_cache import FileCache
from seaweedq.storage.instrumented import InstrumentedStore
from seaweedq.storage.interface import ObjectStore
from tests.support.brokers.machine import Machine
from tests.support.brokers.peer_keys import make_quick_keys


def environment(
    settings: Settings,
    store: ObjectStore,
    coordination: Coordination,
    url: str = "http://x",
    peers: Peers | None = None,
    secret: str = "",
    import_reader: StartReader = no_reader,
    machine: Machine | None = None,
    revoked: OwnRevocations | None = None,
    holdings: Holdings | None = None,
) -> ProcessContext:
    """An environment on these backends, with the journal that the settings choose."""
    machine = machine or Machine()
    clock, ids = machine.clock, machine.ids
    return ProcessContext(
        settings,
        InstrumentedStore(store, clock),
        coordination,
        journal_setup(settings, clock, ids, {}, machine.disk, **({} if holdings is None else {"holdings": holdings})),
        clock,
        ids,
        peers or Peers(),
        url,
        revoked or OwnRevocations(clock),
        secret,
        import_reader,
        machine.background,
        make_keys=make_quick_keys,
        cache=FileCache(Path(settings.cache_dir), settings.cache_bytes, clock) if settings.cache_dir else None,
    )
