"""Periodic tasks of the leader, and its sweeps. They run beside its rounds, each at most once at a time.

Abandoned deletions of topics and changes of schemas are continued, and backends of journals delete the rests of dead
brokers.

Late files: a put that was under way when its broker was cut off may land minutes later. The ids of its segment are
never used again, so no broker reads it. But readers of the whole directory do, and after the topic's name was taken
again they see rows of the old topic among those of the new one. So the folders of a name are swept each time for LATE_S
after its topic went; the hourly sweep removes files that come later, or while another broker leads.

Uploads: the sweep removes those that were not published in time or only imported, those that no write can take any
more, and the rests of removals that were cut off. It reads a page of records at a time, and does for each the `step` of
broker/uploads/rules, for several in one transaction. Each change compares the record's revision and the leader's key,
and of an upload for a write the writer's newest write, so a publish or a write that was faster keeps its payload; the
others of its transaction are then changed one by one. The next pass continues behind a record that failed.

Lists of writes: those that no record names go, once their names are two days old. They are listed before the records
are read, and a record comes to name a list within the lease of the broker that made it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from seaweedq.broker.imports.records import is_over
from seaweedq.broker.imports.write_lists import FOLDER as LISTS
from seaweedq.broker.topics.catalog import Catalog, Topic
from seaweedq.broker.uploads import rules
from seaweedq.broker.uploads.records import AT_ONCE, NewestWrites, UploadsWrite, clear, clear_folder
from seaweedq.broker.uploads.rules import Step
from seaweedq.checks import reach
from seaweedq.clock import Clock
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Coordination, Delete, Entry, Put, entries, pages, read_all
from seaweedq.coordination.records import UploadRecord
from seaweedq.coordination.versioned import Unreadable, Versioned
from seaweedq.errors import Damaged, SeaweedqError
from seaweedq.journal.interface import Journals
from seaweedq.storage.generations import Generations
from seaweedq.storage.interface import PayloadStore, folders

ABANDONED_S = 5.0  # the leader continues work on a topic that has not ended for so long
AT_A_TIME = 4  # topics
logger = logging.getLogger(__name__)
LATE_S = 600.0
PAGE = 200
TOGETHER = 40  # records in a transaction: each is compared and written, and its write compared (MAX_OPERATIONS: 128)
LISTS_US = 2 * 86_400 * 1_000_000  # how old the name of a list is before it can be superfluous


class PeriodicTask:
    """A periodic task: `work` is due again `every_s` after it has ended, also after it has failed."""

    def __init__(self, name: str, work: Callable[[], Awaitable[object]], every_s: float, clock: Clock) -> None:
        self._name = name
        self._work = work
        self._every_s = every_s
        self._clock = clock
        self._due_s = float("-inf")
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begins the work, if it is due and not under way."""
        if self._task is None and self._clock.monotonic_s() >= self._due_s:
            self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Cancels the work that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._work()
        except SeaweedqError as error:
            logger.warning("the periodic task %r was interrupted, and will be retried: %s", self._name, error)
        except Exception:
            logger.exception("the periodic task %r failed, and will be retried", self._name)
        finally:
            self._due_s = self._clock.monotonic_s() + self._every_s
            self._task = None


class Abandoned:
    """Work on topics that the broker which began it seems to have abandoned: it has been `under_way` for ABANDONED_S.
    `what` completes the log line of a topic whose work fails."""

    def __init__(
        self,
        under_way: Callable[[], Iterable[Topic]],
        finish: Callable[[Topic], Awaitable[None]],
        what: str,
        clock: Clock,
    ) -> None:
        self._under_way = under_way
        self._finish = finish
        self._what = what
        self._clock = clock
        self._since_s: dict[Topic, float] = {}

    async def end(self) -> None:
        """Continues what is due."""
        now_s = self._clock.monotonic_s()
        self._since_s = {topic: self._since_s.get(topic, now_s) for topic in self._under_way()}
        due = [topic for topic, since_s in self._since_s.items() if now_s - since_s > ABANDONED_S]
        await gather_bounded(AT_A_TIME, self._end, due)

    async def _end(self, topic: Topic) -> None:
        try:
            await self._finish(topic)
        except SeaweedqError as error:
            logger.warning("topic %s %s: %s", topic.name, self._what, error)
        except Exception:  # a defect must not end the others under way
            logger.exception("topic %s %s", topic.name, self._what)


class JournalSweep:
    """The sweep over all journals. It deletes nothing once the store knows a later generation of coordination."""

    def __init__(self, coordination: Coordination, journals: Journals, generations: Generations) -> None:
        self._coordination = coordination
        self._journals = journals
        self._generations = generations

    async def sweep(self) -> None:
        """Deletes the rest of journals that are done, and that nobody recovers any more. Raises Fenced."""
        await self._generations.check()
        if removed := await self._journals.sweep(self._known):
            logger.info("objects removed from the journals of dead brokers: %d", removed)

    async def _known(self) -> set[str]:
        """Returns the brokers that live, or whose journals are still to be recovered, be their records readable or
        not."""
        brokers, _ = await read_all(self._coordination, keys.BROKERS.prefix())
        journals, _ = await read_all(self._coordination, keys.JOURNALS.prefix())
        return {keys.BROKERS.parse(e.key)[0] for e in brokers} | {keys.JOURNALS.parse(e.key)[0] for e in journals}


