"""The plan of a read of a topic's files from the store alone, without a broker.

A listing of the topic's folder has the chain of each segment. The footer of a chain's last entry states its end, up to
which all rows are in files: the segment's pin. Files that appear later are behind the pins. Segments are listed one
after the other, and brokers write their files independently of each other, so rows of a segment may be there while the
last ones of a predecessor are in no file yet.

Objects of somebody else are left out, as brokers do it, and Spark, which is told the names of entries. A folder
of somebody else is an error: Spark takes no others beside those of segments.

The chain must be whole from its first entry that is there. What stands before a gap may be left over from retention, or
the gap may be damage: brokers know that, a listing does not.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from seaweedq.client.core.calls import topic_path
from seaweedq.client.core.table import SEGMENT, TablePlan, opened, plan
from seaweedq.errors import ChainDamaged, ClientError, TopicNotFound
from seaweedq.segments.entry import EntryMetadata, EntryName, open_entry

logger = logging.getLogger(__name__)
_SEGMENT = re.compile(r"segment=(0|[1-9][0-9]*)")
FOOTERS = 8  # that are read at a time


def topic_folder(store: str, topic: str) -> str:
    """Returns the URL of a topic's folder in a store. Raises InvalidName."""
    topic_path(topic)
    return f"{store.rstrip('/')}/topics/{topic}"


def plan_of_store(
    folder: str,
    storage: Mapping[str, Any],
    starting: Mapping[int, int] | None,
    ending: Mapping[int, int] | None,
    only: Collection[int] | None,
) -> tuple[TablePlan, pa.Schema]:
    """Returns the rows of a topic that are in files, and its columns, with `segment` at the end.

    Raises TopicNotFound where there are no files, ChainDamaged for a chain with a gap, ValueError as `plan`.
    """
    store, root = opened(folder, storage)
    chains = _chains(_listed(store, root), folder)
    paths = [f"{root}/segment={number}/{names[-1]}" for number, names in chains.items()]
    with ThreadPoolExecutor(min(FOOTERS, len(paths))) as pool:
        last = list(pool.map(lambda path: _footer(store, path), paths))
    known = [
        {
            "id": number,
            "start_offset": names[0].first_offset,
            "flushed_offset": metadata.next_offset,
            "end_offset": metadata.next_offset,
        }
        for (number, names), (metadata, _) in zip(chains.items(), last, strict=True)
    ]
    schema = last[-1][1].append(SEGMENT).remove_metadata()
    return plan(known, starting, ending, only, tail=False), schema


def _listed(store: FileSystem, root: str) -> list[str]:
    """Returns the places of files below a topic's folder."""
    try:
        infos = store.get_file_info(FileSelector(root, recursive=True))
    except FileNotFoundError:
        return []
    return [info.path.removeprefix(root).lstrip("/") for info in infos if info.type == FileType.File]


def _chains(places: Iterable[str], topic: str) -> dict[int, Sequence[EntryName]]:
    """Returns the entries of each segment, in their order, by the segments' numbers."""
    found: dict[int, list[EntryName]] = {}
    others: list[str] = []
    for place in places:
        folder, _, name = place.rpartition("/")
        segment, entry = _SEGMENT.fullmatch(folder), EntryName.from_object(name)
        if folder and not segment and not _is_hidden(folder):
            detail = f"{place!r} at {topic} is in a folder that is none of a segment; Spark reads no topic beside it"
            raise ClientError(detail, name=place)
        if segment and entry:
            found.setdefault(int(segment[1]), []).append(entry)
        else:
            others.append(place)
    if not found:
        raise TopicNotFound(f"there are no files of a topic at {topic}", url=topic)
    if others:
        logger.warning("%s has objects of somebody else, which are left out: %s", topic, sorted(others)[:3])
    return {number: _whole(number, sorted(names)) for number, names in sorted(found.items())}


def _is_hidden(folder: str) -> bool:
    """Tells whether Spark reads nothing below a folder."""
    return any(part.startswith((".", "_")) and "=" not in part for part in folder.split("/"))


def _whole(number: int, names: Sequence[EntryName]) -> Sequence[EntryName]:
    for one, following in pairwise(names):
        if following.sequence != one.sequence + 1:
            raise ChainDamaged(
                f"segment {number} has the entries {one} and {following}, and none between. If retention has taken "
                f"those before, brokers know it: read the topic with a url instead of the store",
                name=str(following),
            )
    return names


def _footer(store: FileSystem, path: str) -> tuple[EntryMetadata, pa.Schema]:
    with store.open_input_file(path) as file:
        parquet, metadata = open_entry(file, path)
        return metadata, parquet.schema_arrow
