"""The plan of a read of a topic's files from the store alone, without a broker.

A listing of the topic's folder has the chain of each segment. The footer of a chain's last entry states its end, up to
which all rows are in files: the segment's pin. Files that appear later are behind the pins. Segments are listed one
after the other, and brokers write their files independently of each other, so rows of a segment may be there while the
last ones of a predecessor are in no file yet.

The chain must be whole from its first entry that is there. What stands before a gap may be left over from retention, or
the gap may be damage: brokers know that, a listing does not.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSelector, FileSystem, FileType

from seaweedq.client.core.tables.file_scan import opened
from seaweedq.client.core.tables.segment_rows import SEGMENT
from seaweedq.client.core.tables.table_plan import TablePlan, plan
from seaweedq.client.core.topics.calls import topic_path
from seaweedq.errors import ChainDamaged, ClientError, TopicNotFound
from seaweedq.segments.entry import EntryMetadata, EntryName, open_entry

PARTITION = "segment="
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
    chains = _chains(_listed(store, root, folder))
    paths = [f"{root}/{PARTITION}{number}/{names[-1]}" for number, names in chains.items()]
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


def _listed(store: FileSystem, root: str, folder: str) -> list[str]:
    """Returns the places of files below a topic's folder."""
    try:
        infos = store.get_file_info(FileSelector(root, recursive=True))
    except FileNotFoundError:
        infos = []
    found = [info.path.removeprefix(root).lstrip("/") for info in infos if info.type == FileType.File]
    if not found:
        raise TopicNotFound(f"there are no files of a topic at {folder}", url=folder)
    return found


def _chains(places: Iterable[str]) -> dict[int, Sequence[EntryName]]:
    """Returns the entries of each segment, in their order, by the segments' numbers."""
    found: dict[int, list[EntryName]] = {}
    for place in places:
        folder, _, name = place.partition("/")
        number = folder.removeprefix(PARTITION)
        if not folder.startswith(PARTITION) or not number.isascii() or not number.isdecimal() or "/" in name:
            raise ClientError(f"{place!r} is not a file of a topic; nothing else may be in its folder", name=place)
        found.setdefault(int(number), []).append(EntryName.parse(name))
    return {number: _whole(number, sorted(names)) for number, names in sorted(found.items())}


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
