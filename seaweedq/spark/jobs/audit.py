"""`audit`: the checks of a topic's files that `seaweedq verify` has, as tasks of Spark over the files.

The driver lists the files and shares them out as *runs*, entries of a segment that follow one another; no row comes to
the driver. A task reads the metadata of the last sound entry before its run, so that it finds what an audit of the
whole chain finds there, and gives back its findings and the state of the chain. The driver puts the runs of a segment
together, compares them with the bounds that a broker states, and checks how segments follow one another.

Why brokers may write meanwhile: first a broker states how far each segment is in files, then the files are listed, then
it states where each segment begins and ends. Files that retention deletes after that are no findings.
"""

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from operator import ge
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from seaweedq.client.core.calls import call, segments, topic_path
from seaweedq.client.core.table import opened
from seaweedq.client.sync.client import Client
from seaweedq.errors import ChainDamaged, ClientError, NeedsNewerBroker, SegmentNotFound
from seaweedq.segments.audit import (
    Bounds,
    Finding,
    Listing,
    SegmentAudit,
    map_findings,
    no_seal,
    seal_findings,
    unended,
)
from seaweedq.segments.entry import EntryName, open_entry, segment_folder
from seaweedq.storage.identity import NAME, identity_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_BYTES = 32 * 1024 * 1024  # of files: small enough that the last task does not keep the others waiting
BEYOND = 2**63 - 1  # a start above all offsets
Chains = Mapping[int, Sequence[EntryName]]


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of a segment's chain, by their places in it."""

    segment: int
    start: int
    stop: int


@dataclass
class AuditedSegment:
    """A segment's audit, how many rows of it were read, and the entries that were listed and could not be opened."""

    chain: SegmentAudit
    rows: int = 0
    gone: list[EntryName] = field(default_factory=list)


@dataclass
class AuditedTopic:
    """The result of an audit."""

    segments: list[AuditedSegment] = field(default_factory=list)
    others: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """Returns all findings."""
        return [*self.others, *(finding for one in self.segments for finding in one.chain.findings)]


@dataclass(frozen=True)
class Place:
    """The place of a topic's files: the URL of its store, and options of fsspec for it."""

    store: str
    topic: str
    storage: Mapping[str, Any] = field(default_factory=dict)

    def opened(self) -> tuple[FileSystem, str]:
        """Returns the file system, and the path of the store there. Raises ClientError if a package is missing."""
        system, root = opened(self.store, self.storage)
        return system, root.rstrip("/")


