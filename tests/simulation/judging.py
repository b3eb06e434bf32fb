"""What is judged at the end of a run: answers, the history, what is read, what is stored, and what is left."""

import io
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import UNSET

from seaweedq.cli.verify_run import Audit
from seaweedq.coordination import keys
from seaweedq.coordination.roster import is_recovered
from seaweedq.errors import SeaweedqError
from seaweedq.journal.object_format import COPY, done_name
from seaweedq.segments.entry import MARKERS
from seaweedq.segments.layout import Format, Layout, identity
from seaweedq.segments.schema import parse_schema
from tests.simulation.clients import TOPIC, Client
from tests.simulation.cluster import Cluster
from tests.simulation.network import Refused
from tests.support.brokers import inside
from tests.support.chaos.leaks import MOST_BYTES
from tests.support.history.final_read import letter
from tests.support.history.history import Event, Letter, Row, row
from tests.support.history.judged import Run, Segment

HEAL_S = 60.0
PASSING = (keys.SUSPICIONS, keys.REVOCATIONS, keys.CREATIONS, keys.WAITING)
"""Kinds of keys that are there for a while alone."""
OF_TOPICS = (
    *(keys.SCHEMAS, keys.SEGMENTS, keys.STARTS, keys.TOMBSTONES, keys.SUBSCRIPTIONS, keys.REWINDS, keys.CURSORS),
    *(keys.IMPORTS, keys.WRITES),
)
LEASED = {keys.BROKERS.name, keys.LEADER.name, *(kind.name for kind in PASSING)}
ROOTS = {
    *("topics", "_cluster.json", "_coordination", "_generations", "_journals", "_levels", "_payloads", "_probe"),
    *("_retention", "_writes"),
}
"""Of names of objects. A broker that dies amid its probe of the store leaves what nobody lists (storage/probe)."""
MARGIN_S = 0.1  # of clocks
COLUMNS = ["_offset", "_key", "value"]


class Reading:
    """What a topic holds at last, as soon as it can be read."""

    def __init__(self, admin: Client, cluster: Cluster) -> None:
        self._admin = admin
        self._cluster = cluster

    async def insist(self, method: str, path: str, content: str = "", topic: str = TOPIC) -> Any:
        """An answer, within HEAL_S."""
        end_s = self._cluster.loop.time() + HEAL_S
        while True:
            try:
                found = await self._admin.ask(method, path, content, topic=topic, allowed=(404,))
            except Refused:
                found = None
            if found is not None:
                return found
            assert self._cluster.loop.time() < end_s, f"{method} {topic}{path} is not answered"

    async def segments(self) -> list[dict[str, Any]]:
        """All of them."""
        return [*(await self.insist("GET", "/segments"))["segments"]]

    async def rows(self) -> list[Row]:
        """All messages."""
        return [row(m["segment"], m["offset"], m["key"], m["value"]) for m in await self._messages(TOPIC)]

    async def letters(self, topics: Sequence[str]) -> list[Letter]:
        """All dead letters."""
        return [letter(m) for topic in topics for m in await self._messages(topic)]

    async def _messages(self, topic: str) -> list[Any]:
        found: list[Any] = []
        segments = (await self.insist("GET", "/segments", topic=topic)).get("segments", ())
        for segment in segments:
            offset = 0
            while True:
                path = f"/segments/{segment['id']}/messages?offset={offset}&limit=2000"
                page = await self.insist("GET", path, topic=topic)
                found += page["messages"]
                if not page["messages"]:
                    break
                offset = page["next_offset"]
        return found

    def in_files(self) -> list[Row]:
        """The rows of the topic's files."""
        rows: list[Row] = []
        for name, data in sorted(self._cluster.store.memory.objects.items()):
            if name.startswith(f"topics/{TOPIC}/") and name.endswith(".parquet"):
                table = pq.read_table(io.BytesIO(data), columns=COLUMNS)
                segment = int(name.split("segment=")[1].split("/")[0])
                rows += [row(segment, r["_offset"], r["_key"], json.loads(r["value"])) for r in table.to_pylist()]
        return rows


def as_segments(found: Sequence[dict[str, Any]]) -> dict[int, Segment]:
    """The map of segments."""
    return {
        one["id"]: Segment(
            *(one["low"], one["high"], tuple(one["predecessors"]), tuple(one["successors"])),
            one["end_offset"] if one["state"] == "sealed" else None,
        )
        for one in found
    }


