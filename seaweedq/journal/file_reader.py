"""The files of a file journal as a recovery reads them: which there are, what they hold, and their removal.

Reads each file as segments/commits says, and refuses a folder whose files do not follow one another.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from seaweedq.errors import JournalDamaged
from seaweedq.journal.disk import Disk
from seaweedq.segments.commits import FILE_HEADER_BYTES, Commit, FileHeader, read_commits, read_header

_NAME = re.compile(r"([0-9]{8})\.journal")


def file_path(folder: Path, number: int) -> Path:
    """Returns the path of a journal's file, counted from 0."""
    return folder / f"{number:08d}.journal"


def draft_path(folder: Path) -> Path:
    """Returns the path of a file that has no name of its own yet."""
    return folder / "next"


def journal_files(folder: Path, disk: Disk) -> list[int]:
    """Returns the numbers of the journal files in a folder, rising."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, disk.names(folder)) if found)


def read_journal(folder: Path, disk: Disk) -> Iterator[Commit]:
    """Yields the commits that a dead broker's journal still holds, numbers rising by one; a missing folder holds none.

    Reads a commit at a time. Blocks, and needs the folder's lock. Raises JournalDamaged,
    with path and position, where it meets damage; what was yielded before is sound.
    """
    headers = _headers(folder, disk)
    expected = headers[0].first_commit if headers else 0
    for at, header in enumerate(headers):
        path = file_path(folder, header.number)
        if header.first_commit != expected:
            raise _damaged(path, f"begins with commit {header.first_commit}, not {expected}")
        end = headers[at + 1].previous_end if at + 1 < len(headers) else None
        with closing(disk.open(path)) as file:
            for commit in read_commits(file, str(path), end):
                assert commit.number == expected, "numbers are dense over the files of a journal"
                expected += 1
                yield commit
                del commit  # its memory may be let go of before the next one is read


def remove_journal(folder: Path, disk: Disk) -> None:
    """Removes a recovered journal, its files oldest first, so that what is left after a crash can still be read."""
    for number in journal_files(folder, disk):
        disk.remove(file_path(folder, number))
        disk.sync_folder(folder)
    disk.remove(draft_path(folder))
    disk.remove_folder(folder)  # where it is not empty, the rest belongs to others


def _headers(folder: Path, disk: Disk) -> list[FileHeader]:
    """Returns the headers of all files that were begun, in order; only the last may not have been."""
    numbers = journal_files(folder, disk)
    headers: list[FileHeader] = []
    for at, number in enumerate(numbers):
        path = file_path(folder, number)
        header = read_header(disk.read(path, FILE_HEADER_BYTES), disk.size(path), str(path))
        if header is None and at + 1 < len(numbers):
            raise _damaged(path, "has no header, though another file follows")
        if header is not None and (header.number, number) != (number, numbers[0] + at):
            raise _damaged(path, f"is file {header.number}; file {numbers[0] + at} was to follow")
        if header is not None:
            headers.append(header)
    return headers


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(f"{path} {what}", path=str(path), position=0)