class LateFiles:
    """The names whose topics went lately. `sweep` removes the files of the dead ids of some names."""

    def __init__(self, catalog: Catalog, sweep: Callable[[Collection[str]], Awaitable[object]], clock: Clock) -> None:
        self._catalog = catalog
        self._sweep = sweep
        self._clock = clock
        self._seen: dict[str, int] = {}  # the incarnation of each name in the last round
        self._gone_s: dict[str, float] = {}

    async def sweep_recently_deleted(self) -> None:
        """Sweeps the names of the topics that went within LATE_S."""
        now_s = self._clock.monotonic_s()
        topics = filter(None, map(self._catalog.get, self._catalog.names()))
        there = {topic.name: topic.record.incarnation for topic in topics}
        gone = [name for name, incarnation in self._seen.items() if there.get(name) != incarnation]
        self._seen = there
        self._gone_s |= dict.fromkeys(gone, now_s)
        self._gone_s = {name: at_s for name, at_s in self._gone_s.items() if now_s - at_s < LATE_S}
        if self._gone_s:
            await self._sweep(self._gone_s.keys())


@dataclass(frozen=True)
class _Due:
    """The step that is due for the record of a key: `held` is what it becomes at first. It holds while the record has
    not changed, and what `compares` says."""

    key: str
    step: Step
    held: Versioned[UploadRecord]
    compares: tuple[Compare, ...] = ()


_Failed = tuple[str, Exception]  # a key, and why
A = TypeVar("A", Entry, _Due)
B = TypeVar("B")