class _Broker:
    """A topic as a broker describes it. Raises its errors, and ConnectionFailed."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client, self._topic = client, topic

    def place(self) -> tuple[str, str]:
        """Returns the id of its cluster, and the URL of its store."""
        folder: str = self._client.run(call("GET", topic_path(self._topic)))["path"]
        return self._client.run(call("GET", "/v1/cluster"))["cluster"], folder.removesuffix(f"/topics/{self._topic}")

    def bounds(self) -> dict[int, Bounds]:
        """Returns the bounds of each segment, as they are now."""
        return {each["id"]: msgspec.convert(each, Bounds) for each in self._client.run(segments(self._topic))}

    def has_removed(self, segment: int) -> bool:
        """Tells whether retention has removed a segment: what lies in its folder will be swept."""
        try:
            facts = self._client.run(call("GET", f"{topic_path(self._topic)}/segments/{segment}"))
        except SegmentNotFound:
            return False
        return bool(facts["state"] == "removed")


def audit(
    spark: "SparkSession",
    topic: str,
    url: str | None,
    store: str | None = None,
    storage: Mapping[str, Any] | None = None,
) -> AuditedTopic:
    """Audits a topic's files: those of the broker at `url`, or of `store`, with both compared with that broker's map.

    Raises TopicNotFound, ClientError for a store that is none, has no files of the topic, or is of another cluster than
    the broker, and the errors of Spark.
    """
    with ExitStack() as stack:
        broker = _Broker(stack.enter_context(Client(url)), topic) if url else None
        cluster, own = broker.place() if broker else (None, "")
        place = Place(store or own, topic, storage or {})
        before = broker.bounds() if broker else {}
        of_store, listing, sizes = _listed(place)
        if cluster not in (None, of_store):
            raise ClientError(f"the store belongs to cluster {of_store}, but the broker belongs to cluster {cluster}")
        if broker is None and not sizes:
            raise ClientError(f"the store {store} has no folder topics/{topic}")
        after = broker.bounds() if broker else {}
        removed = {n for n in listing.chains.keys() - after.keys() if broker and broker.has_removed(n)}
        chains = {
            number: [name for name in listing.chains.get(number, []) if name.first_offset >= _start(after, number)]
            for number in sorted((listing.chains.keys() | after.keys()) - removed)
        }
        done = AuditedTopic(_run(spark, place, of_store, chains, sizes), listing.findings)
        if broker and any(one.gone for one in done.segments):
            _forget_deleted(done, broker)
    for one in done.segments:
        number = one.chain.segment
        if number in after:
            known = before.get(number)
            flushed, state = (known.flushed_offset, known.state) if known else (0, "open")
            one.chain.finish(replace(after[number], flushed_offset=flushed, state=state))
        elif url:
            one.chain.finding("is in files, but the broker does not know the segment")
    done.others.extend(_lineage(place, done, after))
    return done


def _start(known: Mapping[int, Bounds], segment: int) -> int:
    return known[segment].start_offset if segment in known else 0  # retention took the files before it


def _listed(place: Place) -> tuple[str, Listing, dict[str, int]]:
    """Returns the store's cluster id, the topic's objects, and their sizes by name."""
    system, root = place.opened()
    try:
        with system.open_input_file(f"{root}/{NAME}") as file:
            cluster = identity_of.decode(file.read()).cluster
    except FileNotFoundError:
        raise ClientError(f"{place.store} is not a store of seaweedq: it has no file {NAME}") from None
    infos = system.get_file_info(FileSelector(f"{root}/topics/{place.topic}", allow_not_found=True, recursive=True))
    sizes = {info.path.removeprefix(root).lstrip("/"): info.size for info in infos if info.type == FileType.File}
    return cluster, Listing.from_names(place.topic, list(sizes)), sizes


def share_out(sizes: Mapping[int, Sequence[int]], tasks: int) -> list[list[Run]]:
    """Returns the runs of each task, of which there are about so many, with alike bytes of files each."""
    entries = [(number, at, size) for number, there in sizes.items() for at, size in enumerate(there)]
    most = max(1, sum(size for *_, size in entries) / tasks)
    shares: list[list[tuple[int, int]]] = []
    held: float = most
    for number, at, size in entries:
        if held + size / 2 > most:
            shares.append([])
            held = 0
        shares[-1].append((number, at))
        held += size
    return [list(_runs(one)) for one in shares]


def _runs(entries: Sequence[tuple[int, int]]) -> Iterator[Run]:
    for number, group in groupby(entries, key=lambda each: each[0]):
        places = [at for _, at in group]
        yield Run(number, places[0], places[-1] + 1)


def _run(
    spark: "SparkSession", place: Place, cluster: str, chains: Chains, sizes: Mapping[str, int]
) -> list[AuditedSegment]:
    """Audits all chains, by tasks."""
    of_chain = {
        number: [sizes[segment_folder(place.topic, number) + str(name)] for name in names]
        for number, names in chains.items()
    }
    tasks = max(sum(sizes.values()) // TASK_BYTES, 2 * spark.sparkContext.defaultParallelism)
    shares = share_out(of_chain, tasks)
    found = {number: AuditedSegment(SegmentAudit(place.topic, number, cluster)) for number in chains}
    if shares:
        work: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
        work = _Work(place, cluster, chains, shares).__call__
        frame = spark.range(0, len(shares), 1, len(shares)).mapInArrow(work, "share bigint, report binary")
        for row in sorted(frame.collect(), key=lambda row: row.share):
            for part in pickle.loads(bytes(row.report)):
                whole = found[part.chain.segment]
                whole.chain.extend(part.chain)
                whole.rows += part.rows
                whole.gone += part.gone
    return list(found.values())


class _Work:
    """The work of a task: the runs of its share, whose number is its only row."""

    def __init__(self, place: Place, cluster: str, chains: Chains, shares: Sequence[Sequence[Run]]) -> None:
        self._place, self._cluster, self._chains, self._shares = place, cluster, chains, shares

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        system, root = self._place.opened()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                found = [self._audited(system, root, run) for run in self._shares[number]]
                yield pa.record_batch({"share": pa.array([number], pa.int64()), "report": [pickle.dumps(found)]})

    def _audited(self, system: FileSystem, root: str, run: Run) -> AuditedSegment:
        one = AuditedSegment(SegmentAudit(self._place.topic, run.segment, self._cluster))
        names, folder = self._chains[run.segment], f"{root}/{one.chain.folder}"
        for at in range(_primer(system, folder, names, run.start), run.stop):
            if at == run.start:
                one.chain.begin()
            try:
                file = system.open_input_file(folder + str(names[at]))
            except OSError as error:
                one.chain.missing(names[at], str(error))
                one.gone += [names[at]] if isinstance(error, FileNotFoundError) else []
                continue
            with file:
                for table in one.chain.entry(names[at], file, at == len(names) - 1, partial(ge, at, run.start)):
                    one.rows += table.num_rows
        return one


def _primer(system: FileSystem, folder: str, names: Sequence[EntryName], start: int) -> int:
    """Returns the place of the last entry before a run whose metadata can be read; the first one if there is none."""
    for at in range(start - 1, 0, -1):
        try:
            with system.open_input_file(folder + str(names[at])) as file:
                open_entry(file, folder + str(names[at]))
            return at
        except (OSError, ChainDamaged, NeedsNewerBroker):
            continue
    return 0


def _forget_deleted(done: AuditedTopic, broker: _Broker) -> None:
    """Drops the findings of entries that retention has deleted since they were listed."""
    now = broker.bounds()
    for one in done.segments:
        start = _start(now, one.chain.segment) if one.chain.segment in now else BEYOND
        deleted = {one.chain.folder + str(name) for name in one.gone if name.first_offset < start}
        one.chain.findings[:] = [each for each in one.chain.findings if each.where not in deleted]


def _lineage(place: Place, done: AuditedTopic, known: Mapping[int, Bounds]) -> Iterator[Finding]:
    """Checks how segments follow one another: their seals and, with a broker, its map."""
    lasts = {one.chain.segment: last for one in done.segments if (last := one.chain.last)}
    yield from seal_findings(place.topic, lasts)
    yield from map_findings(place.topic, known) if known else ()
    for number, later in unended(lasts).items():
        if not _is_sealed(place, number):
            yield no_seal(place.topic, number, later)


def _is_sealed(place: Place, segment: int) -> bool:
    """Tells whether a chain ends in a seal by now. Of a sealed one alone retention takes the last entry, too."""
    system, root = place.opened()
    folder = f"{root}/{segment_folder(place.topic, segment)}".rstrip("/")
    infos = system.get_file_info(FileSelector(folder, allow_not_found=True))
    last = max((info.path for info in infos if EntryName.from_object(info.base_name)), default=None)
    with suppress(FileNotFoundError):
        if last:
            with system.open_input_file(last) as file:
                return open_entry(file, last)[1].seal is not None
    return True
