"""The files of a topic, a page at a time: what a reader needs to plan a read without opening any of them.

A page is one listing of the topic's folder, so ten thousand files cost ten requests to the store, however many segments
they are of. Names tell the first offsets. Where a file ends is told by the next one of its segment, or, of a segment's
last file, by the segment's position, which is asked for before the listing: a file that appears in between begins at or
above that position, and belongs to a later page of a later reader. Files without rows, files of segments that no
record names, files below a segment's start, which retention has taken, and objects of somebody else are left out.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from seaweedq.broker.read.positions import TopicPositions
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.segments.chain import EntryFacts
from seaweedq.segments.entry import EntryName, segment_folder
from seaweedq.storage.interface import ListedObject, ObjectStore

MOST = 1_000  # of a listing, as S3 has it
LEAST = 2  # files of a page that is not the last one
_PLACE = re.compile(r"topics/[^/]+/segment=(0|[1-9][0-9]{0,9})/([^/]+)")


@dataclass(frozen=True, slots=True)
class Place:
    """A file by its segment and its name, where a page goes on behind."""

    segment: int
    name: EntryName


@dataclass(frozen=True, slots=True)
class TopicFile:
    """A file with rows: its half-open range of offsets, its size, and what this broker knows of its metadata."""

    place: Place
    next_offset: int
    size: int
    facts: EntryFacts | None


class FilePages:
    """Pages of a topic's files."""

    def __init__(self, catalog: Catalog, positions: TopicPositions, store: ObjectStore) -> None:
        self._catalog = catalog
        self._positions = positions
        self._store = store

    async def page(
        self, topic: Topic, most: int, after: Place | None = None, segment: int | None = None
    ) -> tuple[list[TopicFile], Place | None]:
        """Returns the files among the next `most` objects, of one segment or of all, and where to go on; None at the
        end. Raises Unavailable, TopicBeingDeleted, NeedsNewerBroker."""
        self._catalog.check_whole(topic)
        flushed = {n: position.flushed for n, position in (await self._positions.positions(topic)).items()}
        prefix = f"topics/{topic.name}/" if segment is None else segment_folder(topic.name, segment)
        begin = f"{segment_folder(topic.name, after.segment)}{after.name}" if after else ""
        listed, cut = await self._listed(prefix, begin, most)
        self._catalog.check(topic)
        starts = self._catalog.start_offsets(topic)
        places = [place for place, _ in listed]
        found = [
            TopicFile(
                place,
                end,
                size,
                opened.chain.facts.get(place.name) if (opened := topic.opened.get(place.segment)) else None,
            )
            for (place, size), end in zip(listed, _ends(places, flushed, cut), strict=True)
            if place.name.first_offset < end and end > starts.get(place.segment, 0)
        ]
        return found, places[-2] if cut else None

    async def _listed(self, prefix: str, after: str, most: int) -> tuple[list[tuple[Place, int]], bool]:
        """Returns the files among the next objects, with their sizes, and whether there may be more: where the last
        one ends is told by the next page. There are two then at least, so that a reader gets on."""
        found: list[tuple[Place, int]] = []
        while True:
            page = await self._store.listed(prefix, after=after, limit=most)
            found += [(place, one.size) for one in page if (place := _place(one))]
            if len(page) < most or len(found) >= LEAST:
                return found, len(page) == most
            after = page[-1].name


def _ends(places: Sequence[Place], flushed: Mapping[int, int], cut: bool) -> list[int]:
    """Returns where each file ends, as far as it counts: 0 for one that is to be left out."""
    ends = []
    for place, behind in pairwise([*places, None]):
        assert place
        limit = flushed.get(place.segment, 0)
        if behind and behind.segment == place.segment:
            limit = min(limit, behind.name.first_offset)
        ends.append(0 if behind is None and cut else limit)
    return ends


def _place(listed: ListedObject) -> Place | None:
    """Returns None for an object of somebody else."""
    found = _PLACE.fullmatch(listed.name)
    name = EntryName.from_object(found[2]) if found else None
    return Place(int(found[1]), name) if found and name else None
