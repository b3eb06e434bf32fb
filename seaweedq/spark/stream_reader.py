"""The reader of a stream: asks brokers for the ends of a topic, and has `offsets` decide the rows of a batch.

All state that matters is in Spark's checkpoint: the offsets before and after a batch. The reader remembers files that
it has listed, so that a trigger costs the map, and a request for each segment with new files; a restart lists anew.
"""

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from seaweedq.client.core.calls import TopicFile, call, offsets_at, segment_map, topic_files, topic_path
from seaweedq.client.core.table import NOW, Rows, cover_rows, expiry_time
from seaweedq.client.sync.client import Client
from seaweedq.clock import SystemClock
from seaweedq.errors import ClientError, SegmentNotFound
from seaweedq.segments.layout import identity
from seaweedq.spark.offsets import (
    Known,
    Loss,
    Segment,
    advance,
    backlog,
    from_time,
    initial,
    latest,
    needed,
    ranges,
    segments_of,
)
from seaweedq.spark.options import Options
from seaweedq.spark.partition_reader import PartitionReader, TaskShare, TopicFacts, TopicPartition, divide, loss_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)
ALL_AT_ONCE = 8  # segments with new files, above which one list of all is cheaper than one of each


class ListedFiles:
    """The files of the segments that are read, as far as they were listed."""

    def __init__(self) -> None:
        self._files: dict[int, list[TopicFile]] = {}

    def up_to(self, client: Client, topic: str, wanted: Mapping[int, int]) -> list[TopicFile]:
        """Returns the files of segments up to these ends, which the brokers have said to be in files."""
        ends = {number: held[-1].next_offset for number, held in self._files.items() if held}
        missing = [number for number, end in wanted.items() if ends.get(number, 0) < end]
        if len(missing) > ALL_AT_ONCE:
            listed: dict[int, list[TopicFile]] = {}
            for file in client.run(topic_files(topic)):
                listed.setdefault(file.segment, []).append(file)
            self._files = listed
        else:
            for number in missing:
                held = self._files.setdefault(number, [])
                held += client.run(topic_files(topic, number, held[-1].place if held else None))
        return [file for number in wanted for file in self._files.get(number, ())]

    def trim(self, offsets: Mapping[int, int]) -> None:
        """Forgets files that are read, but the last one of each segment, behind which the list goes on."""
        self._files = {
            number: [file for file in held[:-1] if file.next_offset > offsets[number]] + held[-1:]
            for number, held in self._files.items()
            if number in offsets
        }


