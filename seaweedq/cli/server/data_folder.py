"""The check that this process may write to the data folder and to a local store, before anything is written there; and
who may read what it writes there: messages are nobody else's. A data folder that it makes is its user's alone. Of a
store elsewhere the group may read, so that the group's other users can run Spark or DuckDB on it.

A container often runs as another user than the owner of its volume. The error names the folder and the user.
"""

import os
from pathlib import Path

from seaweedq.settings import Settings

# The data folder's own entries. An earlier run as another user, such as root, leaves some that this one may not write.
MODE, MASK = 0o700, 0o027
PARTS = ("lock", "folder-id", "admin-token", "cluster-secret", "coordination.db", "journals", "members", "store")


def keep_others_out() -> None:
    """Has this process, and those that it starts, make nothing that users outside of its group may read."""
    os.umask(os.umask(MASK) | MASK)


def check_folders(settings: Settings) -> None:
    """Makes the data folder, and the folder of a local store if that is elsewhere. Raises PermissionError for the first
    that this process may not write; OSError."""
    _check("data folder", settings.data_dir, MODE)
    scheme, _, path = settings.store.partition("://")
    if scheme == "file" and path:
        _check("store", Path(path))


def _check(name: str, folder: Path, mode: int = 0o777) -> None:
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except PermissionError as error:
        raise _refusal(name, folder, Path(error.filename).parent) from None
    for part in (folder, *(folder / part for part in PARTS)):
        if part.exists() and not _writable(part):
            raise _refusal(name, folder, part)


def _writable(path: Path) -> bool:
    wanted = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def _refusal(name: str, folder: Path, part: Path) -> PermissionError:
    user, group = os.geteuid(), os.getegid()
    if os.statvfs(part).f_flag & os.ST_RDONLY:
        why = f"the file system of {part} is mounted for reading alone"
    else:
        make = "" if folder.exists() else f"mkdir -p {folder} && "
        why = f"{part} belongs to user {part.stat().st_uid}; {make}chown -R {user}:{group} {folder}"
    why += ", or give the broker another folder"
    return PermissionError(f"{name} {folder} cannot be written by user {user}: {why}")
