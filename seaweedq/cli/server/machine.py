"""The demands of a broker on its machine: writable folders, and enough open files.

Before anything is written, the process checks that it can write to the data folder and to a local store. The error
names the folder and the user, because a container often runs as another user than the owner of its volume. Only the
user can read a data folder that the process creates, because nobody else should see messages. The group can read a
store outside the data folder, so that other users can run Spark or DuckDB on it."""

import logging
import os
import sys
from pathlib import Path

from seaweedq.settings import Settings

# The data folder's own entries. An earlier run as another user, such as root, leaves some that this one may not write.
MODE, MASK = 0o700, 0o027
PARTS = ("lock", "folder-id", "admin-token", "cluster-secret", "coordination.db", "journals", "members", "store")


def keep_others_out() -> None:
    """Makes sure that files created by this process and its children cannot be read by users outside its group."""
    os.umask(os.umask(MASK) | MASK)


def check_folders(settings: Settings) -> None:
    """Creates the data folder, and the folder of a local store outside it. Raises PermissionError for the first folder
    that this process cannot write to; OSError."""
    _check("data folder", settings.data_dir, MODE)
    scheme, _, path = settings.store.partition("://")
    if scheme == "file" and path:
        _check("store", Path(path))


def _check(name: str, folder: Path, mode: int = 0o777) -> None:
    try:
        folder.mkdir(mode, parents=True, exist_ok=True)
    except PermissionError as error:
        raise _refusal(name, folder, Path(error.filename).parent) from None
    except (FileExistsError, NotADirectoryError):
        found = next(path for path in (folder, *folder.parents) if path.exists())
        raise NotADirectoryError(f"the {name} {folder} cannot be created: {found} is not a folder") from None
    for part in (folder, *(folder / part for part in PARTS)):
        if part.exists() and not _writable(part):
            raise _refusal(name, folder, part)


def _writable(path: Path) -> bool:
    wanted = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    return os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)


def _refusal(name: str, folder: Path, part: Path) -> PermissionError:
    user, group = os.geteuid(), os.getegid()
    if os.statvfs(part).f_flag & os.ST_RDONLY:
        why = f"the file system of {part} is mounted read-only"
    else:
        make = "" if folder.exists() else f"mkdir -p {folder} && "
        why = f"{part} belongs to user {part.stat().st_uid}; {make}chown -R {user}:{group} {folder}"
    why += ", or choose another folder"
    return PermissionError(f"user {user} cannot write to {name} {folder}: {why}")


MOST = 16_384
OTHERS = 256  # files, and connections to store, coordination and other brokers
FEWEST = 16
logger = logging.getLogger("seaweedq")


def raise_limit() -> int:
    """Raises the limit of open files as far as possible, and returns it."""
    if sys.platform == "win32":
        return 8192
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:  # some systems have a bound of their own below an unlimited one
        logger.warning("the limit of open files could not be raised, and stays at %d: %s", soft, error)
        hard = soft
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def connections_of(wanted: int, files: int) -> tuple[int, int]:
    """Returns how many connections a broker accepts with this limit of open files, and how many more for probes and
    other brokers. `wanted` is max_connections."""
    possible = max(FEWEST, files * 9 // 10 - OTHERS)
    if wanted > possible:
        logger.warning(
            "max_connections=%d needs more than the %d open files that are allowed, so the "
            "broker accepts only %d connections; raise the limit of open files (nofile)",
            wanted,
            files,
            possible,
        )
    return min(wanted or MOST, possible), min(OTHERS, max(FEWEST, files // 20))
