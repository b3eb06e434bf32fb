"""Coordination for the processes of one machine, on one SQLite file, with nothing to install.

All SQL runs in one thread. The clock must be the same for all processes of a boot (CLOCK_BOOTTIME is).
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from seaweedq.clock import Clock
from seaweedq.concurrency.pools import Pool
from seaweedq.coordination.polling import PollingCoordination
from seaweedq.coordination.sqlite.database import Database

P = ParamSpec("P")
R = TypeVar("R")


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
        """As Coordination."""
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
