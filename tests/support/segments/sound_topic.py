"""A topic's files as brokers write them, without a broker: a local store with one chain of several entries."""

import asyncio
import json
from pathlib import Path
from random import Random

import pyarrow as pa

from seaweedq.broker.log.entry_writer import EntryWriter, Source
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryMetadata, Seal
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.producers import ProducerTables
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.storage.identity import cluster_identity
from seaweedq.storage.local import LocalStore
from tests.support.levels import newest

CLUSTER = "c" * 32
ALL = KeyRange(0, KEY_SPACE)
LAYOUT = Layout.from_format(Format.JSON)
NOW_US = 1_760_000_000_000_000


def messages(first: int, count: int) -> pa.RecordBatch:
    """Rows whose values are all different, with keys, headers and expiry here and there."""
    return rows_of_singles(
        [
            Single(
                key=f"key-{n % 7}" if n % 3 else None,
                value=json.dumps({"n": n, "text": Random(n).randbytes(20).hex()}).encode(),
                headers={"trace": str(n)} if n % 50 == 0 else None,
                timestamp_us=NOW_US + n,
                expires_us=NOW_US * 2 if n % 40 == 0 else None,
            )
            for n in range(first, first + count)
        ],
        LAYOUT,
    )


class SoundTopic:
    """A store in `root` with the topic `flights`; `write` appends entries of so many rows to a segment."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ids = SystemIds()
        self.store = LocalStore(root, self._ids)
        asyncio.run(cluster_identity(self.store, CLUSTER, SystemClock()))

    def write(self, *sizes: int, segment: int = 0, keys: KeyRange = ALL, seal: Seal | None = None) -> None:
        """With a `seal`, the last of these entries has it."""
        asyncio.run(self._write(sizes, segment, keys, seal))

    def files(self, segment: int = 0) -> list[Path]:
        """The entries, in order."""
        return sorted((self.root / f"topics/flights/segment={segment}").iterdir())

    def metadata(self, number: int) -> EntryMetadata:
        """That of an entry of segment 0."""
        return asyncio.run(self._names())[number]

    async def _names(self) -> list[EntryMetadata]:
        chain = Chain(self.store, "flights", 0)
        await chain.open()
        return [chain.metadata(name) for name in await chain.names()]

    async def _write(self, sizes: tuple[int, ...], segment: int, keys: KeyRange, seal: Seal | None) -> None:
        source = Source("flights", segment, keys, LAYOUT)
        writer = EntryWriter(CLUSTER, "broker.1", SystemClock(), self._ids, newest)
        chain = Chain(self.store, "flights", segment)
        await chain.open()
        for at, size in enumerate(sizes):
            end = chain.end
            pieces = [(end, messages(end, size))] if size else []
            producers = ProducerTables.empty(segment, keys)
            last = seal if at == len(sizes) - 1 else None
            await writer.append(source, chain, pieces, producers, NOW_US + end + size - 1, last)