class StreamReader(PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a topic as it grows."""

    def __init__(self, options: Options, schema: "StructType", facts: TopicFacts | None = None) -> None:
        super().__init__(options, schema, facts)
        self._client: Client | None = None
        self._listed = ListedFiles()
        self._target: dict[int, int] | None = None
        self._clock = SystemClock()
        self._last_s = self._clock.monotonic_s()
        self._newest: dict[str, int] | None = None
        self._followed: int | None = None  # the newest version of the schema that was seen
        self._now = ""  # the cluster's time when the map was last asked for

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schema": self.schema, "facts": self.facts}

    def initialOffset(self) -> dict[str, Any]:
        """Returns where a query without a checkpoint begins."""
        bound = self.options.starting
        known = self._known(bound) if isinstance(bound, Mapping) else self._map()
        if isinstance(bound, datetime):
            return self._with_time(from_time(known, self._connected().run(offsets_at(self.options.topic, bound))))
        if isinstance(bound, Mapping):
            for number, offset in bound.items():
                if number not in known or offset > known[number].end:
                    raise ValueError(
                        f"startingOffsets has the invalid offset {offset} for segment {number}: "
                        + (
                            f"the segment ends at offset {known[number].end}"
                            if number in known
                            else f"the topic's segments are {sorted(known)[:10]}"
                        )
                    )
            return self._with_time(initial(known, bound))
        return self._with_time(initial(known, {}) if bound == "earliest" else latest(known))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Returns the limit of the options."""
        if self.options.max_offsets:
            return ReadMaxRows(self.options.max_offsets)
        return ReadMinRows(self.options.min_offsets) if self.options.min_offsets else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the ends of now as those of the query."""
        self._target = {number: one.end for number, one in self._map().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Returns the end of the batch that begins at `start`: `start` itself if there is none, as time alone, by
        which the batch's rows expire, makes no batch."""
        at = _numbers(start)
        known = self._known(at)
        step = advance(at, known, limit.max_rows if isinstance(limit, ReadMaxRows) else None, self._target)
        rows = sum(last - first for first, last in ranges(at, step.offsets).values())
        self._newest = _text({n: one.end for n, one in sorted(known.items()) if not one.ended})
        is_early = self._clock.monotonic_s() - self._last_s < self.options.max_trigger_delay_s
        waits = is_early and rows < (self.options.min_offsets or 0)
        if waits and not isinstance(limit, ReadAllAvailable) and self._target is None:
            self._newest["backlog"] = backlog(at, known)
            return start
        self.lose(step.losses)
        self._last_s = self._clock.monotonic_s()
        self._newest["backlog"] = backlog(step.offsets, known, self._target)
        return start if step.offsets == at else self._with_time(step.offsets)

    def reportLatestOffset(self) -> dict[str, int] | None:
        """Returns the ends of the open segments as of the last trigger, and the rows that its batch has left."""
        return self._newest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plans a batch. The rows are told by the two offsets alone, so that a repeated batch has the same, however
        many have expired since."""
        wanted = ranges(_numbers(start), _numbers(end))
        client = self._connected()
        facts = self.describe(client)
        shares = self._shares(client, wanted) if wanted else []
        as_of = expiry_time(end, self.options.expired)
        return [TopicPartition(each, facts, as_of) for each in shares or [TaskShare()]]

    def commit(self, end: dict[str, Any]) -> None:
        """Forgets files that are read."""
        self._listed.trim(_numbers(end))

    def stop(self) -> None:
        """Closes the connections."""
        if self._client:
            self._client.close()
            self._client = None

    def _shares(self, client: Client, wanted: Mapping[int, tuple[int, int]]) -> list[TaskShare]:
        there = {each["id"]: each for each in self._segments()}
        losses: list[Loss] = []
        files: list[Rows] = []
        tail: list[Rows] = []
        for number, (first, last) in wanted.items():
            start, flushed = self._bounds(number, there)
            if first < start:
                losses.append(Loss(number, first, min(start, last)))
                first = min(start, last)
            cut = min(max(flushed, first), last)
            files += [Rows(number, first, cut)] if first < cut else []
            tail += [Rows(number, cut, last)] if cut < last else []
        listed = self._listed.up_to(client, self.options.topic, {rows.segment: rows.end for rows in files})
        found = client.run(cover_rows(self.options.topic, listed, files))
        self.lose([*losses, *map(loss_of, found.gone)])
        return divide(
            found.files, [*found.unlisted, *tail], self.options.max_bytes_per_partition, self.options.min_partitions
        )

    def _bounds(self, number: int, there: Mapping[int, Mapping[str, Any]]) -> tuple[int, int]:
        """Returns the start of a segment, and where its files end; a segment that the map does not have yet has none,
        and of one that nobody remembers all rows are gone."""
        if number in there:
            return there[number]["start_offset"], there[number]["flushed_offset"]
        one = self._ask_segment(number)
        return (one.start, 0) if one else (2**63 - 1, 0)

    def _known(self, at: Mapping[int, int]) -> Known:
        """Returns the map, and the further segments that the next batch needs, as brokers remember them."""
        known, asked = dict(self._map()), set[int]()
        while missing := needed(at, known) - asked:
            for number in missing:
                asked.add(number)
                one = self._ask_segment(number)
                if one and (one.ended or self.options.include_tail):  # nothing tells where the files of others end
                    known[number] = one
        return known

    def _ask_segment(self, number: int) -> Segment | None:
        path = f"{topic_path(self.options.topic)}/segments/{number}"
        try:
            found = self._connected().run(call("GET", path))
        except SegmentNotFound:
            return None
        lineage = tuple(found["predecessors"]), tuple(found["successors"])
        return Segment(number, found["start_offset"], found["end_offset"], found["ended"], *lineage)

    def _map(self) -> Known:
        return segments_of(self._segments(), self.options.include_tail)

    def _segments(self) -> Sequence[Mapping[str, Any]]:
        """Returns the map, which is of the topic that the query began with."""
        answer = self._connected().run(segment_map(self.options.topic))
        there: Sequence[Mapping[str, Any]] = answer["segments"]
        facts = self.describe(self._connected())
        facts.check_same(there)
        if (version := answer.get("schema_id")) not in (facts.schema_id, self._followed):
            self._follow_schema(facts)
            self._followed = version
        self._now = answer[NOW]
        return there

    def _follow_schema(self, before: TopicFacts) -> None:
        """Goes on with the topic's newest schema, as far as Spark can: the columns of a query are fixed, and a renamed
        one keeps its name until the query starts again. Raises ClientError if one was dropped, or has a wider type by
        now, whose values Spark would not take."""
        facts = TopicFacts.fetch(self._connected(), self.options.topic)
        names, now = self.schema.names, {identity(one): one for one in facts.schema}
        ids = {name: identity(before.schema.field(name)) for name in names}
        if dropped := sorted(name for name in names if ids[name] not in now):
            raise ClientError(
                f"version {facts.schema_id} of the schema of topic {self.options.topic!r} no longer has the fields "
                f"{dropped}; start the query again: it then continues from its checkpoint without these fields"
            )
        if wider := [n for n in names if now[ids[n]].type != before.schema.field(n).type]:
            raise ClientError(
                f"version {facts.schema_id} of the schema of topic {self.options.topic!r} has wider "
                f"types for {wider}; start the query again: it then continues from its checkpoint "
                "with the wider types"
            )
        if all(now[ids[name]].name == name for name in names):
            self.facts = facts

    def _with_time(self, offsets: Mapping[int, int]) -> dict[str, Any]:
        """Returns offsets as Spark keeps them: with the time at which the map was asked for."""
        return {**_text(offsets), NOW: self._now}

    def _connected(self) -> Client:
        if self._client is None:
            self._client = Client(self.options.url)
        return self._client


def _text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(number): offset for number, offset in offsets.items()}


def _numbers(offsets: Mapping[str, Any]) -> dict[int, int]:
    return {int(number): offset for number, offset in offsets.items() if number != NOW}
