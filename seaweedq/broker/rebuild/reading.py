"""The readings of a rebuild from the store: which topics and segments have folders, the ends of chains, the objects of
open uploads. It writes nothing.

An open segment costs a listing and the reads of its last entry's footer, one that is sealed in the state nothing. Only
if retention takes a topic's files, its folders are listed, and the first file of each sealed segment: else no seal can
be missing, all later segments are found by the seals before them, and no file of a sealed one has gone.

The versions of a typed topic's schema behind the one in the topic's record are in markers: rows may have been stored
by them before a backup had the change, or none is left. A marker may be of a change that was broken off. It can only be
ended, so it counts as well.

A topic whose creation never reached a backup has its record in the first entry of its first segment. A creation that
was cut off leaves such an entry as well, and nobody was told of it. So the topic counts only if a frame, a later file
or a subscription names it, and if the state has given out no id behind its first ones: else it was deleted since.
"""

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import pairwise

import msgspec
from msgspec import UNSET

from seaweedq.broker.rebuild.lineage import ChainEnd, Chains
from seaweedq.broker.rebuild.plan import Found, Place, StateView, Versions, wanted
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.concurrency.pools import Pool
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Entry
from seaweedq.coordination.records import Intent, SchemaRecord, StartRecord, Successor, TopicRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import ChainDamaged
from seaweedq.segments.chain import Chain
from seaweedq.segments.entry import MARKERS, EntryMetadata, EntryName, open_entry, segment_folder, segment_in
from seaweedq.segments.producers import IMPORT, ProducerTables
from seaweedq.storage.interface import LAST, ObjectStore, PayloadStore, by_parts, folders

READS = 48  # segments, topics or uploads at a time
PIECE = 16  # known segments of a topic whose folders are listed one after the other
TOPICS = "topics/"
FIRST = EntryName(0, 0)
NO_START = StartRecord(0, 0)


