"""The run of `seaweedq verify`: audits every file of a topic, compares the rows with the broker's answers, and checks
payloads.

Producers may run during an audit, because of the order of the requests: first the broker states up to which offset each
segment is in files, then the files are listed, then the broker states where each segment ends. A listed file is
complete, and later files are not read.

A payload that is missing or has the wrong size is damage. A payload that no message names is only noted: a crash, or a
publish that failed after claiming the upload, leaves it behind."""

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta

import msgspec
import pyarrow as pa

from seaweedq.broker.uploads import rules as upload_rules
from seaweedq.cli.server.backends import OpenStore, open_store
from seaweedq.cli.server.given_settings import settings_of
from seaweedq.cli.shared.contexts import credentials_of
from seaweedq.client.core.attempts import Brokers, parse_urls
from seaweedq.client.core.calls import call, fetch_request, segment_map, segments, topic_path
from seaweedq.client.core.effects import ARROW, Reply, Request, Steps
from seaweedq.client.core.problems import check
from seaweedq.client.sync.transport import SyncTransport
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination.cluster_level import check_level
from seaweedq.errors import (
    ClientError,
    Damaged,
    OffsetOutOfRange,
    SegmentNotFound,
    StoreUnavailable,
    UploadConflict,
    UploadExpired,
    UploadNotFound,
)
from seaweedq.segments.audit import (
    Bounds,
    Finding,
    Listing,
    SegmentAudit,
    disagreement,
    map_findings,
    misplaced,
    no_seal,
    seal_findings,
    unended,
)
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.settings import Settings
from seaweedq.storage.identity import NAME, identity_of, marked_level
from seaweedq.storage.interface import ObjectStore

AT_ONCE = 32  # sizes that are asked for
PAGE_NAMES = 1_000
YOUNG = timedelta(days=2)  # a name has its day alone, and may be published for a day
NAMED = 100  # notes


@dataclass
class PayloadAudit:
    """Collects the payloads that a topic's rows refer to; `check` then compares the store with them. `listed` has the
    payload names that were listed first."""

    topic: str
    listed: Sequence[str] = ()
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    named: dict[str, tuple[int, str]] = field(default_factory=dict)  # the size, and the first message that says so

    def rows(self, segment: int, rows: pa.Table) -> None:
        """Collects the references in rows, which include `_offset`."""
        if "_reference" not in rows.schema.names:
            return  # which is a finding already
        column = rows["_reference"]
        if column.null_count == len(column):
            return
        there = rows.filter(column.is_valid())
        for offset, reference in zip(there["_offset"].to_pylist(), there["_reference"].to_pylist(), strict=True):
            self._note_reference(
                f"{segment_folder(self.topic, segment)} offset {offset}", reference["uri"], reference["size"]
            )

    def _note_reference(self, where: str, uri: str | None, size: int | None) -> None:
        rest = (uri or "").rpartition(f"/{upload_rules.folder(self.topic)}")[2]
        name = upload_rules.folder(self.topic) + rest
        if size is None or not upload_rules.id_of(self.topic, name):
            self.findings.append(
                Finding(where, f"refers to {str(uri)[:200]!r} of size {size}, which is not a payload of the topic")
            )
            return
        stated, first = self.named.setdefault(name, (size, where))
        if stated != size:
            self.findings.append(Finding(where, f"states {size} bytes for {name}, but {first} states {stated}"))

    async def check(self, store: ObjectStore) -> None:
        """Compares the size of every named payload with the store."""

        async def size(name: str) -> int | None:
            try:
                return await store.size(name)
            except FileNotFoundError:
                return None

        sizes = await gather_bounded(AT_ONCE, size, self.named)
        for (name, (stated, where)), there in zip(self.named.items(), sizes, strict=True):
            if there is None:
                self.findings.append(Finding(where, f"refers to the payload {name}, which does not exist"))
            elif there != stated:
                self.findings.append(
                    Finding(where, f"refers to the payload {name} with {stated} bytes, but it has {there}")
                )

    def unnamed(self, now: datetime, is_live: Callable[[str], bool] | None) -> None:
        """Notes listed payloads that no message names. `is_live` tells whether an upload has a record; with None that
        is unknown, and young payloads are only counted."""
        names = [name for name in self.listed if name not in self.named]
        if is_live is None:
            young = [name for name in names if _is_young(name, now)]
            if young:
                self.notes.append(
                    f"{len(young)} payloads have no message in files, but may still get one because they are new"
                )
            names = sorted(set(names) - set(young))
        else:
            names = [name for name in names if not is_live(name.rpartition("/")[2])]
        self.notes += [f"{name}: orphaned: no message and no upload refers to it" for name in names[:NAMED]]
        if len(names) > NAMED:
            self.notes.append(f"{len(names) - NAMED} more payloads are orphaned")


async def payload_names(store: ObjectStore, topic: str) -> list[str]:
    """Returns all payload names in a topic's payload folder."""
    names: list[str] = []
    while page := await store.list(upload_rules.folder(topic), after=names[-1] if names else "", limit=PAGE_NAMES):
        names += page
    return names


