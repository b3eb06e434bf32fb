"""A job that adds a generation: what a topic has at one moment, from where the last generation ended, and its rows in
a folder of Parquet files (`generations` has the order of the writes).

The rows are told by one segment map: those of each segment from the offsets of the last generation to its end. Offsets
go on as a stream's do (`spark.offsets`), in as many steps as the lineage has, so retention that took rows unread is
seen, and named. Files that retention gives up after the map was asked for stay for the topic's `grace_s`, a minute at
least: they are listed before that. A job that reads longer than the grace may find that a file is gone: it fails, names
the rows, and counts for nothing.

Messages that had expired at the map's time are left out.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from seaweedq.client.core.calls import describe_topic, segments, with_newest_schema, with_removed
from seaweedq.client.core.table import TablePlan, expiry_time, plan, table_schema
from seaweedq.client.sync.client import Client
from seaweedq.clock import Ids, SystemIds
from seaweedq.errors import ClientError, SeaweedqError
from seaweedq.spark.jobs.generations import (
    Begun,
    Generation,
    Generations,
    Job,
    Place,
    check_outside,
    frame_of_folders,
    schema_json,
    storage_of,
)
from seaweedq.spark.offsets import Loss, advance, initial, needed, ranges, segments_of
from seaweedq.spark.topic_table import Fetch, planned_frame

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

KEEP_S = 3600.0
_GONE = re.compile(r"FILE_NOT_EXIST|FileNotFound|BelowRetention|SegmentNotFound")  # in what Spark says
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"  # by default one that has no statistics, and that few others read


@dataclass(frozen=True)
class Target:
    """Where generations go: the folder `to`, the columns of its subfolders and the order in each file, and for how long
    what is superseded stays, in seconds. `storage` are options of fsspec for S3, by default those of the session."""

    to: str
    partition_by: tuple[str, ...] = ()
    sort: tuple[str, ...] = ()
    keep_s: float = KEEP_S
    storage: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Added:
    """The outcome of a job: the generation that it added, None if the topic had nothing new, with so many rows of so
    many that it read, and the generations that it removed. `without_key` counts rows that had no key; `lost` are
    rows that retention took unread."""

    job: Job
    topic: str
    to: str
    generation: int | None
    folder: str | None
    read: int
    rows: int
    removed: tuple[str, ...] = ()
    without_key: int | None = None
    lost: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """The state of a topic at one moment: the ranges of offsets by segment behind `after`, the offsets where they end,
    and the rows that retention has taken unread."""

    facts: Mapping[str, Any]
    known: Sequence[Mapping[str, Any]]
    wanted: Mapping[int, tuple[int, int]]
    offsets: Mapping[int, int]
    losses: tuple[Loss, ...]
    as_of: datetime

    @staticmethod
    def fetch(client: Client, topic: str, after: Mapping[int, int] | None) -> "Snapshot":
        """Asks brokers. Without offsets all that is there counts, and nothing is lost."""
        facts, answer = client.run(describe_topic(topic))
        facts = client.run(with_newest_schema(topic, facts))
        there: Sequence[Mapping[str, Any]] = answer["segments"]
        known = segments_of(there)
        ends = {number: one.end for number, one in known.items()}
        at = dict(initial(known, {}) if after is None else after)
        wanted: dict[int, tuple[int, int]] = {}
        losses: list[Loss] = []
        asked: set[int] = set()
        while True:
            while missing := needed(at, known) - asked:
                asked |= missing
                there = client.run(with_removed(topic, there, missing))
                known = segments_of(there)
            step = advance(at, known, target=ends)
            losses += step.losses
            for number, (first, last) in ranges(at, step.offsets).items():
                wanted[number] = (wanted.get(number, (first, last))[0], last)
            if step.offsets == at:
                break
            at = step.offsets
        starts = {number: one.start for number, one in known.items()}
        wanted = {n: (max(first, starts.get(n, first)), last) for n, (first, last) in wanted.items()}
        wanted = {number: bounds for number, bounds in wanted.items() if bounds[0] < bounds[1]}
        taken = tuple(losses) if after is not None else ()
        as_of = expiry_time(answer, "skip")
        assert as_of is not None
        return Snapshot(facts, there, wanted, at, taken, as_of)

    def taken_since(self, client: Client, topic: str) -> Sequence[Loss]:
        """Asks what retention has taken of the ranges since."""
        there = client.run(segments(topic))
        starts = {each["id"]: each["start_offset"] for each in there}
        behind = {n: min(starts.get(n, last), last) for n, (_, last) in self.wanted.items()}
        return [Loss(n, first, behind[n]) for n, (first, _) in self.wanted.items() if first < behind[n]]

    @property
    def columns(self) -> list[str]:
        """Returns the names of the topic's columns, with `segment` at the end."""
        names: list[str] = table_schema(self.facts).names
        return names

    def chosen(self) -> TablePlan:
        """Returns the rows of the ranges, from files and from brokers."""
        starts, ends = ({n: bounds[at] for n, bounds in self.wanted.items()} for at in (0, 1))
        return plan(self.known, starts, ends, self.wanted.keys())