class StoreReader:
    """Reads the store for one rebuild."""

    def __init__(self, store: ObjectStore, payloads: PayloadStore) -> None:
        self._store = store
        self._payloads = payloads

    async def read(self, view: StateView, found: Found, now_us: int) -> Found:
        """Returns the findings with the chains of all topics, as far as a plan needs them, and the uploads that have an
        object. Raises StoreUnavailable, NeedsNewerBroker."""
        topics = view.topics()
        late = await self._unknown(sorted(topics))
        taken = [name for name, topic in topics.items() if topic.config.retention.takes]
        known = view.segments()
        listed = await self._segments({**dict.fromkeys(late, ()), **{name: known[name].records for name in taken}})
        highest = {name: max(numbers, default=0) for name, numbers in listed.items()}
        found = replace(found, folders=highest, uploads=await self._uploads(view))
        found = await self._find_topics(view, found, {name: listed[name] for name in late})
        found = await self._find_versions(
            {**view.topics(), **{n: held.record for n, held in found.topics.items()}}, found
        )
        chains = {name: Chains(listed.get(name, frozenset())) for name in topics}
        found = replace(found, chains={**found.chains, **chains})
        found = await self._read_shortened(view, found, taken)
        while places := [(n, number) for n, numbers in wanted(view, found, now_us).items() for number in numbers]:
            found = await self._read_ends(view, found, places)
        return found

    async def _unknown(self, known: list[str]) -> list[str]:
        """Returns the topics that have a folder and are not known. The store is asked for what is behind each known
        one, many at a time."""

        async def between(place: tuple[str, str | None]) -> list[str]:
            before, end = place
            after, names = f"{TOPICS}{before}/{LAST}" if before else "", []
            while page := await self._store.list(TOPICS, after, 1):
                name, slash, _ = page[0].removeprefix(TOPICS).partition("/")
                if name == end:
                    break
                if slash and name not in known_names:
                    names.append(name)
                after = f"{TOPICS}{name}/{LAST}" if slash else page[0]
            return names

        known_names = frozenset(known)
        in_order = sorted(known, key=by_parts)
        places = list(zip(["", *in_order], [*in_order, None], strict=True))
        return sorted({name for names in await gather_bounded(READS, between, places) for name in names})

    async def _find_topics(self, view: StateView, found: Found, listed: Mapping[str, frozenset[int]]) -> Found:
        """Adds the topics that first entries tell, of names that have folders and no active record."""
        ending = {name: held.record.incarnation for (name,), held in view.of(keys.TOPICS).items()}
        places = [
            (name, number)
            for name, numbers in listed.items()
            for number in numbers
            if name not in view.unreadable and number > ending.get(name, -1)
        ]
        roots: dict[str, dict[int, Versioned[TopicRecord]]] = {}
        damaged = dict(found.damaged)
        for (name, number), record in zip(places, await gather_bounded(READS, self._record_at, places), strict=True):
            if isinstance(record, str):
                damaged[name] = record
            elif record is not None:
                roots.setdefault(name, {})[number] = record
        framed = {place for journal in found.journals.needed.values() for place in journal.terms}
        subscribed = {(name, incarnation) for name, incarnation, _ in view.of(keys.SUBSCRIPTIONS)}

        async def is_named(name: str, number: int, record: TopicRecord) -> bool:
            counter = view.of(keys.COUNTERS).get((name,))
            first = range(number, number + record.config.initial_segments)
            if counter and counter.record.next > first.stop:
                return False
            mine = [one for one in first if one == number or one not in roots[name]]
            if (name, number) in subscribed or any((name, one) in framed for one in mine):
                return True
            if any(one in listed[name] for one in mine[1:]):
                return True
            return await Chain(self._store, name, number).first_from(FIRST.sequence + 1) is not None

        topics, chains = dict(found.topics), dict(found.chains)
        for name, created in roots.items():
            for number in sorted(created, reverse=True):
                if await is_named(name, number, created[number].record):
                    topics[name] = created[number]
                    chains[name] = Chains(listed[name] - (created.keys() - {number}))
                    break
        return replace(found, topics=topics, chains=chains, damaged=damaged)

    async def _find_versions(self, topics: Mapping[str, TopicRecord], found: Found) -> Found:
        """Adds the versions of schemas that are behind those in the topics' records."""
        places = [
            (n, record) for n, record in sorted(topics.items()) if record.config.schema and n not in found.damaged
        ]
        versions, damaged = dict(found.versions), dict(found.damaged)
        for (name, _), behind in zip(places, await gather_bounded(READS, self._versions_of, places), strict=True):
            if isinstance(behind, str):
                damaged[name] = behind
            elif behind:
                versions[name] = behind
        return replace(found, versions=versions, damaged=damaged)

    async def _versions_of(self, topic: tuple[str, TopicRecord]) -> Versions | str:
        """Returns the versions of one topic's schema that its record does not know; why one cannot be read."""
        name, record = topic
        folder, after = segment_folder(name, MARKERS), ""
        behind: dict[int, Versioned[SchemaRecord]] = {}
        while names := await self._store.list(folder, after, PIECE):
            for each in names:
                marker = EntryName.from_object(each, folder)
                if marker is None or marker.first_offset != record.incarnation:
                    continue
                if marker.schema_id <= record.config.schema_id:  # the newest comes first
                    return behind
                try:
                    held = await self._version_at(each)
                except ChainDamaged as error:
                    return error.detail
                if not isinstance(held, Versioned):
                    return f"the record in {each}: {held.why}"
                behind[marker.schema_id] = held
            after = names[-1]
        return behind

    async def _version_at(self, marker: str) -> Versioned[SchemaRecord] | Unreadable:
        """Returns the record in a marker. Raises ChainDamaged."""
        parquet, metadata = open_entry(io.BytesIO(await self._store.read(marker)), marker)
        parquet.close()
        if not isinstance(metadata.schema_record, dict):
            raise ChainDamaged(f"the object {marker} does not contain a version of a topic's schema", name=marker)
        key = keys.SCHEMAS.key(metadata.topic, metadata.first_offset, metadata.schema_id)
        return keys.SCHEMAS.read(Entry(key, msgspec.json.encode(metadata.schema_record), 0))

    async def _record_at(self, place: Place) -> Versioned[TopicRecord] | str | None:
        """Returns the topic's record in the first entry of a segment, None if there is none; why it cannot be read."""
        topic, number = place
        chain = Chain(self._store, topic, number)
        if await chain.first_from(FIRST.sequence) != FIRST:
            return None
        try:
            stated = (await chain.read(chain.metadata, FIRST)).topic_record
        except ChainDamaged as error:
            return error.detail
        if not isinstance(stated, dict):
            return None
        read = keys.TOPICS.read(Entry(keys.TOPICS.key(topic), msgspec.json.encode(stated), 0))
        if not isinstance(read, Versioned):
            return f"the record in the first entry of {chain.folder}: {read.why}"
        return read if read.record.incarnation == number else None

    async def _segments(self, known: Mapping[str, Iterable[int]]) -> dict[str, frozenset[int]]:
        """Returns the segments that have folders, by topic. Those that are `known` cut a topic's listing into pieces,
        which are read at once."""
        pieces = [(topic, *piece) for topic, numbers in known.items() for piece in _pieces(topic, numbers)]

        async def within(piece: tuple[str, str, str]) -> list[int]:
            topic, before, last = piece
            found: list[int] = []
            async for folder in folders(self._store, f"{TOPICS}{topic}/", before and before + LAST):
                number = segment_in(folder)
                if number is not None and last and folder > last:
                    break
                found += [] if number is None else [number]
                if folder == last:
                    break
            return found

        listed: dict[str, list[int]] = {topic: [] for topic in known}
        for (topic, _, _), found in zip(pieces, await gather_bounded(READS, within, pieces), strict=True):
            listed[topic] += found
        return {topic: frozenset(numbers) for topic, numbers in listed.items()}

    async def _read_shortened(self, view: StateView, found: Found, topics: Iterable[str]) -> Found:
        """Reads the sealed segments of these topics whose first files are gone: their starts rise."""
        known = view.segments()
        starts = {name: known[name].starts for name in topics}
        sealed = [
            (name, number)
            for name in topics
            for number, record in known[name].records.items()
            if record.state == "sealed" and not starts[name].get(number, NO_START).emptied
        ]

        async def is_shortened(place: Place) -> bool:
            name, number = place
            start = starts[name].get(number, NO_START)
            if number not in found.chains[name].folders:
                return True
            first = await Chain(self._store, name, number).first_from(start.sequence)
            return first is None or first.sequence > start.sequence

        gone = await gather_bounded(READS, is_shortened, sealed)
        return await self._read_ends(view, found, [place for place, yes in zip(sealed, gone, strict=True) if yes])

    async def _read_ends(self, view: StateView, found: Found, places: list[Place]) -> Found:
        """Reads the ends of these chains, in more threads than brokers have for what clients read."""
        known, threads = view.segments(), Pool("rebuild", READS)

        async def end(place: Place) -> ChainEnd | ChainDamaged | None:
            topic, number = place
            starts: Mapping[int, StartRecord] = known[topic].starts if topic in known else {}
            try:
                chain = Chain(self._store, topic, number, readers=threads)
                return await _read_end(chain, number, starts.get(number, NO_START))
            except ChainDamaged as error:
                return error

        ends: dict[str, dict[int, ChainEnd | None]] = {}
        damaged = dict(found.damaged)
        with closing(threads):
            read = await gather_bounded(READS, end, places)
        for (topic, number), one in zip(places, read, strict=True):
            if isinstance(one, ChainDamaged):
                damaged[topic] = one.detail
            else:
                ends.setdefault(topic, {})[number] = one
        chains = {
            name: Chains(one.folders, {**one.ends, **ends[name]}) if name in ends else one
            for name, one in found.chains.items()
        }
        return replace(found, chains=chains, damaged=damaged)

    async def _uploads(self, view: StateView) -> frozenset[tuple[str, int, str]]:
        """Returns the uploads that are open in the state, and whose object exists."""
        uploads = [
            (parts, held.record.name) for parts, held in view.of(keys.UPLOADS).items() if held.record.state == "open"
        ]

        async def exists(one: tuple[tuple[str, int, str], str]) -> bool:
            try:
                await self._payloads.size(one[1])
            except FileNotFoundError:
                return False
            return True

        there = await gather_bounded(READS, exists, uploads)
        return frozenset(parts for (parts, _), yes in zip(uploads, there, strict=True) if yes)