def _is_young(name: str, now: datetime) -> bool:
    try:
        day = date.fromisoformat(name.rpartition("/")[0].rpartition("/")[2])
    except ValueError:
        return False
    return now.astimezone(UTC).date() - day < YOUNG


PAGE_ROWS = 10_000
TIMEOUT_S = 30.0


@dataclass
class Verdict:
    """A segment's audit, and how many rows were read from files, returned identically by the broker, and found in the
    tail."""

    chain: SegmentAudit
    read: int = 0
    answered: int = 0
    tail: int = 0


class Broker:
    """A broker's answers about one topic. Raises the broker's errors, and ConnectionFailed."""

    def __init__(self, url: str, topic: str) -> None:
        self._topic = topic
        brokers = Brokers(parse_urls(url), SystemClock().monotonic_s)
        self._transport = SyncTransport(brokers, TIMEOUT_S, None, credentials=credentials_of(url))

    def store(self) -> tuple[str, str]:
        """Returns the cluster's id and the URL of its store."""
        facts = self._transport.run(call("GET", "/v1/cluster"))
        return facts["cluster"], facts["store"]

    def bounds(self) -> dict[int, Bounds]:
        """Returns the current offset bounds of each segment."""
        return {each["id"]: msgspec.convert(each, Bounds) for each in self._transport.run(segments(self._topic))}

    def schema_id(self) -> int:
        """Returns the id of the newest version of the topic's schema; 0 without one."""
        return int(self._transport.run(segment_map(self._topic)).get("schema_id") or 0)

    def has_removed(self, segment: int) -> bool:
        """Returns whether retention has removed a segment. Files in its folder were then written late, and will be
        swept."""
        try:
            facts = self._transport.run(call("GET", f"{topic_path(self._topic)}/segments/{segment}"))
        except SegmentNotFound:
            return False
        return bool(facts["state"] == "removed")

    def pages(self, segment: int, start: int, end: int) -> Iterator[tuple[int, int, pa.Table]]:
        """Yields the broker's answers for the offsets [start, end): first offset, next offset, and rows."""
        while start < end:
            request = fetch_request(self._topic, segment, start, min(PAGE_ROWS, end - start), accept=ARROW)
            reply = check(self._transport.run(_answer(request)))
            after = int(reply.headers["next-offset"])
            if not start < after <= end:
                raise Damaged(
                    f"the broker was asked for offsets {start} to {end - 1}; the next offset that its answer "
                    f"states must be between {start + 1} and {end}, but is {after}"
                )
            yield start, after, pa.ipc.open_stream(reply.body).read_all()
            start = after

    def knows_upload(self, upload: str) -> bool:
        """Returns whether the upload has a record."""
        try:
            self._transport.run(call("GET", f"{topic_path(self._topic)}/uploads/{upload}"))
        except UploadNotFound:
            return False
        except (UploadExpired, UploadConflict):
            pass
        return True

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()


