"""The versions of typed topics' schemas: which there are, and the step to the next one.

Order of writes: 1. one transaction writes the record of the version and, for the first change of a topic, that of the
version before, and names the version as `pending` in the topic's record. It compares that record, and those of
topics of dead letters and of their sources by which the version was checked, so it decides among changes at once. 2.
The *marker*, made of the record of the version: a file without rows with the columns of the version and a name before
all others of the topic, so that bare readers of the directory take these columns. It has the record, too, by which a
rebuild of coordination finds versions that no backup has (broker/rebuild). It is created if absent.
3. The topic's record has the version as its schema: *now it counts*, and brokers take its rows. 4. The administrative
change. 5. The answer.

A crash behind 1 or 2 leaves a pending version. It can only be ended: bare readers may know its marker, and no row is of
it. Whoever asks for the next version ends it first, and so does the leader, 5 s later. Behind 3 a repeat does 4.

Markers are named by the id of the version, the newest first, and by the incarnation of the topic: one that is put late,
after the topic was deleted and created anew, is known as a dead one, and swept. One of a history that coordination has
lost may have the name of the next version: it has other columns then, and is replaced before the version counts.
"""

import asyncio
from collections.abc import Sequence
from math import inf
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
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import InvalidRequest, SchemaIncompatible, SchemaNotFound, TopicConflict
from seaweedq.segments.evolution import Compatibility, History, is_same, next_version, warnings, with_ids
from seaweedq.segments.layout import Format, Layout, schema_id_of, unheld
from seaweedq.segments.schema import encode_fields, parse_schema
from seaweedq.storage.interface import ObjectStore

MAX_VERSIONS = 1000
PAGE = 4  # records, which are large
MAX_BESIDE = 100  # records that a transaction compares beside the topic's: etcd takes 128


