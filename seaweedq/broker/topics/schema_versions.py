"""The versions of typed topics' schemas: which there are, and the step to the next one.

Order of writes: 1. one transaction writes the record of the version and, for the first change of a topic, that of the
version before, and names the version as `pending` in the topic's record. It compares that record, and those of
topics of dead letters and of their sources by which the version was checked, and the topic's key of rewinds, which
changes when a subscription gets a topic of dead letters: so it decides among changes at once. 2.
The *marker*, made of the record of the version: a file without rows with the columns of the version and a name before
all others of the topic, so that bare readers of the directory take these columns. It has the record, too, by which a
rebuild of coordination finds versions that no backup has (broker/rebuild). It is created if absent.
3. The topic's record has the version as its schema: *now it counts*, and brokers take its rows. 4. The administrative
change. 5. The answer.

A crash behind 1 or 2 leaves a pending version. It can only be ended: bare readers may know its marker, and no row is of
it. Whoever asks for the next version ends it first, and so does the leader, 5 s later. Behind 3 a repeat does 4.

Markers are named by the id of the version, the newest first, and by the incarnation of the topic: one that is put late,
after the topic was deleted and created anew, is known as a dead one, and swept. One of a history that coordination has
lost may have the name of the next version: it has other columns then, and is replaced before the version counts. Of two
brokers that do so one may delete the other's, and die: the leader puts the newest markers again that are absent.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from math import inf
from operator import and_
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from seaweedq.broker.admin_changes import AdminChanges
from seaweedq.broker.log.entry_writer import EntryWriter
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import mark_retrieved
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Put, entries
from seaweedq.coordination.records import SchemaRecord, TopicConfig, TopicRecord
from seaweedq.coordination.versioned import UNREADABLE_RECORDS, Unreadable, Versioned
from seaweedq.errors import (
    InvalidRequest,
    NeedsNewerBroker,
    NotReady,
    SchemaIncompatible,
    SchemaMismatch,
    SchemaNotFound,
)
from seaweedq.segments.evolution import (
    Compatibility,
    History,
    is_same,
    next_version,
    of_marker,
    shape,
    warnings,
    with_ids,
)
from seaweedq.segments.layout import Format, Layout, by_name, renamed, schema_id_of, unheld
from seaweedq.segments.schema import encode_fields, parse_schema, type_text
from seaweedq.storage.interface import ObjectStore

MAX_VERSIONS = 1000
PAGE = 16  # records, of up to 300 KB each
REMEMBERED = 100_000  # names of fields of earlier versions, of all topics together: 75 MB
MAX_BESIDE = 100  # records that a transaction compares beside the topic's: etcd takes 128


class Version(NamedTuple):
    """A version that may be made: its schema as JSON and as columns, and `beside` the records of the other topics by
    which it was checked, those of dead letters and their sources."""

    schema: dict[str, Any]
    columns: pa.Schema
    beside: Sequence[Compare]


@dataclass
class Known:
    """The versions of a topic's schema below `end`, which never change: the history of their fields, the first one of
    each shape (segments/evolution), and those that have a field of a name: as bits, since a field may get an earlier
    name again and again. All of a shape have the same columns, as no name is ever another field's. `unreadable` is the
    record of a version that a newer broker has written; once it can be read, all are read again."""

    history: History = field(default_factory=History)
    shapes: dict[int, int] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)  # of the versions; the first may have any
    having: dict[str, int] = field(default_factory=dict)  # by name, a bit for each of `numbers`
    end: int = 0
    unreadable: Unreadable | None = None
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, number: int, schema: Mapping[str, Any]) -> None:
        """Adds the next version."""
        self.history.add(schema)
        self.shapes.setdefault(shape(schema), number)
        bit = 1 << len(self.numbers)
        for one in schema["fields"]:
            self.having[one["name"]] = self.having.get(one["name"], 0) | bit
        self.numbers.append(number)
        self.end = number + 1

    def newest_with(self, names: Sequence[str]) -> int | None:
        """Returns the newest version that has fields of all these names; None if there is none."""
        found = reduce(and_, (self.having.get(name, 0) for name in names))
        return self.numbers[found.bit_length() - 1] if found else None


MOST_NAMES = 20  # names that publishers may have of earlier versions: messages are decoded again for each
LOOK_S = 0.1  # between two looks for a later version of one topic: requests that are refused wait for one


class SchemaVersions:
    """Reads the versions of topics' schemas, and adds to them."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: ObjectStore,
        entries: EntryWriter,
        changes: AdminChanges,
        clock: Clock,
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._entries = entries
        self._changes = changes
        self._clock = clock
        self._looks: WeakKeyDictionary[Topic, asyncio.Task[None]] = WeakKeyDictionary()  # that have not begun to read
        self._looked_s: WeakKeyDictionary[Topic, float] = WeakKeyDictionary()
        self._remembered: WeakKeyDictionary[Topic, Known] = WeakKeyDictionary()  # those used last at the end

    async def is_later(self, topic: Topic, known: Layout) -> bool:
        """Tells whether a topic has a later version than the one that has refused some rows, since the watch may be
        behind. All that ask within LOOK_S share a read. Raises CoordinationUnavailable, TopicBeingDeleted."""
        if topic.layout is known:
            look = self._looks.get(topic)
            if look is None:
                look = self._looks[topic] = asyncio.create_task(self._look(topic))
                look.add_done_callback(mark_retrieved)
            await asyncio.shield(look)
            self._catalog.check(topic)
        return topic.layout is not known

    async def _look(self, topic: Topic) -> None:
        await asyncio.sleep(self._looked_s.get(topic, -inf) + LOOK_S - self._clock.monotonic_s())
        self._looked_s[topic] = self._clock.monotonic_s()
        del self._looks[topic]  # who asks from here on waits for the next one
        later = keys.SCHEMAS.key(topic.name, topic.record.incarnation, topic.layout.schema_id + 1)
        if await self._coordination.count(later):  # which costs less than to read the topic's record
            await self._catalog.refresh(topic.name)

    async def newest_with(self, topic: Topic, names: Sequence[str]) -> Layout | None:
        """Returns the newest version that has fields of all these names, at most MOST_NAMES, however long ago it was:
        publishers may know it, and not state it. None if there is none. Raises NeedsNewerBroker if it may be one that
        cannot be read."""
        known = await self._earlier(topic)
        number = known.newest_with(names) if len(names) <= MOST_NAMES else None
        if number is None and known.unreadable:
            raise known.unreadable.error()
        return None if number is None else await self._catalog.layout(topic, number)

    async def pinned(self, topic: Topic, schema_id: int) -> Layout:
        """Returns the layout of the version that a request names. Raises InvalidRequest for a topic without a schema,
        and SchemaMismatch for a version that does not exist."""
        if topic.layout.format is not Format.TYPED:
            raise InvalidRequest(f"topic {topic.name!r} is not typed, so it has no schema", field="Schema-Id")
        if schema_id > topic.layout.schema_id:
            await self.is_later(topic, topic.layout)
        newest = topic.layout.schema_id
        if schema_id <= newest:
            with suppress(NotReady):
                return await self._catalog.layout(topic, schema_id)
        detail = f"the schema of topic {topic.name!r} has no version {schema_id}; its newest version is {newest}"
        raise SchemaMismatch(detail, topic=topic.name, schema_id=newest)

    async def ids(self, topic: Topic) -> Sequence[int]:
        """Returns the ids of all versions, in their order; none for a topic without a schema."""
        if topic.layout.format is not Format.TYPED:
            return ()
        prefix = keys.SCHEMAS.prefix(topic.name, topic.record.incarnation)
        oldest = (await self._coordination.range(prefix, limit=1)).entries
        newest = topic.layout.schema_id  # the records may be ahead of what is known of the topic here
        return range(keys.SCHEMAS.parse(oldest[0].key)[2] if oldest else newest, newest + 1)

    async def read(self, topic: Topic, schema_id: int) -> dict[str, Any]:
        """Returns a version's schema; the topic's record is read again for a later one than those that are known here.
        Raises SchemaNotFound."""
        if schema_id > topic.layout.schema_id:
            await self._catalog.refresh(topic.name)
        if topic.layout.format is Format.TYPED and topic.layout.schema_id == schema_id:
            return topic.record.config.schema or {}
        record = None
        if 0 <= schema_id < topic.layout.schema_id:
            record = await self._record(topic, schema_id)
        if record is None:
            detail = f"topic {topic.name!r} has no schema version {schema_id}"
            raise SchemaNotFound(detail, topic=topic.name, schema_id=schema_id)
        return record.schema

    async def find(self, topic: Topic, stated: Any) -> pa.Schema | None:
        """Returns the columns of the version that a schema, as JSON, is, whatever id it states of itself; a pending one
        counts first. Returns None for one that is none of them, or no schema. Raises as `finish`, and NeedsNewerBroker
        if it is none of those that can be read, and there are others."""
        await self.finish(topic)
        if topic.layout.format is not Format.TYPED:
            return None
        if _is_version(stated, topic.layout.values):
            return topic.layout.values
        try:
            parse_schema(plain := with_ids(stated))
        except InvalidRequest:
            return None
        known = await self._earlier(topic)
        if (number := known.shapes.get(shape(plain))) is not None:
            columns = (await self._catalog.layout(topic, number)).values
            if _is_version(stated, columns):
                return columns
        if known.unreadable:
            raise known.unreadable.error()
        return None

    async def next(self, topic: Topic, stated: Any, expected: int | None) -> Version | None:
        """Returns the version that a stated schema would make; None if it is that of the newest. Raises InvalidRequest
        for one that is no schema, or a topic that has none; and SchemaIncompatible, also unless the `expected` version
        is the newest."""
        if topic.layout.format is not Format.TYPED:
            raise InvalidRequest(f"topic {topic.name!r} is not typed, so it has no schema", field="schema")
        known = await self._earlier(topic)
        if known.unreadable:
            raise known.unreadable.error()
        config, newest, history = topic.record.config, topic.record.config.schema or {"fields": ()}, known.history
        compatibility = Compatibility(config.compatibility or Compatibility.BACKWARD)
        knows = expected is not None  # a schema that was made of an earlier version may lack a field or a name
        schema, columns = next_version(stated, topic.layout.values, history, compatibility, config.key_field, knows)
        if is_same(columns, topic.layout.values) and _beside_columns(schema) == _beside_columns(newest):
            return None
        if expected is not None and expected != topic.layout.schema_id:
            detail = f"the newest schema version of topic {topic.name!r} is {topic.layout.schema_id}, not {expected}"
            raise SchemaIncompatible(detail, differences=[], schema_id=topic.layout.schema_id)
        if len(await self.ids(topic)) >= MAX_VERSIONS:
            detail = f"the schema of topic {topic.name!r} has {MAX_VERSIONS} versions, which is the limit"
            raise SchemaIncompatible(detail, differences=[], value=MAX_VERSIONS + 1, bound=MAX_VERSIONS)
        rewinds = keys.REWINDS.key(topic.name, topic.record.incarnation)
        there = await self._coordination.get(rewinds)  # changes with each new subscription that sends dead letters
        found = [Compare(rewinds, there.revision if there else 0)]
        found += [*await self._check_dead_letters(topic, columns), *await self._check_sources(topic, columns)]
        beside = [*{one.key: one for one in found}.values()]
        if (topics := len(beside) - 1) > MAX_BESIDE:
            detail = (
                f"topic {topic.name!r} shares dead letters with {topics} topics, and a change of its schema is "
                f"checked against at most {MAX_BESIDE}"
            )
            raise SchemaIncompatible(detail, differences=[], value=topics, bound=MAX_BESIDE)
        return Version(schema, columns, beside)

    async def warnings(self, topic: Topic, schema_id: int, schema: dict[str, Any]) -> list[str]:
        """Returns what people should know about the change that has made a version, which has this `schema`."""
        try:
            record = await self._record(topic, schema_id - 1) if schema_id else None
        except NeedsNewerBroker as error:
            return [f"the warnings are unknown, because {error.detail}"]
        if record is None:
            return []
        return warnings(parse_schema(record.schema), parse_schema(schema))

    async def change(self, topic: Topic, stated: Any, expected: int | None) -> None:
        """Makes a schema the topic's newest version. A repeat changes nothing. Raises as `next`, and StoreUnavailable:
        it may count then."""
        while True:
            await self.finish(topic)
            self._catalog.check(topic)
            held = topic.held  # by which the version is made; the watch may bring a newer record at each await
            version = await self.next(topic, stated, expected)
            if version is None or await self._decide(topic, held, version):
                break
        await self.finish(topic)
        await self._changes.put_topic(topic.name, topic.held)

    async def finish(self, topic: Topic) -> None:
        """Does steps 2 to 4 for a pending version, if there is one. A pending one without a record does not come about:
        a snapshot from which coordination was rebuilt was made between its two reads. Raises StoreUnavailable,
        TopicBeingDeleted."""
        while (pending := topic.record.pending) is not UNSET:
            self._catalog.check(topic)
            held, config = topic.held, topic.record.config
            if record := await self._record(topic, pending):
                columns = parse_schema(record.schema)
                await self._put_marker(topic, record)
                key_field = renamed(config.key_field, topic.layout.values, columns)
                config = replace(config, schema=record.schema, columns=encode_fields(columns), key_field=key_field)
                reach("schema.marked")
            if not await self._settle(topic, held, config):
                await self._catalog.refresh(topic.name)
                self._catalog.check(topic)

    async def put_markers(self) -> None:
        """Puts the marker of the newest version of each topic's schema again where it is absent. Raises
        StoreUnavailable."""
        for name in self._catalog.names():
            topic = self._catalog.get(name)
            if topic is None or topic.layout.format is not Format.TYPED or topic.record.state != "active":
                continue
            newest = topic.layout.schema_id  # a topic whose schema never changed has no record of it
            if topic.record.pending is UNSET and (record := await self._record(topic, newest)):
                await self._put_marker(topic, record)

    async def _put_marker(self, topic: Topic, record: SchemaRecord) -> None:
        layout = Layout.from_format(Format.TYPED, of_marker(record.schema))
        stated = msgspec.json.decode(keys.SCHEMAS.encode(Versioned.new(record)))
        await self._entries.put_marker(self._store, topic.name, topic.record.incarnation, layout, stated)

    async def _settle(self, topic: Topic, before: Versioned[TopicRecord], config: TopicConfig) -> bool:
        """Does steps 3 and 4, unless the topic's record has changed since it was as `before`."""
        held = before.replace(config=config, pending=UNSET)
        key = keys.TOPICS.key(topic.name)
        revision = await self._catalog.commit([Compare(key, before.revision)], [Put(key, keys.TOPICS.encode(held))])
        if revision is None:
            return False
        reach("schema.counted")
        await self._changes.put_topic(topic.name, held.stored(revision))
        return True

    async def _decide(self, topic: Topic, held: Versioned[TopicRecord], version: Version) -> bool:
        """Does step 1. False: the topic has changed since its record was as `held`, or one of those beside it."""
        place, number = (topic.name, held.record.incarnation), schema_id_of(version.columns)
        key, before = keys.TOPICS.key(topic.name), number - 1
        writes = [Put(key, keys.TOPICS.encode(held.replace(pending=number)))]
        records = {number: SchemaRecord(version.schema, self._clock.now_us())}
        if await self._record(topic, before) is None:
            records[before] = SchemaRecord(held.record.config.schema or {}, held.record.created_us)
        for one, record in records.items():
            writes.append(Put(keys.SCHEMAS.key(*place, one), keys.SCHEMAS.encode(Versioned.new(record))))
        compares = [Compare(key, held.revision), *version.beside]
        revision = await self._catalog.commit(compares, writes)
        if revision is None:
            await self._catalog.refresh(topic.name)
            self._catalog.check(topic)
            return False
        reach("schema.decided")
        return True

    async def _earlier(self, topic: Topic) -> Known:
        """Returns all versions that count. It reads those that this broker has not read before."""
        known = self._remembered.pop(topic, None)
        if known is None or (known.unreadable and not UNREADABLE_RECORDS.has([known.unreadable.key])):
            known = Known()
        self._remembered[topic] = known
        async with known.reading:
            while known.end <= topic.layout.schema_id:  # the watch may bring a later one meanwhile
                await self._read_versions(topic, known)
        while sum(len(one.having) for one in self._remembered.values()) > REMEMBERED:
            del self._remembered[next(iter(self._remembered))]
        return known

    async def _read_versions(self, topic: Topic, known: Known) -> None:
        newest, schema = topic.layout.schema_id, topic.record.config.schema or {"fields": ()}
        prefix = keys.SCHEMAS.prefix(topic.name, topic.record.incarnation)
        after = keys.SCHEMAS.key(topic.name, topic.record.incarnation, known.end - 1) if known.end else ""
        if known.end < newest:
            async for entry in entries(self._coordination, prefix, after, limit=PAGE):
                if (number := keys.SCHEMAS.parse(entry.key)[2]) >= newest:  # perhaps a pending one
                    break
                held = keys.SCHEMAS.read(entry)
                if isinstance(held, Unreadable):
                    known.unreadable = held
                else:
                    known.add(number, held.record.schema)
                    await asyncio.sleep(0)  # 6 ms for a version of 1,000 fields, and any publish may ask for all
        known.add(newest, schema)

    async def _record(self, topic: Topic, schema_id: int) -> SchemaRecord | None:
        there = await self._coordination.get(keys.SCHEMAS.key(topic.name, topic.record.incarnation, schema_id))
        return keys.SCHEMAS.require(there).record if there else None

    async def _known(self, name: str) -> Topic | None:
        """Returns a topic as its record is now, with a pending version of its schema ended, so that nothing is decided
        about it; None if there is none. Raises NeedsNewerBroker."""
        await self._catalog.refresh(name)
        self._catalog.check_readable(name)
        topic = self._catalog.get(name)
        if topic and topic.record.state == "active":
            await self.finish(topic)
        return topic

    async def _check_sources(self, topic: Topic, columns: pa.Schema) -> list[Compare]:
        """Raises SchemaIncompatible if the topic of dead letters would no longer hold those of some subscription.
        Returns the records of the sources as they were then."""
        found: list[dict[str, Any]] = []
        sources: list[Compare] = []
        if unheld(topic.layout.values, columns, by_name) is None:
            return sources
        async for entry in entries(self._coordination, keys.SUBSCRIPTIONS.prefix()):
            held = keys.SUBSCRIPTIONS.read(entry)
            if isinstance(held, Unreadable) or held.record.state != "active":
                continue
            if held.record.dead_letter_topic != topic.name:
                continue
            name, incarnation, subscription = keys.SUBSCRIPTIONS.parse(entry.key)
            source = await self._known(name)
            if source is None or source.record.incarnation != incarnation:
                continue
            sources.append(Compare(keys.TOPICS.key(name), source.revision))
            if (field := unheld(source.layout.values, columns, by_name)) is not None:
                rule = (
                    f"this topic gets the dead letters of subscription {subscription!r} of topic {name!r}, which still "
                    "has the field; drop the field there first"
                )
                found.append(_not_held(field, source.layout.values, columns, rule))
        if found:
            raise SchemaIncompatible(f"{found[0]['field']!r}: {found[0]['rule']}", differences=found)
        return sources

    async def _check_dead_letters(self, topic: Topic, columns: pa.Schema) -> list[Compare]:
        """Raises SchemaIncompatible if the topic of some subscription's dead letters would not hold them. Returns the
        records of those topics as they were then."""
        found: list[dict[str, Any]] = []
        targets: list[Compare] = []
        async for entry in entries(self._coordination, keys.SUBSCRIPTIONS.prefix(topic.name, topic.record.incarnation)):
            held = keys.SUBSCRIPTIONS.read(entry)
            if isinstance(held, Unreadable) or held.record.state != "active":
                continue
            if not (name := held.record.dead_letter_topic):
                continue
            target = await self._known(name)
            if target is None:
                targets.append(Compare(keys.TOPICS.key(name), 0))
                continue
            targets.append(Compare(keys.TOPICS.key(name), target.revision))
            if (field := unheld(columns, target.layout.values, by_name)) is not None:
                rule = (
                    f"the dead-letter topic {target.name!r} {_why(field, columns, target.layout.values)}; change the "
                    "schema of that topic first"
                )
                found.append(_not_held(field, target.layout.values, columns, rule))
        if found:
            raise SchemaIncompatible(f"{found[0]['field']!r}: {found[0]['rule']}", differences=found)
        return targets


