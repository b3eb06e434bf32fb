"""The parent process of several brokers on one machine: locks the data folder, starts the brokers, and restarts a
broker that ends.

The parent serves no requests and handles no messages. If `brokers` is a range, it starts the least number, and then as
many as the broker that leads wishes (`wish_in`). It starts them at once, and stops one at a time, the least used of
those beyond the least number, whose ports stay. SIGTERM and SIGINT stop all brokers; a second signal ends their
`shutdown_delay_s`, and a third kills them. SIGHUP restarts the brokers one after another. If the parent is killed, the
stdin of its children closes, and they stop (`end_with_parent`).

When a broker's process ends, the parent ends the broker's lease (`end_lease`), over its own short session with
coordination. So other brokers need not wait until the lease expires. If the parent cannot end the lease, the broker's
next process ends it, or it expires. The process that ended may not have used the folder: it may have waited for an
older process that still runs, such as the child of a killed parent. So the parent locks the folder while it reads whose
lease to end. It releases the lock before it ends a lease, because the broker that recovers the journal takes the lock
immediately."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from seaweedq.cli.server.backends import open_coordination, open_store
from seaweedq.cli.server.credentials import cluster_secret
from seaweedq.cli.server.given_settings import check_members
from seaweedq.cli.server.machine import check_folders, keep_others_out
from seaweedq.cli.server.member_process import Member, Wished, check_folder, homes, member_command, own_program
from seaweedq.cli.shared.common import counted
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.membership import end_life, journals_of
from seaweedq.errors import DataFolderInUse, SeaweedqError
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import FolderLock, known_id
from seaweedq.settings import BrokerRange, Settings

WITHIN_S = 5.0
FIRST_REST_S, LONGEST_REST_S = 5.0, 300.0  # of a member that cannot start
logger = logging.getLogger("seaweedq")


async def end_lease(settings: Settings, number: int) -> None:
    """Ends the leases of a member whose process has ended. Logs a failure; the lease then expires."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await _end_lives(settings, number)
    except (SeaweedqError, OSError) as error:
        logger.warning(
            "could not revoke the lease of broker %d (%s); the lease remains until it expires",
            number,
            str(error) or "no answer in time",
        )


async def _end_lives(settings: Settings, number: int) -> None:
    home = settings.model_copy(update={"member": number}).home
    if (place := known_id(home, Disk())) is None:
        return  # it never locked its folder
    pools = Pools()
    coordination = open_coordination(settings, SystemClock(), pools)
    try:
        for broker in await _dead(coordination, home, place):
            if await end_life(coordination, broker):
                logger.info("revoked the lease of broker %s, because the broker's process has ended", broker)
    finally:
        await coordination.close()
        pools.close()


async def _dead(coordination: Coordination, home: Path, place: str) -> list[str]:
    """Returns the brokers that have used the folder. Raises DataFolderInUse if a broker may still use it."""
    lock = FolderLock(home, Disk())
    lock.acquire()
    try:
        return [*await journals_of(coordination, place)]
    finally:
        lock.release()


MARGIN_S = 5.0  # beyond shutdown_s, for what a stop does before and after the flushes