class Audit:
    """An audit of a topic. With a `url`, also compares with that broker, and audits the broker's store unless `root`
    names another store.

    `sample` is the share of row groups to read; names and metadata are always checked."""

    def __init__(self, topic: str, url: str | None, root: str | None, sample: float) -> None:
        self.live = url is not None
        self.rows = 0
        self.verdicts: list[Verdict] = []
        self._topic, self._url, self._root, self._sample = topic, url, root, sample
        self._strays: list[Finding] = []
        self.payloads = PayloadAudit(topic)

    @property
    def findings(self) -> list[Finding]:
        """Returns all findings so far."""
        chains = (finding for verdict in self.verdicts for finding in verdict.chain.findings)
        return [*self._strays, *chains, *self.payloads.findings]

    def run(self) -> Iterator[tuple[int, int]]:
        """Audits the row groups one after another. Yields the numbers of files done and of all files. Raises errors
        that prevent the audit."""
        with ExitStack() as stack:
            broker = stack.enter_context(closing(Broker(self._url, self._topic))) if self._url else None
            before = broker.bounds() if broker else {}
            expected, root = broker.store() if broker else (None, "")
            settings = settings_of(None, {"store": self._root or root})
            store = open_store(settings, SystemIds())
            cluster, names, self.payloads.listed = asyncio.run(_names(store, self._topic))
            if expected not in (None, cluster):
                raise ClientError(
                    f"the store belongs to cluster {cluster}, but the broker belongs to cluster {expected}"
                )
            after = broker.bounds() if broker else {}
            listing = Listing.from_names(self._topic, names)
            if broker is None and not names:
                raise ClientError(f"the store {self._root} has no folder topics/{self._topic}")
            self._strays += listing.findings
            done, total = 0, sum(map(len, listing.chains.values()))
            removed = {n for n in listing.chains.keys() - after.keys() if broker and broker.has_removed(n)}
            for number in sorted((listing.chains.keys() | after.keys()) - removed):
                verdict = Verdict(SegmentAudit(self._topic, number, cluster))
                self.verdicts.append(verdict)
                start = after[number].start_offset if number in after else 0  # retention took the files before it
                chain = [name for name in listing.chains.get(number, []) if name.first_offset >= start]
                for _ in self._files(verdict, chain, store, broker if number in after else None):
                    yield done + verdict.chain.entries - 1, total
                done += len(chain)
                flushed = before[number].flushed_offset if number in before else 0
                if number in after:
                    state = before[number].state if number in before else "open"
                    bounds = replace(after[number], flushed_offset=flushed, state=state)
                    verdict.chain.finish(bounds)
                    self._tail(verdict, bounds, broker)
                elif broker:
                    verdict.chain.finding("is in files, but the broker does not know the segment")
            self._lineage(settings, after)
            self._payloads(settings, broker)
            yield total, total

    def _lineage(self, settings: Settings, known: dict[int, Bounds]) -> None:
        """Checks how segments follow one another: their seals and, with a broker, the segment map."""
        lasts = {verdict.chain.segment: last for verdict in self.verdicts if (last := verdict.chain.last)}
        self._strays += seal_findings(self._topic, lasts)
        self._strays += map_findings(self._topic, known) if known else ()
        for number, later in unended(lasts).items():
            if not asyncio.run(_is_sealed(open_store(settings, SystemIds()), self._topic, number)):
                self._strays.append(no_seal(self._topic, number, later))

    def _payloads(self, settings: Settings, broker: Broker | None) -> None:
        """Checks the payloads that rows name. Payloads without a message are known only if all rows were read."""
        asyncio.run(_sizes(open_store(settings, SystemIds()), self.payloads))
        if self._sample == 1:
            now = datetime.fromtimestamp(SystemClock().now_us() / 1e6, UTC)
            self.payloads.unnamed(now, broker.knows_upload if broker else None)

    def _files(
        self, verdict: Verdict, names: Sequence[EntryName], store: ObjectStore, broker: Broker | None
    ) -> Iterator[None]:
        for at, name in enumerate(names):
            try:
                file = store.open(verdict.chain.folder + str(name))
            except (FileNotFoundError, StoreUnavailable) as error:
                verdict.chain.missing(name, str(error))
                continue
            with file:
                for rows in verdict.chain.entry(
                    name, file, at == len(names) - 1, lambda: random.random() < self._sample
                ):
                    verdict.read += rows.num_rows
                    self.rows += rows.num_rows
                    self.payloads.rows(verdict.chain.segment, rows)
                    if broker:
                        self._compare(verdict, rows, broker)
                    yield
            yield

    def _compare(self, verdict: Verdict, rows: pa.Table, broker: Broker) -> None:
        first, last = rows["_offset"][0].as_py(), verdict.chain.last
        try:
            for start, end, answer in broker.pages(verdict.chain.segment, first, first + rows.num_rows):
                lacks = not {*rows.column_names} <= {*answer.column_names}
                earlier = lacks and last is not None and last.schema_id < broker.schema_id()
                problem = disagreement(rows, answer, start, end, time.time_ns() // 1000, earlier)
                if problem:
                    verdict.chain.finding(problem)
                verdict.answered += answer.num_rows
        except (Damaged, OffsetOutOfRange) as error:
            verdict.chain.finding(f"the broker cannot return the rows from offset {first} on: {error.detail}")

    def _tail(self, verdict: Verdict, bounds: Bounds, broker: Broker | None) -> None:
        """Checks that the broker returns the acknowledged rows after the end of the files."""
        start = verdict.chain.end if verdict.chain.entries else bounds.start_offset
        if broker is None or start is None:
            return
        try:
            for low, high, answer in broker.pages(verdict.chain.segment, start, bounds.end_offset):
                if problem := misplaced(answer, low, high):
                    verdict.chain.finding(problem)
                verdict.tail += answer.num_rows
                self.payloads.rows(verdict.chain.segment, answer)
        except (Damaged, OffsetOutOfRange) as error:
            verdict.chain.finding(f"the broker cannot return the tail from offset {start} on: {error.detail}")


def _answer(request: Request) -> Steps[Reply]:
    return (yield request)  # type: ignore[no-any-return]


async def _is_sealed(store: OpenStore, topic: str, segment: int) -> bool:
    """Returns whether a chain now ends in a seal. Retention deletes the last file only of a sealed chain."""
    chain = Chain(store, topic, segment)
    try:
        await chain.open()
        return chain.sealed or chain.last is None
    finally:
        await store.close()


async def _sizes(store: OpenStore, payloads: PayloadAudit) -> None:
    try:
        await payloads.check(store)
    finally:
        await store.close()


async def _names(store: OpenStore, topic: str) -> tuple[str, list[str], list[str]]:
    """Returns the store's cluster id, all names below the topic's folder, and the names of the topic's payloads. Raises
    LevelMismatch if this version cannot read the store's level."""
    try:
        cluster = identity_of.decode(await store.read(NAME)).cluster
        check_level(await marked_level(store))
        names: list[str] = []
        while page := await store.list(f"topics/{topic}/", after=names[-1] if names else "", limit=PAGE_NAMES):
            names += page
        payloads = await payload_names(store, topic)
    except FileNotFoundError:
        raise ClientError(f"this is not a store of seaweedq: it has no file {NAME}") from None
    finally:
        await store.close()
    return cluster, names, payloads
