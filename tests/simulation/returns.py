"""Coordination goes back in a simulated world, and an operator asks for a rebuild wherever a broker waits for one, or
accepts the losses of journals.

The operator is there from the first such fault on: without one a broker that waits is a defect, and stays visible.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from seaweedq.broker.rpc.peer_connections import Relayed, Request
from seaweedq.clock import Clock
from seaweedq.coordination.interface import Compare, Delete, Entry, Put
from seaweedq.coordination.memory import MemoryEngine
from tests.simulation.network import CLIENTS, Network, Refused, Reset
from tests.support.brokers.in_process import Held
from tests.support.history.load import JSON

LOOK_S = 0.5
CALL_S = 60.0  # a rebuild waits for leases
LOG = 10_000
Committed = Callable[[Sequence[Compare], Sequence[Put | Delete]], None]


class Saved(NamedTuple):
    """What a backup of coordination has: no leased keys, and the revision."""

    entries: tuple[Entry, ...] = ()
    revision: int = 0


class ReturningEngine(MemoryEngine):
    """An engine that goes back to what was saved, or to nothing. No lease comes back. `committed` is told of each
    transaction that was carried out."""

    def __init__(self, clock: Clock, log_limit: int) -> None:
        super().__init__(clock, log_limit)
        self.committed: Committed = _unheard

    def commit(self, compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> int | None:
        revision = super().commit(compares, writes)
        if revision is not None:
            self.committed(compares, writes)
        return revision

    def saved(self) -> Saved:
        """What there is now."""
        return Saved(tuple(entry for entry in self._entries.values() if not entry.lease), self._revision)

    def go_back(self, saved: Saved) -> None:
        """Forgets all that came since."""
        self._entries = {entry.key: entry for entry in saved.entries}
        self._revision = saved.revision
        self._leases.clear()
        self._log.clear()


def _unheard(compares: Sequence[Compare], writes: Sequence[Put | Delete]) -> None:
    pass


class ReturningCoordination(Held):
    """A coordination over such an engine."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._engine = self.engine = ReturningEngine(clock, LOG)

    def go_back(self, saved: Saved) -> None:
        """As the engine; no diagram draws the steps of records any more."""
        self.went_back = True
        self.engine.go_back(saved)


class Operator:
    """Looks at all processes, and asks a broker that waits for a rebuild. `failures` are answers that must not be."""

    def __init__(
        self, network: Network, processes: Mapping[int, Any], failures: list[str], unknown: Callable[[], Sequence[str]]
    ) -> None:
        self._network = network
        self._processes = processes
        self._failures = failures
        self._unknown = unknown
        self._is_accepting = False
        self._task: asyncio.Task[None] | None = None

    def begin(self, kind: str, coordination: ReturningCoordination) -> Callable[[], None]:
        """Has coordination go back; what ends that. `kind` is a name of RETURNS (tests/support/history/judged)."""
        self._task = self._task or asyncio.create_task(self._run(), name="operator")
        if kind == "empty etcd":
            coordination.go_back(Saved())
            return lambda: None
        saved = coordination.engine.saved()
        return lambda: coordination.go_back(saved)

    def accept_losses(self) -> None:
        """Accepts the loss of each journal that is unknown for good, from now on."""
        self._is_accepting = True
        self._task = self._task or asyncio.create_task(self._run(), name="operator")

    def end(self) -> None:
        """Looks no more."""
        if self._task and not self._task.done():  # its error is looked at in the end, which `cancel` would forget
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            lives = [process for process in self._processes.values() if not process.life.is_dead]
            for process in [one for one in lives if one.broker and one.broker.restored][:1]:
                await self._ask(process.url, "rebuild", {})
            for broker in self._unknown() if self._is_accepting else ():
                for process in [one for one in lives if one.is_ready][:1]:
                    await self._ask(process.url, "accept-loss", {"broker": broker})

    async def _ask(self, url: str, what: str, body: dict[str, str]) -> None:
        answer = await self._answer(url, f"/v1/cluster/{what}", json.dumps(body).encode())
        if answer and answer.status not in (200, 409, 503):
            self._failures.append(f"{what}: {answer.status} {answer.body[:300]!r}")

    async def _answer(self, url: str, path: str, body: bytes) -> Relayed | None:
        request = Request("POST", path, {"Content-Type": JSON}, body, CALL_S)
        try:
            async with asyncio.timeout(CALL_S):
                return await self._network.send(CLIENTS, url, request)
        except (Refused, Reset, TimeoutError):
            return None