def _beside_columns(schema: Mapping[str, Any]) -> tuple[list[Any], set[int]]:
    """Returns what a version states beside its columns: the texts about its fields, and the ids of its identifiers."""
    return [one.get("doc") for one in schema["fields"]], set(schema.get("identifier-field-ids", ()))


def _is_version(stated: Any, columns: pa.Schema) -> bool:
    """Tells whether a schema, as JSON, has these columns, whatever id it states of itself; one that is no schema has
    not. A field without an id is the one of its name."""
    try:
        return is_same(columns, parse_schema(with_ids(stated, columns)))
    except InvalidRequest:
        return False


def _why(field: str, rows: pa.Schema, held: pa.Schema) -> str:
    """Returns why columns do not hold rows, by the first field that they do not hold."""
    there, own = (one.field(field) if field in one.names else None for one in (rows, held))
    if own is None:
        return "lacks the field"
    if there is None:
        return "requires the field, which the messages would not have"
    if there.nullable and not own.nullable:
        return "requires the field, which would be optional"
    return f"has the type {type_text(own)} for the field, which cannot hold {type_text(there)}"


def _not_held(field: str, before: pa.Schema, after: pa.Schema, rule: str) -> dict[str, Any]:
    """Returns a difference between the columns of two topics, which share no ids."""
    was, now = (type_text(one.field(field)) if field in one.names else None for one in (before, after))
    return {"field": field, "id": None, "from": was, "to": now, "rule": rule}