def _pieces(topic: str, known: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yields the pieces of a topic's listing, as the folder before and the last one, empty for none. All stores have
    the folders of segments in the order of their names."""
    ends = sorted(segment_folder(topic, number) for number in known)[PIECE - 1 :: PIECE]
    return pairwise(["", *ends, ""])


async def _read_end(chain: Chain, number: int, start: StartRecord) -> ChainEnd | None:
    """Returns the end of a segment's chain, None if it has no file behind its start. Raises ChainDamaged,
    StoreUnavailable, NeedsNewerBroker."""
    chain.raise_start(EntryName(start.sequence, start.offset))
    try:
        await chain.open()
    except ChainDamaged:
        if await chain.first_from(start.sequence) is None:
            return None
        raise
    last = chain.last
    if last is None or chain.first is None:
        return None
    try:
        tables = ProducerTables.decode(last.producers, number)
    except ValueError as error:
        raise ChainDamaged(
            f"the sequence numbers of producers in the last file of {chain.folder} cannot be read: {error}",
            name=chain.folder,
        ) from error
    return ChainEnd(
        chain.first,
        last.low,
        last.high,
        last.next_offset,
        last.appended_us,
        _intent_of(last),
        tables,
        _imports_of(tables),
        last.term,
        last.topic_record is not UNSET,
    )


def _intent_of(last: EntryMetadata) -> Intent | None:
    """Returns the intent of an entry's seal, as its segments' records had it."""
    if last.seal is None:
        return None
    sealed = last.seal.intent
    successors = tuple(Successor(one.id, one.low, one.high) for one in sealed.successors)
    return Intent(sealed.id, "committed", sealed.segments, successors)


def _imports_of(tables: ProducerTables) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in tables.parts:
        for producer, known in part.producers.items():
            if producer.startswith(IMPORT) and known.requests:
                upload = producer.removeprefix(IMPORT)
                found[upload] = max(found.get(upload, 0), known.requests[-1].low)
    return found
