"""What a topic is at the end: its segments' records, the chains on the store, what each broker reads; and the judgement
of it against what producers were told."""

import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow.parquet as pq

from seaweedq.broker.broker import Broker
from seaweedq.broker.topics.invariants import broken_in_topic
from seaweedq.coordination.records import SegmentRecord
from seaweedq.segments.entry import EntryMetadata, EntryName, open_entry, segment_folder
from seaweedq.segments.keyrange import hash_key
from seaweedq.storage.memory import MemoryStore
from tests.support.reshape.lives import Lives
from tests.support.reshape.producing import Id, Ledger

Records = Mapping[int, SegmentRecord]
Rows = list[tuple[str | None, str]]  # key and value, from offset 0 on


@dataclass(frozen=True)
class Chain:
    """One segment on the store."""

    entries: Sequence[EntryMetadata]
    rows: Rows


def chain_of(store: MemoryStore, topic: str, segment: int) -> Chain:
    """Every entry of a segment. Asserts that names, offsets and seals are in order."""
    folder = segment_folder(topic, segment)
    names = sorted(EntryName.parse(name) for name in store.objects if name.startswith(folder))
    entries, rows = [], []
    for at, name in enumerate(names):
        file, metadata = open_entry(io.BytesIO(store.objects[folder + str(name)]), folder + str(name))
        table = pq.ParquetFile.read(file, columns=["_offset", "_key", "value"])
        assert (metadata.sequence, metadata.first_offset) == (at, len(rows)), f"{folder} has a gap at {name}"
        assert table["_offset"].to_pylist() == [*range(len(rows), metadata.next_offset)]
        assert not (entries and entries[-1].seal), f"{folder}{name} stands behind the seal"
        rows += zip(table["_key"].to_pylist(), map(json.loads, table["value"].to_pylist()), strict=True)
        entries.append(metadata)
    return Chain(entries, rows)


async def fetched(cluster: Lives, broker: Broker, segments: Sequence[int]) -> dict[int, Rows]:
    """What one broker reads of all segments."""
    found = {}
    async with cluster.client(broker) as http:
        for segment in segments:
            rows: Rows = []
            while True:
                path = f"/v1/topics/t/segments/{segment}/messages?offset={len(rows)}&limit=1000"
                answer = await http.get(path)
                assert answer.status_code == 200, answer.text
                page = answer.json()
                rows += [(m["key"], m["value"]) for m in page["messages"]]
                if not page["messages"]:
                    break
            found[segment] = rows
    return found


def records_are_sound(records: Records) -> None:
    """At any moment: open ranges tile the key space, and the lineage is a graph without circles."""
    assert broken_in_topic(records) == [], records
    for number, record in records.items():
        for before in record.predecessors:
            assert before < number, "ids rise along the lineage"
            assert number in records[before].successors
            assert records[before].state == "sealed"
        for after in record.successors:
            assert number in records[after].predecessors
            assert max(record.low, records[after].low) < min(record.high, records[after].high)
        assert (record.state == "sealed") == bool(record.successors) == (record.end_offset is not None)
        assert record.state == "open" or record.owner is None
        if record.intent:
            assert all(records[other].intent == record.intent for other in record.intent.segments)


def chains_are_sound(store: MemoryStore, records: Records) -> dict[int, Rows]:
    """The rows of each segment; what is sealed ends as its record says."""
    found = {}
    for number, record in records.items():
        chain = chain_of(store, "t", number)
        seals = [entry.seal for entry in chain.entries if entry.seal]
        if record.state == "sealed":
            assert len(seals) == 1, f"{number} is sealed by {len(seals)}"
            assert seals[0].successors == record.successors
            assert len(chain.rows) == record.end_offset
        else:
            assert not seals, f"{number} is open and has a seal"
        for key, value in chain.rows:
            assert key is None or record.low <= hash_key(key) < record.high, f"{key} is none of {number}"
            assert value
        found[number] = chain.rows
    return found


def judged(ledger: Ledger, rows: Mapping[int, Rows], records: Records) -> list[str]:
    """All that is wrong."""
    return [*ledger.strange, *_contents(ledger, rows), *_key_order(ledger, records)]


def _contents(ledger: Ledger, rows: Mapping[int, Rows]) -> Iterator[str]:
    """Every acknowledged message is there once, at its id; all others at most once; nothing else is."""
    places: dict[str, list[Id]] = defaultdict(list)
    for segment, found in rows.items():
        for offset, (key, value) in enumerate(found):
            places[value].append((segment, offset))
            if value not in ledger.sent:
                yield f"{value} at {segment}-{offset} was never sent"
            elif ledger.sent[value].key != key:
                yield f"{value} has the key {key}, and had {ledger.sent[value].key}"
    for value in ledger.sent:
        at = places[value]
        if len(at) > 1:
            yield f"{ledger.sent[value]} is there {len(at)} times: {at}"
        if value in ledger.ids and at != [ledger.ids[value]]:
            yield f"{ledger.sent[value]} was acknowledged as {ledger.ids[value]}, and is at {at}"


def _key_order(ledger: Ledger, records: Records) -> Iterator[str]:
    """What was answered before another message of its key was sent is before it: in its segment, or in one before."""
    by_key: dict[str | None, list[str]] = defaultdict(list)
    for value in ledger.ids:
        by_key[ledger.sent[value].key].append(value)
    before = _ancestors(records)
    by_key.pop(None, None)
    for values in by_key.values():
        values.sort(key=lambda value: ledger.begun[value])
        for at, later in enumerate(values):
            for earlier in values[:at]:
                if ledger.told[earlier] < ledger.begun[later]:
                    (segment, offset), (next_segment, next_offset) = ledger.ids[earlier], ledger.ids[later]
                    if segment == next_segment:
                        if offset > next_offset:
                            yield f"{later} at {ledger.ids[later]} was sent after {earlier} at {ledger.ids[earlier]}"
                    elif segment not in before[next_segment]:
                        yield f"{later} in {next_segment} was sent after {earlier} in {segment}, which is not before"


def _ancestors(records: Records) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for number in sorted(records):
        for before in records[number].predecessors:
            found[number] |= {before, *found[before]}
    return found
