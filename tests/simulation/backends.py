"""The store and coordination of a simulated world, as the lives in it reach them: late, in doubt, or not at all.

The servers are in memory, one each. A life has clients of its own. What it asks for is done by the server, and not by
the life, so that it may take effect when the life has died, or has given up long ago.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, ParamSpec, TypeAlias, TypeVar

from seaweedq.clock import Clock
from seaweedq.concurrency.futures import Signal
from seaweedq.concurrency.pools import READS, Pool
from seaweedq.coordination.interface import Entry, Put, WatchLost
from seaweedq.coordination.polling import ALL, PollingCoordination
from seaweedq.errors import CoordinationUnavailable, StoreUnavailable
from seaweedq.storage.interface import Data, ListedObject, NoPresignedUrls
from seaweedq.storage.memory import MemoryStore
from tests.simulation.loop import Life, reach_outside
from tests.simulation.returns import ReturningCoordination
from tests.support.brokers.simulated_loop import settle

P = ParamSpec("P")
R = TypeVar("R")
Work: TypeAlias = Coroutine[Any, Any, R]
TIMEOUT_S = 5.0
ENDS_S = 0.1  # between two looks for leases that have ended


@dataclass
class Trouble:
    """What happens to requests at present: parts of 1."""

    refuses: float = 0.0  # nothing happens, and the client is told so, or nearly
    forgets: float = 0.0  # it happens, and the answer is lost
    defers: float = 0.0  # the client gives up; it happens up to `late_s` later
    late_s: float = 60.0
    slow_s: float = 0.0  # is added to each request
    repeats: float = 0.0  # it happens twice, the second time up to `late_s` later
    away: bool = False  # no answer to anything
    breaks: float = 0.0  # watches
    lag_s: float = 0.0  # of watches, and of the store's listings
    misses: float = 0.0  # objects that are there are said to be missing


class _Server:
    """Answers what is asked, later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, seed: int, usual_s: float) -> None:
        self.trouble = Trouble()
        self.counts: dict[str, int] = {}
        self._asked: list[Callable[[], Work[Any]]] = []  # what has not happened yet
        self._loop = loop
        self._draw = random.Random(f"{name} {seed}")
        self._usual_s = usual_s
        self._context = Context()

    async def ask(self, kind: str, do: Callable[[], Work[R]], unknown: Callable[[str], Exception], writes: bool) -> R:
        """Does something, and answers. `writes`: it may happen later than its client believes."""
        await reach_outside()
        self.counts[kind] = self.counts.get(kind, 0) + 1
        refused, forgotten, deferred, twice, late, way, back = (self._draw.random() for _ in range(7))
        trouble = self.trouble
        usual_s = self._usual_s
        if trouble.away:
            await asyncio.sleep(TIMEOUT_S)
            raise unknown(f"{kind}: no answer")
        if refused < trouble.refuses:
            await asyncio.sleep(usual_s * way)
            raise unknown(f"{kind}: refused")
        if writes and deferred < trouble.defers:
            self._later(do, late * trouble.late_s)
            await asyncio.sleep(min(TIMEOUT_S, late * trouble.late_s))
            raise unknown(f"{kind}: no answer in time")
        if writes and twice < trouble.repeats:
            self._later(do, late * trouble.late_s)
        done: asyncio.Future[R] = self._loop.create_future()
        self._later(do, usual_s * (0.3 + way) + trouble.slow_s * way, done, usual_s * (0.3 + back))
        result = await done
        if writes and forgotten < trouble.forgets:
            raise unknown(f"{kind}: the answer was lost")
        return result

    def _later(
        self, do: Callable[[], Work[R]], after_s: float, done: asyncio.Future[R] | None = None, back_s: float = 0.0
    ) -> None:
        """Does something then. If somebody waits for it, `done` ends `back_s` later."""
        self._asked.append(do)
        self._loop.call_later(after_s, self._do, do, done, back_s, context=self._context)

    def _do(self, do: Callable[[], Work[R]], done: asyncio.Future[R] | None, back_s: float) -> None:
        result, failed = None, None
        self._asked.remove(do)
        try:
            do().send(None)
            failed = AssertionError("what a server does waits for nothing")
        except StopIteration as end:
            result = end.value
        except Exception as error:
            failed = error
        if done:
            self._loop.call_later(back_s, settle, done, result, failed, context=self._context)


