"""A topic of which retention has taken the first files."""

from seaweedq.broker.broker import Broker
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Put
from seaweedq.coordination.records import StartRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.in_process import publish
from tests.support.brokers.in_process_cluster import until


async def fill(broker: Broker, files: int = 3, rows: int = 2) -> None:
    """Publishes to `t`, which has one segment: a file without rows, and so many files of two rows each."""
    topic = broker.core.catalog.topic("t")
    for at in range(files):
        await publish(broker, topic, *(str(rows * at + n) for n in range(rows)))
        await broker.serving.reading.positions.positions(topic, flush=True)


async def raise_start(coordination: Coordination, sequence: int, offset: int, segment: int = 0) -> None:
    """What the leader writes when retention takes what is before this entry of `t`."""
    value = keys.STARTS.encode(Versioned.new(StartRecord(sequence, offset, ((sequence, 0),))))
    await coordination.commit([], [Put(keys.STARTS.key("t", 0, segment), value)])


async def see_start(offset: int, *brokers: Broker) -> None:
    """Waits until these brokers know the start of segment 0."""
    await until(
        lambda: all(b.core.catalog.start_offsets(b.core.catalog.topic("t")).get(0, 0) == offset for b in brokers)
    )


async def delete_before(store: MemoryStore, sequence: int, segment: int = 0) -> dict[str, bytes]:
    """Deletes the files before this entry of `t`. Returns them."""
    folder = segment_folder("t", segment)
    doomed = [name for name in await store.list(folder) if EntryName.parse(name).sequence < sequence]
    found = {name: await store.read(name) for name in doomed}
    for name in doomed:
        await store.delete(name)
    return found
