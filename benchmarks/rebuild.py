"""Coordination of 10,000 open segments, each with a cursor: its snapshots, and its rebuild from a store of 20 ms a
request, into SQLite and into etcd.

The store is in memory, and answers as S3 does: a listing, and the end of a file, are a request each. Chains have one
entry, which is enough: the end of one costs the same however long it is, up to a page of its listing. As many segments
more are sealed, as the snapshot knows. Brokers have stopped in order: journals are not in the figures.
"""

import asyncio
import io
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, BinaryIO, NamedTuple, cast

import uvloop

from benchmarks.cluster_processes import start_etcd
from benchmarks.cost import MONTH_S, PUT_USD
from benchmarks.result import Result
from seaweedq.broker.backups import Backups
from seaweedq.broker.cluster.snapshots import Snapshots
from seaweedq.broker.context import Context
from seaweedq.broker.rebuild.journals import JournalSearch
from seaweedq.broker.rebuild.reading import READS
from seaweedq.broker.rebuild.rebuilding import Rebuilding, Wish
from seaweedq.cli.server.journals import journal_setup
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.backup import Sealer, SealKeys, State
from seaweedq.coordination.etcd import EtcdCoordination
from seaweedq.coordination.etcd_transport import Access
from seaweedq.coordination.interface import Compare, Coordination, Put
from seaweedq.coordination.records import Counter as CounterRecord
from seaweedq.coordination.records import (
    CursorRecord,
    RetentionPolicy,
    SegmentRecord,
    SubscriptionRecord,
    TopicConfig,
    TopicRecord,
)
from seaweedq.coordination.sqlite import EmbeddedCoordination
from seaweedq.coordination.versioned import Versioned
from seaweedq.levels import HIGHEST
from seaweedq.segments.entry import EntryMetadata, EntryName, encode_entry, segment_folder
from seaweedq.segments.keyrange import KeyRange, tile
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.producers import ProducerTable, ProducerTables
from seaweedq.settings import Settings
from seaweedq.storage.generations import Generation, Generations, create_generation
from seaweedq.storage.identity import cluster_identity
from seaweedq.storage.interface import Data, by_parts
from seaweedq.storage.memory import MemoryStore
from tests.support.journal.mirrors import MemoryMirrors

TOPICS, SEGMENTS = 100, 100  # open ones of each topic; as many are sealed, whose ids are below those
OPEN = TOPICS * SEGMENTS
REQUEST_S, SNAPSHOT_S, SNAPSHOTS = 0.02, 60.0, 20
GOAL_S, GOAL_REQUESTS, GOAL_BYTES, GOAL_USD = 60.0, 3.0, 2e6, 0.22
TAKES = RetentionPolicy(max_age_s=86_400.0)
LAYOUT = Layout.from_format(Format.JSON)
CLOCK, IDS = SystemClock(), SystemIds()
FIRST = Generation(1, "n" * 32)


class SlowStore(MemoryStore):
    """Takes `request_s` for each request, and counts them by segment's folder, and by kind and first folder. It sorts
    its names once, so that a listing takes it no longer than another server."""

    def __init__(self) -> None:
        super().__init__()
        self.request_s = 0.0
        self.requests: Counter[str] = Counter()
        self.of_segments: Counter[str] = Counter()
        self._sorted: list[str] = []

    async def create(self, name: str, data: Data) -> bool:
        await self._wait("create", name)
        return await super().create(name, data)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        await self._wait("read", name)
        return await super().read(name, start, end)

    async def size(self, name: str) -> int:
        await self._wait("size", name)
        return await super().size(name)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        await self._wait("list", prefix)
        if len(self._sorted) != len(self.objects):
            self._sorted = sorted(self.objects, key=by_parts)
        at = bisect_right(self._sorted, by_parts(after or prefix), key=by_parts)
        found = [name for name in self._sorted[at : at + limit] if name.startswith(prefix)]
        looks_for_folder = prefix.count("/") == 2 and "/segment=" not in prefix  # of one segment, which it finds
        self._count_segment(found[0] if found and looks_for_folder else prefix)
        return found

    def open(self, name: str) -> BinaryIO:
        self._count("open", name)
        self._count_segment(name)
        time.sleep(self.request_s)
        return io.BytesIO(self.objects[name])

    def clear(self) -> None:
        """Counts anew."""
        self.requests.clear()
        self.of_segments.clear()

    async def _wait(self, act: str, name: str) -> None:
        self._count(act, name)
        if self.request_s:
            await asyncio.sleep(self.request_s)

    def _count(self, act: str, name: str) -> None:
        self.requests[f"{act} {name.partition('/')[0]}"] += 1

    def _count_segment(self, name: str) -> None:
        folder, _, _ = name.rpartition("/")
        self.of_segments[folder] += folder.startswith("topics/") and folder.count("/") == 2