class Version(NamedTuple):
    """A version that may be made: its schema as JSON and as columns, and `beside` the records of the other topics by
    which it was checked, those of dead letters and their sources."""

    schema: dict[str, Any]
    columns: pa.Schema
    beside: Sequence[Compare]


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

    async def has(self, topic: Topic, stated: Any) -> bool:
        """Tells whether a schema, as JSON, is one of the topic's versions, whatever id it states of itself; a pending
        one counts first. One that is no schema is none of them. Raises as `finish`, and NeedsNewerBroker if it is none
        of those that can be read, and there are others."""
        await self.finish(topic)
        if topic.layout.format is not Format.TYPED:
            return False
        if _is_version(stated, topic.layout.values):
            return True
        unreadable = None
        prefix = keys.SCHEMAS.prefix(topic.name, topic.record.incarnation)
        async for entry in entries(self._coordination, prefix, limit=PAGE):
            held = keys.SCHEMAS.read(entry)
            if isinstance(held, Unreadable):
                unreadable = held
            elif _is_version(stated, parse_schema(held.record.schema)):
                return True
        if unreadable:
            raise unreadable.error()
        return False

    async def next(self, topic: Topic, stated: Any, expected: int | None) -> Version | None:
        """Returns the version that a stated schema would make; None if it is that of the newest. Raises InvalidRequest
        for one that is no schema, or a topic that has none; SchemaIncompatible; and TopicConflict unless the
        `expected` version is the newest."""
        newest = topic.record.config.schema
        if topic.layout.format is not Format.TYPED or newest is None:
            raise InvalidRequest(f"topic {topic.name!r} is not typed, so it has no schema", field="schema")
        config, history = topic.record.config, await self._history(topic)
        compatibility = Compatibility(config.compatibility or Compatibility.BACKWARD)
        drops = expected is not None  # a schema that was made of an earlier version may only lack a field that is new
        schema, columns = next_version(stated, topic.layout.values, history, compatibility, config.key_field, drops)
        docs = [[field.get("doc") for field in one["fields"]] for one in (schema, newest)]
        if is_same(columns, topic.layout.values) and docs[0] == docs[1]:
            return None
        if expected is not None and expected != topic.layout.schema_id:
            raise TopicConflict(
                f"the newest schema version of topic {topic.name!r} is {topic.layout.schema_id}, not {expected}",
                differences={"schema_id": {"current": topic.layout.schema_id, "requested": expected}},
            )
        if len(await self.ids(topic)) >= MAX_VERSIONS:
            detail = f"the schema of topic {topic.name!r} has {MAX_VERSIONS} versions, which is the limit"
            raise SchemaIncompatible(detail, differences=[])
        found = [*await self._check_dead_letters(topic, columns), *await self._check_sources(topic, columns)]
        beside = [*{one.key: one for one in found}.values()]
        if len(beside) > MAX_BESIDE:
            detail = (
                f"topic {topic.name!r} shares dead letters with {len(beside)} topics, and a change of its schema is "
                f"checked against at most {MAX_BESIDE}"
            )
            raise SchemaIncompatible(detail, differences=[])
        return Version(schema, columns, beside)

    async def warnings(self, topic: Topic) -> list[str]:
        """Returns what people should know about the change that has made the newest version."""
        newest = topic.layout
        if newest.schema_id == 0 or (record := await self._record(topic, newest.schema_id - 1)) is None:
            return []
        return warnings(parse_schema(record.schema), newest.values)

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
                layout = Layout.from_format(Format.TYPED, columns)
                stated = msgspec.json.decode(keys.SCHEMAS.encode(Versioned.new(record)))
                await self._entries.put_marker(self._store, topic.name, topic.record.incarnation, layout, stated)
                config = replace(config, schema=record.schema, columns=encode_fields(columns))
                reach("schema.marked")
            if not await self._settle(topic, held, config):
                await self._catalog.refresh(topic.name)
                self._catalog.check(topic)

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

    async def _history(self, topic: Topic) -> History:
        """Returns the fields of all versions. Raises NeedsNewerBroker for one that cannot be read."""
        history = History()
        history.add(topic.record.config.schema or {"fields": ()})
        prefix = keys.SCHEMAS.prefix(topic.name, topic.record.incarnation)
        async for entry in entries(self._coordination, prefix, limit=PAGE):
            if keys.SCHEMAS.parse(entry.key)[2] < topic.layout.schema_id:  # no pending one
                history.add(keys.SCHEMAS.require(entry).record.schema)
        return history

    async def _record(self, topic: Topic, schema_id: int) -> SchemaRecord | None:
        there = await self._coordination.get(keys.SCHEMAS.key(topic.name, topic.record.incarnation, schema_id))
        return keys.SCHEMAS.require(there).record if there else None

    async def _known(self, name: str) -> Topic | None:
        """Returns a topic as its record is now, with a pending version of its schema ended, so that nothing is decided
        about it; None if there is none."""
        await self._catalog.refresh(name)
        topic = self._catalog.get(name)
        if topic and topic.record.state == "active":
            await self.finish(topic)
        return topic

    async def _check_sources(self, topic: Topic, columns: pa.Schema) -> list[Compare]:
        """Raises SchemaIncompatible if the topic of dead letters would no longer hold those of some subscription.
        Returns the records of the sources as they were then."""
        found: list[dict[str, Any]] = []
        sources: list[Compare] = []
        if unheld(topic.layout.values, columns) is None:
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
            if (field := unheld(source.layout.values, columns)) is not None:
                rule = (
                    f"this topic gets the dead letters of subscription {subscription!r} of topic {name!r}, which still "
                    "has the field; drop the field there first"
                )
                found.append({"field": field, "id": None, "from": None, "to": None, "rule": rule})
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
                continue
            targets.append(Compare(keys.TOPICS.key(name), target.revision))
            if (field := unheld(columns, target.layout.values)) is not None:
                rule = f"the dead-letter topic {target.name!r} lacks the field; change the schema of that topic first"
                found.append({"field": field, "id": None, "from": None, "to": None, "rule": rule})
        if found:
            raise SchemaIncompatible(f"{found[0]['field']!r}: {found[0]['rule']}", differences=found)
        return targets


def _is_version(stated: Any, columns: pa.Schema) -> bool:
    """Tells whether a schema, as JSON, has these columns, whatever id it states of itself; one that is no schema has
    not. A field without an id is the one of its name."""
    try:
        return is_same(columns, parse_schema(with_ids(stated, columns)))
    except InvalidRequest:
        return False