class UploadSweep:
    """The sweep over all topics, also those that are gone. `leading` holds while this broker leads. Before the first
    deletion of a pass `check_generation` is called."""

    def __init__(
        self,
        catalog: Catalog,
        coordination: Coordination,
        store: PayloadStore,
        clock: Clock,
        grace_s: float,
        leading: Callable[[], Compare],
        check_generation: Callable[[], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._coordination = coordination
        self._store = store
        self._clock = clock
        self._grace_s = grace_s
        self._leading = leading
        self._check_generation = check_generation
        self._checked = False  # in this pass
        self._after = ""  # the last key of this pass
        self._writes = NewestWrites(coordination)  # of this page

    async def records(self) -> None:
        """Makes one pass over all records of uploads, or the rest of the last one."""
        self._checked = False
        async for page in pages(self._coordination, keys.UPLOADS.prefix(), self._after, PAGE):
            self._writes = NewestWrites(self._coordination)
            found, failed = await _attempt(self._due, page.entries)
            due = [one for one in found if one]
            for start in range(0, len(due), TOGETHER):
                if lost := await self._end(due[start : start + TOGETHER]):
                    failed = lost
                    break
            if failed:
                self._after, error = failed
                raise error
            self._after = page.entries[-1].key if page.entries else ""
        self._after = ""

    async def folders(self) -> int:
        """Deletes the objects, and the lists of writes, that are left in the folders of topics that are gone: a put may
        have ended after its record had gone. Returns the number of deleted objects.

        Counters are read before the topics: an incarnation that is in use is in the catalog, or not below its counter.
        """
        counters, _ = await read_all(self._coordination, keys.COUNTERS.prefix())
        under_way, _ = await read_all(self._coordination, keys.CREATIONS.prefix())
        busy = {keys.CREATIONS.parse(entry.key)[0] for entry in under_way}
        await self._catalog.load()
        known = {keys.COUNTERS.parse(e.key)[0]: keys.COUNTERS.read(e) for e in counters}
        there = {topic for topic in known if self._catalog.get(topic) or not self._catalog.is_readable(topic)}
        below = {topic: one.record.next for topic, one in known.items() if isinstance(one, Versioned)}
        dead = {topic: end for topic, end in below.items() if topic not in busy | there}
        if not dead:
            return 0
        await self._check_generation()
        gone = 0
        for root in (rules.FOLDER, LISTS):
            async for folder in folders(self._store, root):
                topic = folder.removeprefix(root).removesuffix("/")
                if topic in dead:
                    gone += await clear_folder(self._store, topic, dead[topic], root)
        return gone

    async def lists(self) -> int:
        """Deletes the lists of writes that no record names any more. Returns their number."""
        newest = rules.date_of(rules.upload_id(self._clock.now_us() - LISTS_US, 0, ""))
        due: set[str] = set()
        async for folder in folders(self._store, LISTS):
            after = ""
            while names := await self._store.list(folder, after, PAGE):
                after = names[-1]
                due.update(name for name in names if name.removeprefix(folder)[:8] < newest)
        if not due:
            return 0
        async for entry in entries(self._coordination, keys.WRITES.prefix()):
            held = keys.WRITES.read(entry)
            if isinstance(held, Unreadable):
                return 0  # it may name any
            due.discard(held.record.listed or "")
        await self._check_generation()
        for name in sorted(due):
            await self._store.delete(name)
        return len(due)

    async def _due(self, entry: Entry) -> _Due | None:
        """Returns what is due for a record."""
        topic, incarnation, upload = keys.UPLOADS.parse(entry.key)
        held = keys.UPLOADS.read(entry)
        if isinstance(held, Unreadable):
            return None
        record = held.record
        if rules.incarnation_of(upload) is None or record.name != rules.object_name(topic, upload):
            raise Damaged(f"the record of upload {upload!r} names {record.name!r}, which is not that upload's object")
        write: UploadsWrite | None = None
        if record.write is not UNSET and record.state in ("open", "imported"):
            write = await self._writes.find(topic, incarnation, record.write)
        due = rules.step(record, self._clock.now_us(), self._grace_s, write and write.settled_us)
        if due is not Step.KEEP and not self._checked:
            await self._check_generation()
            self._checked = True
        match due:
            case Step.REMOVE | Step.REMOVE_IMPORTED if write is not None:
                if not write.may_read:
                    return _Due(entry.key, due, held.with_record(rules.as_dead(record)), (write.compare,))
            case Step.REMOVE:
                return _Due(entry.key, due, held.with_record(rules.as_removed(record)))
            case Step.REMOVE_IMPORTED:
                if over := await self._over(entry.key):
                    return _Due(entry.key, due, held.with_record(rules.as_dead(record)), (over,))
            case Step.CLEAR | Step.FORGET | Step.CLEAR_AND_FORGET:
                return _Due(entry.key, due, held)
        return None

    async def _over(self, key: str) -> Compare | None:
        """Returns a comparison that no import reads the upload any more; None if one does, or may do so."""
        imported = keys.IMPORTS.key(*keys.UPLOADS.parse(key))
        there = await self._coordination.get(imported)
        if there is None:
            return Compare(imported, 0)
        found = keys.IMPORTS.read(there)
        return Compare(imported, there.revision) if isinstance(found, Versioned) and is_over(found.record) else None

    async def _end(self, due: Sequence[_Due]) -> _Failed | None:
        """Does what is due: records say `removed`, their objects go, then records say so, or go, too. Returns an object
        that could not be deleted."""
        there = [one for one in due if one.step in (Step.REMOVE, Step.REMOVE_IMPORTED)]
        others = [one for one in due if one.step not in (Step.REMOVE, Step.REMOVE_IMPORTED)]
        removed = await self._write(there, lambda one: Put(one.key, keys.UPLOADS.encode(one.held)))
        if removed:
            reach("sweep.removed")
        cleared, failed = await _attempt(self._clear, [*removed, *others])
        await self._write(cleared, _behind)
        return failed

    async def _clear(self, one: _Due) -> _Due:
        if one.step is not Step.FORGET:
            await clear(self._store, one.held.record)
            if one.step is Step.CLEAR_AND_FORGET:
                reach("sweep.again")
            else:
                reach("sweep.cleared")
        return one

    async def _write(self, due: Sequence[_Due], write: Callable[[_Due], Put | Delete]) -> Sequence[_Due]:
        """Writes records, all at once, or each by itself if one of them, or what it compares, has changed. Returns
        those that were written, as they are stored; none of them compares anything else any more."""
        if not due:
            return ()
        compares = dict.fromkeys(each for one in due for each in (Compare(one.key, one.held.revision), *one.compares))
        if revision := await self._coordination.commit([self._leading(), *compares], [write(one) for one in due]):
            return [_Due(one.key, one.step, one.held.stored(revision)) for one in due]
        if len(due) == 1:
            return ()
        return [each for one in due for each in await self._write([one], write)]


async def _attempt(work: Callable[[A], Awaitable[B]], given: Sequence[A]) -> tuple[Sequence[B], _Failed | None]:
    """Does the work on several records at once. Returns the results of those where it did not fail, and one where it
    did."""
    failed: list[_Failed] = []

    async def one(each: A) -> list[B]:
        try:
            return [await work(each)]
        except Exception as error:
            failed.append((each.key, error))
            return []

    found = await gather_bounded(AT_ONCE, one, given)
    return [result for results in found for result in results], failed[-1] if failed else None


def _behind(one: _Due) -> Put | Delete:
    """Returns what becomes of a record once its object is gone: it says so, or goes."""
    if one.step in (Step.FORGET, Step.CLEAR_AND_FORGET):
        return Delete(one.key)
    return Put(one.key, keys.UPLOADS.encode(one.held.with_record(replace(one.held.record, cleared=True))))