class World:
    """A store with chains, and a snapshot that knows their segments."""

    def __init__(self) -> None:
        self.store = SlowStore()
        self._state: dict[str, bytes] = {}
        self._chains: dict[str, bytes] = {}
        self._random = Random(7)
        for topic in range(TOPICS):
            self._fill(f"topic-{topic:03}")

    @property
    def backups(self) -> Backups:
        """Those of the first generation, with a secret."""
        generations = Generations(self.store)
        generations.begin(FIRST)
        sealer = Sealer(IDS.nonce, (SealKeys.from_root(lambda label: label[:1] * 32),))
        return Backups(self.store, sealer, generations, lambda: HIGHEST)

    async def begin(self, retention: RetentionPolicy) -> int:
        """Puts all that there is before a rebuild. Returns the snapshot's size in bytes."""
        self.store.objects = dict(self._chains)
        await cluster_identity(self.store, "c" * 32, CLOCK, "s" * 32)
        await create_generation(self.store, FIRST)
        for topic in range(TOPICS):
            record = TopicRecord(0, "active", TopicConfig(retention=retention), 1)
            self._put(keys.TOPICS, (f"topic-{topic:03}",), record)
        size_bytes = await self.backups.put_snapshot(State(1, 1, 10, self._state))
        assert size_bytes
        self.store.clear()
        return size_bytes

    def _fill(self, name: str) -> None:
        """A topic whose first segments were rolled, each into one of the same range."""
        self._put(keys.COUNTERS, (name,), CounterRecord(2 * SEGMENTS))
        subscription = SubscriptionRecord("shared", "earliest", 30, 0, None, 1, 5)
        self._put(keys.SUBSCRIPTIONS, (name, 0, "subscription"), subscription)
        for at, part in enumerate(tile(SEGMENTS)):
            self._put(keys.SEGMENTS, (name, 0, at), self._segment(part, "sealed", after=(SEGMENTS + at,)))
            self._put(keys.SEGMENTS, (name, 0, SEGMENTS + at), self._segment(part, "open", before=(at,)))
            self._put(keys.CURSORS, (name, 0, "subscription", SEGMENTS + at), self._cursor())
            for number in (at, SEGMENTS + at):
                entry = encode_entry([], LAYOUT, _metadata(name, number, part))
                self._chains[segment_folder(name, number) + str(EntryName(0, 0))] = entry.to_pybytes()

    def _segment(self, part: KeyRange, state: Any, before: tuple[int, ...] = (), after: tuple[int, ...] = ()) -> Any:
        end, owner = (40, None) if after else (None, f"broker-{self._random.randrange(9)}.{IDS.nonce()[:16]}")
        at_us = 1_700_000_000_000_000 + self._random.randrange(10**12)
        return SegmentRecord(part.low, part.high, state, before, after, owner, end, at_us, at_us if after else None)

    def _cursor(self) -> CursorRecord:
        """One with up to 20 acks out of order."""
        at = self._random.randrange(10**9)
        acked = tuple((at + 10 * one, at + 10 * one + 3) for one in range(1, self._random.randrange(1, 20)))
        return CursorRecord(5, at, acked, {}, at + 500)

    def _put(self, kind: keys.KeyKind[Any], parts: tuple[Any, ...], record: Any) -> None:
        self._state[kind.key(*parts)] = kind.encode(Versioned.new(record))


def _metadata(topic: str, number: int, part: KeyRange) -> EntryMetadata:
    """The last entry of a chain that is longer than all cursors."""
    producers = ProducerTables([ProducerTable(number, part)]).encode(HIGHEST)
    return EntryMetadata("c" * 32, topic, number, part.low, part.high, 0, 0, 0, "b", "e" * 32, 0, 1, 1, producers)


class Rebuilt(NamedTuple):
    """One rebuild: its seconds, those of CPU, and those of as many bare requests, as many at a time; the most requests
    for an open segment, and all for the sealed ones."""

    took_s: float
    cpu_s: float
    bare_s: float
    of_one: int
    of_sealed: int


async def rebuilt(world: World, coordination: Coordination, folder: Path) -> Rebuilt:
    """Rebuilds into an empty coordination."""
    setup = journal_setup(Settings(data_dir=folder, journal="object"), CLOCK, IDS, {})
    setup.home.lock(0)
    journals = setup.open(world.store, lambda: HIGHEST, lambda: (1, 0), MemoryMirrors())
    search = JournalSearch(journals, coordination)
    rebuilding = Rebuilding(coordination, world.store, world.store, world.backups, search, CLOCK, IDS, 5.0, "")
    world.store.request_s = REQUEST_S
    began_s, cpu_s = time.perf_counter(), time.process_time()
    report = await rebuilding.rebuild(Wish())
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    began_s = time.perf_counter()
    await gather_bounded(READS, lambda _: asyncio.sleep(REQUEST_S), range(world.store.requests.total()))
    bare_s = time.perf_counter() - began_s
    world.store.request_s = 0.0
    setup.home.release()
    assert len(report.plan.topics) == TOPICS, "a topic is missing"
    assert not any(one.damage for one in report.plan.topics.values()), "a chain is damaged"
    asked = world.store.of_segments
    of_open = [
        asked[segment_folder(f"topic-{t:03}", SEGMENTS + n)[:-1]] for t in range(TOPICS) for n in range(SEGMENTS)
    ]
    return Rebuilt(took_s, cpu_s, bare_s, max(of_open), asked.total() - sum(of_open))