def first_again(run: Run) -> Iterator[str]:
    """In `ordered`, what a consumer has and nobody has answered for comes to it again before later messages: none here
    asks to go ahead."""
    answered = {
        (e.subscription, e.segment, e.offset): e.t
        for e in reversed(run.events)
        if e.type == "invoke" and e.op in ("ack", "nack", "reject")
    }
    had: dict[tuple[str, str | None, int | None], set[int]] = defaultdict(set)
    came: dict[int, list[Event]] = defaultdict(list)
    for event in run.lines("deliver", "ok"):
        if event.offset is not None and run.terms_of(event.subscription or "").mode == "ordered":
            came[event.call].append(event)
    for events in came.values():
        for segment in {one.segment for one in events}:
            here = [one for one in events if one.segment == segment]
            first, offsets = here[0], {one.offset or 0 for one in here}
            before = had[first.proc, first.subscription, segment]
            for offset in sorted(before - offsets):
                settled_s = answered.get((first.subscription, segment, offset), inf)
                if offset < max(offsets) and settled_s > first.t:
                    yield f"{first.proc} has {segment}-{offset}, and got {segment}-{max(offsets)} at {first.t:.3f}"
            most = run.terms_of(first.subscription or "").max_attempts or inf
            before |= {one.offset or 0 for one in here if (one.attempt or 1) < most}  # others die


def alone(run: Run) -> Iterator[str]:
    """In `ordered`, nobody gets later messages of a segment while another consumer holds an earlier one, of which
    nobody has said anything, and which came to nobody since."""
    holders: dict[tuple[str, int | None], dict[int, Event]] = defaultdict(dict)
    for event in run.events:
        terms, here, offset = run.terms_of(event.subscription), holders[event.subscription, event.segment], event.offset
        if event.op == "seek" or terms.mode != "ordered":
            here.clear()
        elif event.op in ("nack", "reject"):
            for later in [one for one in here if one >= (offset or 0)]:
                del here[later]
        elif event.op == "ack":
            here.pop(offset or 0, None)
        elif event.op == "deliver" and event.type == "ok" and offset is not None:
            for before, held in here.items():
                until_s = run.begun[held.call] + terms.ack_deadline_s - MARGIN_S
                if before < offset and held.proc != event.proc and held.t < run.begun[event.call] and event.t < until_s:
                    yield f"{held.proc} has {event.segment}-{before}, and {event.proc} got {offset} at {event.t:.3f}"
                    break
            here[offset] = event


def held(cluster: Cluster) -> Iterator[str]:
    """What ready brokers hold, though no client is there any more (rule 19)."""
    for process in cluster.ready:
        assert process.broker
        budget = inside.budget(process.broker)
        for name in ("requests", "incomplete", "decoding", "answers", "recovering"):
            most = MOST_BYTES if name == "requests" else 0
            if (size := getattr(budget, name)) > most:
                yield f"{process.life.name} holds {size} bytes of {name}"
    for url in sorted({process.url for process in cluster.processes.values()}):
        if count := cluster.network.busy(url):
            yield f"{count} requests are under way at {url}"


def stray(cluster: Cluster) -> Iterator[str]:
    """What is there for nobody while brokers serve: keys, objects, holdings, and open segments that nobody owns."""
    yield from unneeded(cluster)
    ready = {process.broker.id for process in cluster.ready if process.broker}
    journals = set()
    for entry in cluster.coordination.entries:
        if keys.JOURNALS.matches(entry.key):
            journals.add(keys.JOURNALS.parse(entry.key)[0])
        elif keys.SEGMENTS.matches(entry.key):
            record = keys.SEGMENTS.require(entry).record
            if record.state == "open" and record.owner not in ready:
                yield f"{entry.key} is owned by {record.owner}, which is not ready"
    for process in cluster.ready:
        for owner in process.holdings.owners() if process.holdings else ():
            if owner not in journals:
                yield f"{process.life.name} holds a journal of {owner}, which has none"


def unneeded(cluster: Cluster) -> Iterator[str]:
    """Keys and objects that are there for nobody."""
    entries = cluster.coordination.entries
    subscriptions = {keys.SUBSCRIPTIONS.parse(entry.key) for entry in entries if keys.SUBSCRIPTIONS.matches(entry.key)}
    topics = {
        keys.TOPICS.parse(entry.key)[0]: keys.TOPICS.require(entry).record.incarnation
        for entry in entries
        if keys.TOPICS.matches(entry.key)
    }
    for entry in entries:
        if any(kind.matches(entry.key) for kind in PASSING):
            yield f"{entry.key} is still there"
        for kind in OF_TOPICS:
            if not kind.matches(entry.key):
                continue
            topic, incarnation, *more = kind.parse(entry.key)
            if topics.get(topic) != incarnation:
                yield f"{entry.key} is of no topic"
            elif kind is keys.CURSORS and (topic, incarnation, more[0]) not in subscriptions:
                yield f"{entry.key} is of no subscription"
    for name in cluster.store.memory.objects:
        root, _, rest = name.partition("/")
        if root not in ROOTS:
            yield f"the store has {name}, which is of no kind"
        elif root in ("topics", "_payloads") and rest.split("/")[0] not in topics:
            yield f"the store has {name}, of a topic that there is not"


