"""A file journal's folder as a recovery meets it: which files there are, what they hold, and their removal.

Reads what commits.read_file can judge file by file, and refuses a folder whose files do not follow one another.
"""

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from seaweedq.errors import JournalDamaged
from seaweedq.journal.disk import Disk
from seaweedq.segments.commits import FILE_HEADER_BYTES, Commit, FileHeader, read_file, read_header

_NAME = re.compile(r"([0-9]{8})\.journal")


def file_path(folder: Path, number: int) -> Path:
    """The path of a journal's file, counted from 0."""
    return folder / f"{number:08d}.journal"


def draft_path(folder: Path) -> Path:
    """The path of a file that has no name of its own yet."""
    return folder / "next"


def journal_files(folder: Path) -> list[int]:
    """The numbers of the journal files in a folder, rising."""
    return sorted(int(found[1]) for found in map(_NAME.fullmatch, os.listdir(folder)) if found)


def read_journal(folder: Path) -> Iterator[Commit]:
    """The commits that a dead broker's journal still holds, numbers rising by one; a missing folder holds none.

    Payloads are slices of mapped files, one file at a time. To be used in a worker thread, under the folder's lock.
    Raises JournalDamaged, with path and position, where it meets damage; what was handed out before is sound.
    """
    headers = _headers(folder) if folder.is_dir() else []
    expected = headers[0].first_commit if headers else 0
    for at, header in enumerate(headers):
        path = file_path(folder, header.number)
        if header.first_commit != expected:
            raise _damaged(path, f"begins with commit {header.first_commit}, not {expected}")
        contents = read_file(_map(path), str(path), headers[at + 1].previous_end if at + 1 < len(headers) else None)
        yield from contents.commits
        expected += len(contents.commits)


def remove_journal(folder: Path) -> None:
    """Remove a recovered journal, its files oldest first, so that what is left after a crash can still be read."""
    if not folder.is_dir():
        return
    disk = Disk()
    for number in journal_files(folder):
        disk.remove(file_path(folder, number))
        disk.sync_folder(folder)
    disk.remove(draft_path(folder))
    with suppress(OSError):  # not empty: what else is in there is not ours
        folder.rmdir()


def _headers(folder: Path) -> list[FileHeader]:
    """The headers of all files that were begun, in order; only the last may not have been."""
    numbers = journal_files(folder)
    headers: list[FileHeader] = []
    for at, number in enumerate(numbers):
        path = file_path(folder, number)
        with open(path, "rb") as file:
            header = read_header(file.read(FILE_HEADER_BYTES), path.stat().st_size, str(path))
        if header is None and at + 1 < len(numbers):
            raise _damaged(path, "has no header, though another file follows")
        if header is not None and (header.number, number) != (number, numbers[0] + at):
            raise _damaged(path, f"is file {header.number}; file {numbers[0] + at} was to follow")
        if header is not None:
            headers.append(header)
    return headers


def _map(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _damaged(path: Path, what: str) -> JournalDamaged:
    return JournalDamaged(f"{path} {what}", path=str(path), position=0)