async def snapshots(world: World, coordination: Coordination) -> tuple[int, int]:
    """Returns the puts of so many looks of a leader, a cursor having changed before each; and of as many without."""
    now_s, key = 0.0, keys.CURSORS.key("topic-000", 0, "subscription", SEGMENTS)
    generations = Generations(world.store)
    generations.begin(Generation(2, ""))
    context = SimpleNamespace(
        coordination=coordination,
        election=SimpleNamespace(leader_compare=lambda: Compare("leader", 0), is_leader=True),
        backups=Backups(world.store, Sealer(IDS.nonce), generations, lambda: HIGHEST),
        generations=generations,
        clock=SimpleNamespace(monotonic_s=lambda: now_s),
        settings=SimpleNamespace(snapshot_s=SNAPSHOT_S),
    )
    mine = Snapshots(cast(Context, context))
    await mine.put_if_changed()
    puts = []
    for changes in (True, False):
        world.store.clear()
        for number in range(SNAPSHOTS):
            now_s += SNAPSHOT_S
            if changes:
                cursor = keys.CURSORS.encode(Versioned.new(CursorRecord(5, number)))
                await coordination.commit([], [Put(key, cursor)])
            await mine.put_if_changed()
        puts.append(sum(count for name, count in world.store.requests.items() if name.startswith("create")))
    return puts[0], puts[1]


def measure(folder: Path) -> Iterator[Result]:
    """Rebuilds into each coordination; of topics of which retention takes files, too."""
    world = World()
    with ExitStack() as stack:
        endpoint = start_etcd(stack, folder)
        yield from uvloop.run(_measured(world, folder, endpoint))


async def _measured(world: World, folder: Path, endpoint: str) -> list[Result]:
    results: list[Result] = []
    for name, retention in (("SQLite", RetentionPolicy()), ("etcd", RetentionPolicy()), ("SQLite, retention", TAKES)):
        size_bytes = await world.begin(retention)
        here = folder / f"into-{len(results)}"
        here.mkdir()
        coordination: Coordination
        if name == "etcd":
            coordination = EtcdCoordination(Access([endpoint]), "seaweedq/")
        else:
            coordination = EmbeddedCoordination(here / "coordination.db", CLOCK)
        found = await rebuilt(world, coordination, here)
        results += _of_rebuild(name, found)
        if not results[3:]:
            results += _of_snapshots(size_bytes, await snapshots(world, coordination))
        await coordination.close()
    return results


def _of_rebuild(name: str, found: Rebuilt) -> list[Result]:
    name = f"rebuild of {OPEN:,} open segments, {name}"
    return [
        Result(
            name=name,
            figure=found.took_s,
            unit="s",
            limit=found.bare_s,
            limit_is=f"as many requests of {REQUEST_S * 1000:.0f} ms alone, {READS} at a time",
            target=GOAL_S,
            better="lower",
            note=f"{found.cpu_s:.1f} s of CPU",
        ),
        Result(
            name=f"{name}: for one of them",
            figure=found.of_one,
            unit="requests at most",
            target=GOAL_REQUESTS,
            better="lower",
        ),
        Result(
            name=f"{name}: for as many sealed ones",
            figure=found.of_sealed,
            unit="requests in all",
            target=None if "retention" in name else 0.0,
            better="lower",
            note="retention may have taken a first file since the snapshot" if "retention" in name else "",
        ),
    ]


def _of_snapshots(size_bytes: int, puts: tuple[int, int]) -> list[Result]:
    return [
        Result(name="snapshot", figure=size_bytes, unit="bytes", target=GOAL_BYTES, better="lower"),
        Result(
            name="snapshots while something changes",
            figure=puts[0] / (SNAPSHOTS * SNAPSHOT_S) * MONTH_S * PUT_USD,
            unit="$ of puts a month",
            limit=MONTH_S / SNAPSHOT_S * PUT_USD,
            limit_is=f"a put in {SNAPSHOT_S:.0f} s",
            target=GOAL_USD,
            better="lower",
        ),
        Result(
            name="snapshots while nothing changes",
            figure=puts[1],
            unit="puts",
            target=0.0,
            better="lower",
            note=f"{SNAPSHOTS} looks of a leader",
        ),
    ]