def check_columns(option: str, given: Sequence[str], there: Collection[str]) -> None:
    """Raises ValueError for a column that is not there, or that is named twice."""
    if unknown := [name for name in given if name not in there]:
        raise ValueError(
            f"{option} names columns that the topic does not have: {', '.join(unknown)}; the "
            f"topic's columns are {', '.join(there)}"
        )
    if len({*given}) < len(given):
        raise ValueError(f"{option} names a column twice: {', '.join(given)}")


Make = Callable[["DataFrame", Snapshot], "DataFrame"]


@dataclass
class GenerationJob:
    """A job of one kind for one topic, in a session. `make` gives the generation's rows, given the topic's.

    Given how many rows were written, `without_key` counts those read that have no key. `run` raises ValueError for what
    cannot be asked for, and ClientError if the job cannot be done: the folder is one of another topic or another job,
    another one has come first, or retention took what was to be read.
    """

    spark: "SparkSession"
    kind: Job
    topic: str
    url: str | Sequence[str]
    target: Target
    without_key: Callable[[int], int] | None = None
    ids: Ids = field(default_factory=SystemIds)

    def run(self, make: Make, check: Callable[[Snapshot], None], skip_lost: bool = False) -> Added:
        """Adds a generation, unless there is nothing new to add."""
        place = Place.parse(self.target.to)
        storage = {} if place.local else storage_of(self.spark, self.target.storage)
        with Client(self.url) as client:
            there = Generations(place, storage, self.ids)
            newest = there.newest()
            if newest:
                self._check_job(newest)
            begin = {int(n): at for n, at in newest.offsets.items()} if newest and self.kind == "export" else None
            topic = Snapshot.fetch(client, self.topic, begin)
            check_outside(place, topic.facts["path"], self.topic)
            self._check(topic, newest)
            check(topic)
            if topic.losses and not skip_lost:
                raise self._losses(topic.losses)
            read = sum(last - first for first, last in topic.wanted.values())
            lost = tuple(map(str, topic.losses))
            if self.kind == "export" and not topic.wanted and topic.offsets == (begin or topic.offsets):
                return Added(self.kind, self.topic, place.given, None, None, 0, 0, lost=lost)
            fetch = Fetch(self.url, self.topic, {}, table_schema(topic.facts))
            frame = make(planned_frame(self.spark, client, fetch, topic.facts, topic.known, topic.chosen()), topic)
            with there.begin(newest) as begun:
                try:
                    rows = self._write(frame, place, begun)
                    without_key = self.without_key(rows) if self.without_key else None
                except Exception as error:
                    if why := self._reason(error, client, there, begun, topic):
                        raise why from error
                    raise
                made = self._record(begun, newest, topic, frame, rows)
                there.commit(begun, made)
        removed = there.clean(made, self.target.keep_s)
        return Added(
            self.kind,
            self.topic,
            place.given,
            begun.number,
            begun.folder,
            read,
            rows,
            tuple(removed),
            without_key,
            lost,
        )

    def _check_job(self, newest: Generation) -> None:
        if (newest.job, newest.topic) != (self.kind, self.topic):
            raise ClientError(
                f"{self.target.to} contains the output of `seaweedq spark {newest.job} {newest.topic}`, not of "
                f"`seaweedq spark {self.kind} {self.topic}`; choose another folder"
            )

    def _check(self, topic: Snapshot, newest: Generation | None) -> None:
        by = self.target.partition_by
        check_columns("--partition-by", by, topic.columns)
        check_columns("--sort", self.target.sort, topic.columns)
        if by and len(by) == len(topic.columns):
            raise ValueError(
                "--partition-by names all columns; leave out at least one column, which is then stored in the files"
            )
        if by and any(name.lower() == "gen" for name in topic.columns):
            raise ValueError(
                "--partition-by cannot be used with this topic, because the topic's column `gen` has "
                "the same name as the folders of generations"
            )
        if newest is None:
            return
        if newest.created_at != topic.facts["created_at"]:
            raise ClientError(
                f"{self.target.to} contains generations of an older topic {self.topic!r}, which was "
                f"created at {newest.created_at}; the present topic with this name was created at "
                f"{topic.facts['created_at']}; choose another folder"
            )
        if self.kind == "export" and newest.partition_by != by:
            was = (
                f"with --partition-by {','.join(newest.partition_by)}"
                if newest.partition_by
                else "without --partition-by"
            )
            raise ClientError(
                f"the generations in {self.target.to} were written {was}; all generations in a folder are read "
                f"together, so run this job {was} too, or choose another folder"
            )

    def _write(self, frame: "DataFrame", place: Place, begun: Begun) -> int:
        """Writes the folder, and returns how many rows it has."""
        by, sort = list(self.target.partition_by), list(self.target.sort)
        path = f"{place.spark}/{begun.folder}"
        if by:  # the rows of a value come together, in a few files
            from pyspark.sql import functions as F

            frame = frame.hint("rebalance", *(F.col(f"`{name}`") for name in by))
        if sort:
            frame = frame.sortWithinPartitions(*(f"`{name}`" for name in [*by, *sort]))
        with _session_option(self.spark, _TIMESTAMPS, "TIMESTAMP_MICROS"):
            frame.write.option("compression", "zstd").option("timeZone", "UTC").mode("error").parquet(
                path, partitionBy=by
            )
        written = frame_of_folders(self.spark, place, schema_json(frame), [begun.folder], by)
        return int(written.count())

    def _record(
        self, begun: Begun, newest: Generation | None, topic: Snapshot, frame: "DataFrame", rows: int
    ) -> Generation:
        before = newest.folders if newest and self.kind == "export" else ()
        return Generation(
            generation=begun.number,
            nonce=begun.nonce,
            previous=begun.previous,
            job=self.kind,
            topic=self.topic,
            created_at=topic.facts["created_at"],
            as_of=topic.as_of.isoformat(),
            folders=(*before, begun.folder),
            offsets={str(number): offset for number, offset in topic.offsets.items()},
            schema=schema_json(frame),
            rows=rows,
            partition_by=self.target.partition_by,
            sort=self.target.sort,
        )

    def _reason(
        self, error: Exception, client: Client, there: Generations, begun: Begun, topic: Snapshot
    ) -> ClientError | None:
        """Returns why the rows could not be written if it is known: another job, whose cleaning may have met this one,
        or retention."""
        try:
            if there.is_decided(begun):
                return there.lost(begun)
            losses = topic.taken_since(client, self.topic) if _GONE.search(str(error)) else ()
        except SeaweedqError:
            return None
        if losses and self.kind == "compact":
            return ClientError(
                f"{_gone(self.topic, losses)} were read. Run the job again: the rows are no longer in the topic"
            )
        return self._losses(losses) if losses else None

    def _losses(self, losses: Sequence[Loss]) -> ClientError:
        return ClientError(
            f"{_gone(self.topic, losses)} were exported. With --skip-lost the export continues after them"
        )


def _gone(topic: str, losses: Sequence[Loss]) -> str:
    said = "; ".join(map(str, losses[:10])) + (f"; and {len(losses) - 10} more" if len(losses) > 10 else "")
    return f"rows of topic {topic!r} were deleted ({said}) before they"


@contextmanager
def _session_option(spark: "SparkSession", name: str, value: str) -> "Iterator[None]":
    """Sets an option of the session for a block."""
    before = str(spark.conf.get(name))
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)