def left(cluster: Cluster) -> Iterator[str]:
    """What is left once everybody has left in peace."""
    yield from unneeded(cluster)
    entries = cluster.coordination.entries
    # A journal whose removal took too long is left to the next leader.
    recovered = {entry.key for entry in entries if keys.JOURNALS.matches(entry.key) and is_recovered(entry)}
    for entry in entries:
        kind, *parts = entry.key.split("/")
        if kind in LEASED or (kind in ("journals", "mirrors") and keys.JOURNALS.key(parts[0]) not in recovered):
            yield f"{entry.key} is nobody's"
    for life in cluster.loop.lives - {cluster.loop.outside}:
        tasks = sorted(f"{task.get_name()}: {task.get_coro()}" for task in life.tasks if not task.done())
        if tasks and not life.is_dead:
            yield f"{life.name} has left, and has tasks: {tasks}"
    for number, disk in enumerate(cluster.disks):
        if disk.locked or disk.open:
            yield f"disk {number} has locks {[*disk.locked]} and {len(disk.open)} open files"
        if files := [str(path) for path in disk.files if path.suffix == ".journal"]:
            yield f"disk {number} has the journal files {files}, and all was flushed"
    objects = cluster.store.memory.objects
    folders = {name.split("/")[1] for name in objects if name.startswith("_journals/")}
    journals = sorted({folder.partition(COPY)[0] for folder in folders})  # a put of a copy may be late, too
    if needed := [broker for broker in journals if done_name(broker) not in objects]:  # the others will be swept
        yield f"the store has slots of the journals {needed}, which are not done, and all was flushed"


def mixed(cluster: Cluster) -> Iterator[str]:
    """What is wrong with the files of typed topics: each has the columns of one version, and each later version has a
    marker. Versions rise within a segment, unless rows of an import have values that a later version would not show, so
    a change of the schema cuts each segment at most once."""
    records: dict[str, dict[int, pa.Schema]] = defaultdict(dict)
    for entry in cluster.coordination.entries:
        if entry.key.startswith(keys.SCHEMAS.prefix()):
            topic, _, number = keys.SCHEMAS.parse(entry.key)
            records[topic][number] = parse_schema(keys.SCHEMAS.require(entry).record.schema)
        elif entry.key.startswith(keys.TOPICS.prefix()) and keys.TOPICS.require(entry).record.pending is not UNSET:
            yield f"{entry.key} has a pending version"
    layouts = {
        (topic, number): Layout.from_format(Format.TYPED, columns)
        for topic, versions in records.items()
        for number, columns in versions.items()
    }
    newest: dict[str, Layout] = {}  # by the folder of a segment
    markers: dict[str, dict[int, int]] = defaultdict(dict)  # by version, the place among all puts
    place = {name: at for at, name in enumerate(cluster.store.memory.objects)}
    for name, data in sorted(cluster.store.memory.objects.items()):  # markers come first
        found = re.fullmatch(r"topics/([^/]+)/(segment=[^/]+)/[^/]+[.]parquet", name)
        if not found or found[1] not in records:
            continue
        file = pq.ParquetFile(io.BytesIO(data))
        layout = layouts[found[1], msgspec.json.decode(file.metadata.metadata[b"seaweedq"])["schema_id"]]
        if not file.schema_arrow.equals(layout.file):
            yield f"{name} of version {layout.schema_id} has the columns {file.schema_arrow.names}"
        if found[2] == f"segment={MARKERS}":
            markers[found[1]][layout.schema_id] = place[name]
            continue
        before = newest.setdefault(f"{found[1]}/{found[2]}", layout)
        if layout.schema_id > before.schema_id:
            newest[f"{found[1]}/{found[2]}"] = layout
        elif layout.schema_id < before.schema_id:
            later = [n for n, at in markers[found[1]].items() if layout.schema_id < n and at < place[name]]
            if not any(_would_lose(file, layout, layouts[found[1], number]) for number in later):
                yield f"{name} is of version {layout.schema_id}, behind a file of version {before.schema_id}"
    for topic, versions in records.items():
        if markers[topic].keys() != (later := {number for number in versions if number > min(versions)}):
            yield f"{topic} has markers of the versions {sorted(markers[topic])}, not of {sorted(later)}"


def _would_lose(file: pq.ParquetFile, layout: Layout, later: Layout) -> bool:
    """Whether rows of a version have values in a field that a later version has not."""
    there = {identity(one) for one in later.values}
    dropped = [one.name for one in layout.values if identity(one) not in there]
    return any(one.null_count < len(one) for one in file.read(dropped).columns)


def unsound(cluster: Cluster, folder: Path) -> Iterator[str]:
    """What `seaweedq verify` finds in what is stored. Runs a loop of its own."""
    topics = set()
    for name, data in cluster.store.memory.objects.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        if name.startswith("topics/"):
            topics.add(name.split("/")[1])
    for topic in sorted(topics):
        audit = Audit(topic, None, f"file://{folder}", 1)
        try:
            for _ in audit.run():
                pass
        except (SeaweedqError, OSError, ValueError) as error:
            yield f"verify {topic}: {error!r}"
        yield from (f"verify {topic}: {one.where}: {one.what}" for one in audit.findings)
