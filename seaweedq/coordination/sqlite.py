"""Coordination for the processes of one machine, on one SQLite file that they share, with nothing to install.

Write-ahead log with synchronous=FULL: a commit is one fsync. Every step that writes holds SQLite's write lock from its
first read on, so that its comparisons still hold when it writes. It reads the clock inside the transaction, so no
process can read the clock later and commit before. The log always keeps its newest revision, which is the store's. All
SQL runs in one thread. The clock must be the same for all processes of a boot (CLOCK_BOOTTIME is).
"""

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from seaweedq.clock import Clock
from seaweedq.concurrency.pools import Pool
from seaweedq.coordination.interface import Change, Compare, Delete, Entry, Grant, Page, Put, WatchLost
from seaweedq.coordination.polling import Changes, PollingCoordination
from seaweedq.errors import CoordinationUnavailable, Damaged, UnfitStore
from seaweedq.formats import Format

FILE = Format("coordination.db", {1: 1})
WATCHED_AT_ONCE = 256  # revisions; bounds what a watch holds in memory
LOG_PAGES = 32
ROOM_BYTES = 256 * 1024
MODE = 0o600  # it holds secrets
AFTER_ALL = "\U0010ffff"

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS leases (
    lease INTEGER PRIMARY KEY AUTOINCREMENT, boot TEXT NOT NULL, ttl_s REAL NOT NULL, renewed_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL, lease INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS entries_by_lease ON entries (lease) WHERE lease <> 0;
CREATE TABLE IF NOT EXISTS log (
    revision INTEGER NOT NULL, position INTEGER NOT NULL, key TEXT NOT NULL, value BLOB,
    PRIMARY KEY (revision, position)
) WITHOUT ROWID;
PRAGMA user_version = {FILE.newest};
"""
# Monotonic clocks start anew with the machine: a lease of another boot is over, as is one renewed in the future.
ENDED = "SELECT lease FROM leases WHERE renewed_s + ttl_s <= :now OR renewed_s > :now OR boot <> :boot"
P = ParamSpec("P")
R = TypeVar("R")


class Database:
    """An Engine on a SQLite file. `boot` is the id of this boot of the machine; `busy_s` bounds lock waits.

    Raises CoordinationUnavailable if the file is locked for too long, or the disk is full or fails (a commit may then
    have happened or not); Damaged for a file that is not a database; UnfitStore for another format.
    """

    def __init__(self, path: Path, clock: Clock, boot: str, log_limit: int, busy_s: float) -> None:
        self._path = path
        self._clock = clock
        self._boot = boot
        self._log_limit = log_limit
        self._busy_s = busy_s
        self._opened: sqlite3.Connection | None = None

    def revision(self) -> int:
        with self._reading() as db:
            return _revision(db)

    def get(self, key: str) -> Entry | None:
        with self._reading() as db:
            row = db.execute("SELECT key, value, revision, lease FROM entries WHERE key = ?", (key,)).fetchone()
            return Entry(*row) if row else None

    def range(self, prefix: str, after: str, limit: int) -> Page:
        with self._reading() as db:
            rows = db.execute(
                "SELECT key, value, revision, lease FROM entries"
                " WHERE key >= ? AND key > ? AND key < ? ORDER BY key LIMIT ?",
                (prefix, after, prefix + AFTER_ALL, limit + 1),
            ).fetchall()
            return Page(tuple(Entry(*row) for row in rows[:limit]), _revision(db), len(rows) > limit)

    def count(self, prefix: str) -> int:
        with self._reading() as db:
            within = (prefix, prefix + AFTER_ALL)
            (found,) = db.execute("SELECT count(*) FROM entries WHERE key >= ? AND key < ?", within).fetchone()
            return int(found)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        with self._writing() as db:
            leases = {write.lease for write in writes if isinstance(write, Put) and write.lease}
            if not all(_holds(db, compare) for compare in compares) or not all(_lives(db, lease) for lease in leases):
                return None
            self._apply(db, writes)
            return _revision(db)

    def changes(self, prefix: str, revision: int) -> Changes:
        with self._reading() as db:
            newest = _revision(db)
            oldest = _one(db, "SELECT coalesce(min(revision), 1) FROM log") - 1
            if revision < oldest:
                raise WatchLost(
                    f"the changes after revision {revision} can no longer be read, because all changes up "
                    f"to revision {oldest} were removed"
                )
            until = max(revision, min(newest, revision + WATCHED_AT_ONCE))
            rows = db.execute(
                "SELECT key, value, revision FROM log"
                " WHERE revision > ? AND revision <= ? AND key >= ? AND key < ? ORDER BY revision, position",
                (revision, until, prefix, prefix + AFTER_ALL),
            )
            return Changes(tuple(Change(*row) for row in rows), until, until < newest)

    def grant(self, ttl_s: float) -> Grant:
        with self._writing() as db:
            row = (self._boot, ttl_s, self._clock.monotonic_s())
            inserted = db.execute("INSERT INTO leases (boot, ttl_s, renewed_s) VALUES (?, ?, ?)", row)
            return Grant(inserted.lastrowid or 0, ttl_s)

    def renew(self, lease: int) -> bool:
        with self._writing() as db:
            row = (self._clock.monotonic_s(), lease)
            return db.execute("UPDATE leases SET renewed_s = ? WHERE lease = ?", row).rowcount == 1

    def revoke(self, lease: int) -> None:
        with self._writing() as db:
            if _lives(db, lease):  # 0 is that of keys without one
                self._end(db, [lease])

    def close(self) -> None:
        if self._opened is not None:
            with self._errors():
                self._opened.close()
            self._opened = None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Opens one snapshot. Ends expired leases first, so that no reader sees their keys."""
        with self._errors():
            if self._ended(self._connection):
                with self._writing():
                    pass
            with _transaction(self._connection, "DEFERRED") as db:
                yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._errors(), _transaction(self._connection, "IMMEDIATE") as db:
            self._end(db, self._ended(db))
            yield db

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CoordinationUnavailable(
                "coordination (SQLite) does not answer; see the broker's log for the reason",
                inside=f"{self._path}: {error}",
            ) from error
        except sqlite3.DatabaseError as error:
            raise Damaged(f"{self._path}: {error}", path=str(self._path)) from error

    @property
    def _connection(self) -> sqlite3.Connection:
        if self._opened is None:
            _keep_private(self._path)
            db = sqlite3.connect(self._path, timeout=self._busy_s, isolation_level=None)
            try:
                _prepare(db, self._path)
            except BaseException:
                db.close()
                raise
            self._opened = db
        return self._opened

    def _ended(self, db: sqlite3.Connection) -> list[int]:
        return [lease for (lease,) in db.execute(ENDED, {"now": self._clock.monotonic_s(), "boot": self._boot})]

    def _end(self, db: sqlite3.Connection, leases: Sequence[int]) -> None:
        deletes: list[Put | Delete] = []
        for lease in leases:
            db.execute("DELETE FROM leases WHERE lease = ?", (lease,))
            deletes += [Delete(key) for (key,) in db.execute("SELECT key FROM entries WHERE lease = ?", (lease,))]
        self._apply(db, sorted(deletes, key=lambda delete: delete.key))

    def _apply(self, db: sqlite3.Connection, writes: Sequence[Put | Delete]) -> None:
        """Applies the writes as one revision and logs them; if nothing changes there is no new revision."""
        revision = _revision(db) + 1
        log: list[tuple[Any, ...]] = []
        for position, write in enumerate(writes):
            if isinstance(write, Put):
                row = (write.key, write.value, revision, write.lease)
                db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", row)
                log.append((revision, position, write.key, write.value))
            elif db.execute("DELETE FROM entries WHERE key = ?", (write.key,)).rowcount:
                log.append((revision, position, write.key, None))
        if log:
            db.executemany("INSERT INTO log VALUES (?, ?, ?, ?)", log)
            db.execute("DELETE FROM log WHERE revision <= ?", (revision - self._log_limit,))


def _keep_private(path: Path) -> None:
    """Makes the file nobody else's, and the files beside it, which SQLite gives the same mode. An existing file is not
    opened for that: to close it again would end the locks of all of this process's connections to it."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE))
    except FileExistsError:
        for each in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
            with suppress(FileNotFoundError, PermissionError):
                os.chmod(each, MODE)
    except OSError:
        pass  # SQLite fails as well, and its error is one that coordination knows


def _prepare(db: sqlite3.Connection, path: Path) -> None:
    found = _one(db, "PRAGMA user_version")
    if not 0 <= found <= FILE.newest:
        raise UnfitStore(
            f"{path} has the file format {found}, but this program can read only format {FILE.newest}", found=found
        )
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    if not found:
        db.executescript(f"BEGIN IMMEDIATE; {SCHEMA} COMMIT;")
    _make_room(db)


def _make_room(db: sqlite3.Connection) -> None:
    """Grows file and log beyond their need, so that leases can be renewed while the disk is full."""
    restart_log = "PRAGMA wal_checkpoint(RESTART)"
    db.execute(restart_log).fetchall()  # a log that a crash has left is room already
    db.execute("CREATE TABLE IF NOT EXISTS room (filler BLOB)")
    db.execute("INSERT INTO room VALUES (zeroblob(?))", (ROOM_BYTES,))
    db.execute("DELETE FROM room")
    db.execute(restart_log).fetchall()


@contextmanager
def _transaction(db: sqlite3.Connection, kind: str) -> Iterator[sqlite3.Connection]:
    db.execute(f"BEGIN {kind}")
    try:
        yield db
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _one(db: sqlite3.Connection, query: str, *args: object) -> int:
    (value,) = db.execute(query, args).fetchone()
    return int(value)


def _revision(db: sqlite3.Connection) -> int:
    return _one(db, "SELECT coalesce(max(revision), 0) FROM log")


def _holds(db: sqlite3.Connection, compare: Compare) -> bool:
    row = db.execute("SELECT revision FROM entries WHERE key = ?", (compare.key,)).fetchone()
    return (row[0] if row else 0) == compare.revision


def _lives(db: sqlite3.Connection, lease: int) -> bool:
    return db.execute("SELECT 1 FROM leases WHERE lease = ?", (lease,)).fetchone() is not None


class EmbeddedCoordination(PollingCoordination):
    """Coordination in the file `path`, created at first use; its folder must exist, on a disk of this machine.

    `poll_s`: how late a watch may see a commit of another process. `log_limit`: how many revisions watches reach back.
    `busy_s`: how long a step waits for other processes before CoordinationUnavailable.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        poll_s: float = 0.05,
        log_limit: int = 10_000,
        busy_s: float = 2.0,
        boot: str | None = None,
    ) -> None:
        super().__init__(Database(path, clock, boot_id() if boot is None else boot, log_limit, busy_s), poll_s)
        self.thread = Pool("coordination", 1)

    async def close(self) -> None:
        await super().close()
        self.thread.shutdown(wait=False)

    async def _run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self.thread, partial(step, *args, **kwargs))


def boot_id() -> str:
    """Returns the id of this boot of the machine; empty if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