class StoreServer(_Server):
    """The store: its objects, and what becomes of requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, clock: Clock) -> None:
        super().__init__(loop, "store", seed, 0.008)
        self.memory = MemoryStore(clock=clock)
        self._clock = clock
        self._missed = random.Random(f"missed {seed}")

    def found(self, name: str) -> str:
        """Returns the name. Raises FileNotFoundError, perhaps wrongly."""
        if self.trouble.misses and self._missed.random() < self.trouble.misses:
            raise FileNotFoundError(name)
        return name

    async def listed(self, prefix: str, after: str, limit: int) -> Sequence[ListedObject]:
        """Lists; what is younger than the lag may be left out."""
        if not self.trouble.lag_s:
            return await self.memory.listed(prefix, after, limit)
        old_us = self._clock.now_us() - int(1e6 * self.trouble.lag_s * self._missed.random())
        found = await self.memory.listed(prefix, after, ALL)
        return [one for one in found if one.modified_us <= old_us][:limit]

    def lose(self, part: float) -> str:
        """Loses an entry or a slot for good: one of them, in their order, by a part of 1."""
        names = sorted(
            name for name in self.memory.objects if re.fullmatch(r"topics/.*\.parquet|_journals/.*/\d+", name)
        )
        name = names[int(part * len(names))]
        del self.memory.objects[name]
        return name


class SimulatedStore(NoPresignedUrls):
    """The store as one life reaches it."""

    def __init__(self, server: StoreServer) -> None:
        self.readers = Pool("store reads", READS)
        self.worked = Signal()
        self._server = server
        self._memory = server.memory

    async def create(self, name: str, data: Data) -> bool:
        put = bytes(data)
        return await self._ask("create", lambda: self._memory.create(name, put), writes=True)

    async def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        return await self._ask("read", lambda: self._memory.read(self._server.found(name), start, end))

    async def size(self, name: str) -> int:
        return await self._ask("size", lambda: self._memory.size(self._server.found(name)))

    async def age_s(self, name: str) -> float:
        return await self._ask("age", lambda: self._memory.age_s(name))

    async def delete(self, name: str) -> None:
        await self._ask("delete", lambda: self._memory.delete(name), writes=True)

    def open(self, name: str) -> BinaryIO:
        return self._memory.open(name)

    async def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[str]:
        return [one.name for one in await self.listed(prefix, after, limit)]

    async def listed(self, prefix: str, after: str = "", limit: int = 1000) -> Sequence[ListedObject]:
        return await self._ask("list", lambda: self._server.listed(prefix, after, limit))

    def uri(self, name: str) -> str:
        return self._memory.uri(name)

    async def receive(self, name: str, chunks: AsyncIterator[bytes], size: int, sha256: str | None) -> str | None:
        data = b"".join([chunk async for chunk in chunks])
        return await self._ask("receive", lambda: self._memory.receive(name, _once(data), size, sha256), writes=True)

    async def copy(self, name: str, to: str) -> None:
        await self._ask("copy", lambda: self._memory.copy(name, to), writes=True)

    async def digest(self, name: str) -> tuple[int, str | None]:
        return await self._ask("size", lambda: self._memory.digest(name))

    async def _ask(self, kind: str, do: Callable[[], Work[R]], writes: bool = False) -> R:
        return await self._server.ask(kind, do, StoreUnavailable, writes)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


class CoordinationServer(_Server):
    """The coordination: one engine, whose watches hear of changes later."""

    def __init__(self, loop: asyncio.AbstractEventLoop, seed: int, clock: Clock) -> None:
        super().__init__(loop, "coordination", seed, 0.001)
        self.records = ReturningCoordination(clock)
        self.engine = self.records.engine
        self.clients: list[SimulatedCoordination] = []
        self._seen = 0
        self._compacted = 0
        loop.call_later(ENDS_S, self._look, context=self._context)

    @property
    def entries(self) -> Sequence[Entry]:
        """All that are there."""
        return self.engine.range("", "", ALL).entries

    @property
    def coming(self) -> Iterator[Entry]:
        """What transactions may still write that were sent, and have not happened: those whose comparisons hold."""
        for do in self._asked:
            if isinstance(do, partial) and do.args[0] == self.engine.commit:
                _, compares, writes = do.args
                there = [self.engine.get(compare.key) for compare in compares]
                if [entry.revision if entry else 0 for entry in there] == [one.revision for one in compares]:
                    yield from (Entry(one.key, one.value, 0, one.lease) for one in writes if isinstance(one, Put))

    def changed(self) -> None:
        """Wakes the watches of what has changed."""
        before, self._seen = self._seen, self.engine.revision()
        if self._seen == before:
            return
        try:
            found = self.engine.changes("", before).changes if before < self._seen else ()
        except WatchLost:  # it went back, and further on
            found = ()
        keys = tuple({one.key: None for one in found}) or None
        self.clients = [one for one in self.clients if not one.life.is_dead]
        for client in self.clients:
            if client.watches(keys):
                slow_s = self.trouble.slow_s + self.trouble.lag_s
                after_s = self._usual_s * (1 + self._draw.random()) + slow_s * self._draw.random()
                self._loop.call_later(after_s, client.wake, keys, context=client.life.context)

    def compact(self) -> None:
        """Forgets all changes so far."""
        self._compacted = self.engine.revision()

    def breaks(self, revision: int) -> bool:
        """Whether a watch that has seen so much, and asks now, is broken."""
        return self._draw.random() < self.trouble.breaks or revision < self._compacted <= self.engine.revision()

    def _look(self) -> None:
        self.changed()
        self._loop.call_later(ENDS_S, self._look, context=self._context)


class SimulatedCoordination(PollingCoordination):
    """The coordination as one life reaches it."""

    def __init__(self, server: CoordinationServer, life: Life) -> None:
        super().__init__(server.engine, ENDS_S)
        self.life = life
        self.is_cut = False  # nothing comes from the server, or gets there
        self._server = server
        server.clients.append(self)

    def watches(self, keys: Collection[str] | None) -> bool:
        """Whether it watches one of these keys; or anything, without keys."""
        prefixes = self._watches.values()
        return bool(prefixes) if keys is None else any(key.startswith(one) for key in keys for one in prefixes)

    def wake(self, keys: Collection[str] | None) -> None:
        """Has its watches of these keys look."""
        if not self.is_cut:
            self._wake(keys)

    def join(self) -> None:
        """Is cut off no more."""
        self.is_cut = False
        self._wake()

    async def _run(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        name = getattr(step, "__name__", "step")
        if name == "close":  # of this client alone
            return None  # type: ignore[return-value]

        if self.is_cut:
            await asyncio.sleep(TIMEOUT_S)
            raise CoordinationUnavailable(f"{name}: no answer")

        if name == "changes" and self._server.breaks(args[1]):  # type: ignore[arg-type]
            raise WatchLost("the watch was broken")
        writes = name in ("commit", "grant", "renew", "revoke")
        do = partial(self._do, step, *args, **kwargs)
        return await self._server.ask(name, do, CoordinationUnavailable, writes)

    async def _do(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        found = step(*args, **kwargs)
        self._server.changed()
        return found

    async def _poll(self) -> None:
        """The server tells of changes."""
        await asyncio.Event().wait()