def supervise(settings: Settings, program: Sequence[str] | None = None) -> int:
    """Runs `settings.brokers` brokers until SIGTERM or SIGINT. Returns the exit code: 0 if all brokers stopped in
    order. If a broker ends by itself before it was ever ready, all brokers end, and its exit code is returned.
    `program` is the command that starts a broker, by default that of this process. Raises InvalidRequest,
    DataFolderInUse, OSError."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # at info it tells of each look at /readyz
    check_members(settings)
    keep_others_out()
    check_folders(settings)
    lock = FolderLock(settings.data_dir, Disk())
    lock.acquire()
    lifeline, held = os.pipe()
    try:
        check_folder(settings)
        cluster_secret(settings)
        _wait_for_orphans(settings)
        return asyncio.run(_run(settings, program or own_program(), lifeline))
    finally:
        os.close(held)
        os.close(lifeline)
        lock.release()


def _wait_for_orphans(settings: Settings) -> None:
    """Waits for brokers whose parent was killed: they hold their folders and ports until they have stopped."""
    for home in homes(settings):
        lock = FolderLock(home, Disk())
        try:
            lock.acquire()
        except DataFolderInUse as error:
            logger.warning("waiting for an orphaned broker to stop: %s", error)
            lock.acquire(_grace_s(settings))
        lock.release()


def _grace_s(settings: Settings) -> float:
    """Returns how long a broker may take to end after a signal."""
    return settings.shutdown_delay_s + settings.shutdown_s + MARGIN_S


async def _run(settings: Settings, program: Sequence[str], lifeline: int) -> int:
    store = open_store(settings, SystemIds())
    await store.sweep_temporary()  # files of interrupted puts, as no broker writes now
    await store.close()
    grace_s = _grace_s(settings)

    def member(number: int, wished: Wished) -> Member:
        command = member_command(program, settings, number)
        return Member(number, command, lifeline, grace_s, partial(end_lease, settings), wished)

    return await _Parent(settings.brokers, member, grace_s, settings.shutdown_delay_s).run()


def change_of(
    brokers: BrokerRange,
    running: Mapping[int, str],
    wanted: int,
    urls: Sequence[str],
    resting: Collection[int] = (),
) -> tuple[int, ...]:
    """Returns the numbers of members to start, which are not `resting`; or the number, negated, of the one to stop.
    `running` has the URLs of the members that run, and `urls` those of the brokers, the least used first."""
    wanted = min(max(wanted, brokers.least), brokers.most)
    if wanted >= len(running):
        free = (number for number in range(1, brokers.most + 1) if number not in running and number not in resting)
        return tuple(islice(free, wanted - len(running)))
    numbers = {url: number for number, url in running.items() if number > brokers.least}
    return tuple(-numbers[url] for url in urls if url in numbers)[:1]


class _Parent:
    """Starts, stops and restarts the members when signals arrive, when a member ends, or when the load changes."""

    def __init__(
        self, brokers: BrokerRange, member: Callable[[int, Wished], Member], grace_s: float, delay_s: float
    ) -> None:
        self._brokers, self._member, self._grace_s, self._delay_s = brokers, member, grace_s, delay_s
        self._members: list[Member] = []
        self._keepers: dict[int, asyncio.Task[int]] = {}  # by the members' numbers
        self._delayed_until_s = 0.0  # of the event loop
        self._stop = asyncio.Event()
        self._failed: dict[int, tuple[int, float]] = {}  # by number: how often in a row, and when it may start again
        self._changing: asyncio.Task[None] | None = None  # a restart, or the stop of a member
        self._terminal = _has_terminal()
        self._nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for ending in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(ending, self._ending, ending)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        for number in range(1, self._brokers.least + 1):
            self._start(number)
        await self._stop.wait()
        if self._changing:
            self._changing.cancel()
        for member in self._members:
            if not member.stopping:
                member.stop()
        keepers = [*self._keepers.values()]
        _, late = await asyncio.wait(keepers, timeout=self._grace_s)
        if late:
            which = "it" if len(late) == 1 else "them"
            logger.error(
                "%s did not stop within %.0f s; killing %s", counted(len(late), "broker"), self._grace_s, which
            )
            self._kill()
        return max(await asyncio.gather(*keepers))

    def _start(self, number: int) -> None:
        member = self._member(number, self._wished)
        self._members.append(member)
        self._keepers[number] = asyncio.create_task(self._keep(member))

    async def _keep(self, member: Member) -> int:
        """Keeps a member until it is stopped. If it fails, all are stopped, unless the load alone asked for it."""
        code = 1
        try:
            code = await member.keep()
        finally:
            if not member.stopping and member.number <= self._brokers.least:
                logger.error("stopping all brokers")
                self._stop.set()
            elif not self._stop.is_set():
                self._members.remove(member)
                del self._keepers[member.number]
                self._note_end(member, code)
        return code

    def _note_end(self, member: Member, code: int) -> None:
        """Leaves a member that cannot start again alone for a while, longer each time: each wish would start it."""
        if member.stopping:
            self._failed.pop(member.number, None)
            return
        count = self._failed.get(member.number, (0, 0.0))[0] + 1
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2 ** min(count - 2, 16)) if count > 1 else 0.0
        self._failed[member.number] = count, asyncio.get_running_loop().time() + rest_s
        if rest_s:
            logger.error("broker %d cannot start; it rests for %.0f s", member.number, rest_s)

    def _wished(self, wanted: int, urls: list[str]) -> None:
        """Follows what a broker that leads has told, unless a change or a restart is in progress."""
        if self._stop.is_set() or self._brokers.least == self._brokers.most or self._is_changing():
            return
        running = {member.number: member.url for member in self._members}
        now_s = asyncio.get_running_loop().time()
        resting = [number for number, (_, until_s) in self._failed.items() if now_s < until_s]
        for number in change_of(self._brokers, running, wanted, urls, resting):
            if number > 0:
                logger.info("starting broker %d, because the load needs %s", number, counted(wanted, "broker"))
                self._start(number)
            else:
                logger.info("stopping broker %d, because the load needs only %s", -number, counted(wanted, "broker"))
                self._changing = asyncio.create_task(self._retire(-number))

    def _is_changing(self) -> bool:
        return self._changing is not None and not self._changing.done()

    async def _retire(self, number: int) -> None:
        member = next(one for one in self._members if one.number == number)
        member.stop()
        _, late = await asyncio.wait([self._keepers[number]], timeout=self._grace_s)
        if late:
            logger.error("broker %d did not stop within %.0f s; killing this broker", number, self._grace_s)
            member.kill()
            await asyncio.wait(late)
        logger.info("broker %d has stopped", number)

    def _ending(self, number: int) -> None:
        name, now_s = signal.Signals(number).name, asyncio.get_running_loop().time()
        if not self._stop.is_set():
            logger.info("received %s; stopping all brokers", name)
            self._delayed_until_s = now_s + self._delay_s
            self._stop.set()
        elif now_s < self._delayed_until_s:
            logger.warning("received %s again; stopping now, without waiting for the rest of shutdown_delay_s", name)
            self._delayed_until_s = 0.0
            for member in self._members:
                member.stop()
        else:
            logger.warning("received %s again; killing all brokers", name)
            self._kill()

    def _kill(self) -> None:
        for member in self._members:
            member.kill()

    def _hung_up(self) -> None:
        """Handles SIGHUP: a request to restart, or a closed terminal, which ends the brokers."""
        closed = self._terminal and not _has_terminal()
        self._terminal = self._terminal and not closed
        if closed:
            if not self._nohup:
                self._ending(signal.SIGHUP)
        elif self._is_changing():
            logger.warning(
                "SIGHUP ignored, because the previous restart, or the stop of a broker, is still in progress; "
                "send SIGHUP again when it is complete"
            )
        elif not self._stop.is_set():
            self._changing = asyncio.create_task(self._roll())

    async def _roll(self) -> None:
        for member in [*self._members]:
            logger.info("restart: stopping broker %d of %d", member.number, len(self._members))
            if not await self._restarted(member):
                logger.error(
                    "restart: broker %d ended before it was ready; the remaining brokers were not restarted",
                    member.number,
                )
                return
            logger.info("restart: broker %d is ready again", member.number)
        logger.info("restart: done")

    async def _restarted(self, member: Member) -> bool:
        """Restarts a member. Returns whether it became ready; it may also have ended for good, now or before."""
        if (keeper := self._keepers.get(member.number)) is None:
            return False
        restart = asyncio.create_task(member.restart())
        try:
            await asyncio.wait([restart, keeper], return_when=asyncio.FIRST_COMPLETED)
            return restart.done() and restart.result()
        finally:
            restart.cancel()


def _has_terminal() -> bool:
    """Returns whether this process has a terminal that could close."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
