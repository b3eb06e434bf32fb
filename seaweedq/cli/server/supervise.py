"""The parent process of several brokers on one machine: locks the data folder, starts the brokers, and restarts a
broker that ends.

The parent serves no requests and handles no messages. SIGTERM and SIGINT stop all brokers; a second signal ends their
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
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from seaweedq.cli.server.backends import open_coordination, open_store
from seaweedq.cli.server.credentials import cluster_secret
from seaweedq.cli.server.given_settings import check_members
from seaweedq.cli.server.machine import check_folders, keep_others_out
from seaweedq.cli.server.member_process import Member, check_folder, homes, member_command, own_program
from seaweedq.cli.shared.common import counted
from seaweedq.clock import SystemClock, SystemIds
from seaweedq.concurrency.pools import Pools
from seaweedq.coordination.interface import Coordination
from seaweedq.coordination.membership import end_life, journals_of
from seaweedq.errors import DataFolderInUse, SeaweedqError
from seaweedq.journal.disk import Disk
from seaweedq.journal.home_folder import FolderLock, known_id
from seaweedq.settings import Settings

WITHIN_S = 5.0
logger = logging.getLogger("seaweedq")


async def end_lease(settings: Settings, number: int) -> None:
    """Ends the leases of a member whose process has ended. Logs a failure; the lease then expires."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await _end_lives(settings, number)
    except (SeaweedqError, OSError) as error:
        logger.warning(
            "could not revoke the lease of broker %d, so the lease remains until it expires: %s",
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
            logger.warning("waiting until a broker whose parent process has ended stops: %s", error)
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
    members = [
        Member(number, member_command(program, settings, number), lifeline, grace_s, partial(end_lease, settings))
        for number in range(1, settings.brokers + 1)
    ]
    return await _Parent(members, grace_s, settings.shutdown_delay_s).run()


class _Parent:
    """Stops and restarts the members when signals arrive, or when a member ends."""

    def __init__(self, members: Sequence[Member], grace_s: float, delay_s: float) -> None:
        self._members, self._grace_s, self._delay_s = members, grace_s, delay_s
        self._delayed_until_s = 0.0  # of the event loop
        self._stop = asyncio.Event()
        self._rolling: asyncio.Task[None] | None = None
        self._terminal = _has_terminal()
        self._nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ending, number)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up)
        keepers = [asyncio.create_task(member.keep()) for member in self._members]
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([stopping, *keepers], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        self._stop.set()
        if self._rolling:
            self._rolling.cancel()
        for member in self._members:
            member.stop()
        _, late = await asyncio.wait(keepers, timeout=self._grace_s)
        if late:
            which = "it" if len(late) == 1 else "them"
            logger.error(
                "%s did not stop within %.0f s; killing %s", counted(len(late), "broker"), self._grace_s, which
            )
            self._kill()
        return max(await asyncio.gather(*keepers))

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
        elif self._rolling and not self._rolling.done():
            logger.warning(
                "SIGHUP ignored, because the previous restart is still in progress; send SIGHUP "
                "again when the restart is complete"
            )
        elif not self._stop.is_set():
            self._rolling = asyncio.create_task(self._roll())

    async def _roll(self) -> None:
        for member in self._members:
            logger.info("restart: stopping broker %d of %d", member.number, len(self._members))
            if not await member.restart():
                logger.error(
                    "restart: broker %d ended before it was ready; the remaining brokers were not restarted",
                    member.number,
                )
                return
            logger.info("restart: broker %d is ready again", member.number)
        logger.info("restart: done")


def _has_terminal() -> bool:
    """Returns whether this process has a terminal that could close."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True
