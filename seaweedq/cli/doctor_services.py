"""The looks of `seaweedq doctor` at what brokers share: store, clock, coordination.

It writes little: below `_probe/` in the store what each start of a broker writes there, and removes it. What the first
broker makes it leaves to it, who may be another user.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from seaweedq.cli import doctor_findings as findings
from seaweedq.cli.doctor_findings import Finding, Verdict
from seaweedq.cli.server.backends import open_coordination, open_store
from seaweedq.clock import Clock, Ids
from seaweedq.concurrency.pools import Pools
from seaweedq.errors import SeaweedqError
from seaweedq.settings import Settings
from seaweedq.storage.instrumented import InstrumentedStore
from seaweedq.storage.probe import probe

LOOK_S = 20.0


def looked_at(settings: Settings, clock: Clock, ids: Ids) -> list[Finding]:
    """Returns the findings of the store and the coordination of a broker with these settings."""
    return asyncio.run(_looked_at(settings, clock, ids))


async def _looked_at(settings: Settings, clock: Clock, ids: Ids) -> list[Finding]:
    pools = Pools()
    try:
        return [
            *[one async for one in _each("store", lambda: _store(settings, clock, ids, pools))],
            *[one async for one in _each("coordination", lambda: _coordination(settings, clock, pools))],
        ]
    finally:
        pools.close()


async def _each(what: str, look: Callable[[], AsyncIterator[Finding]]) -> AsyncIterator[Finding]:
    """Yields the findings of a look, and one that it failed where it did or took too long."""
    try:
        async with asyncio.timeout(LOOK_S):
            async for one in look():
                yield one
    except TimeoutError:
        yield findings.failed(what, f"no answer within {LOOK_S:g} s")
    except (SeaweedqError, OSError) as error:
        yield findings.failed(what, error)


def _is_new(settings: Settings) -> bool:
    """Tells whether the store is a folder that is not there yet."""
    scheme, _, folder = settings.store_path.partition("://")
    return scheme == "file" and not Path(folder).is_dir()


async def _store(settings: Settings, clock: Clock, ids: Ids, pools: Pools) -> AsyncIterator[Finding]:
    if _is_new(settings):
        yield Finding(Verdict.OK, "store", f"{settings.store_path}, which the first broker makes")
        return
    opened = open_store(settings, ids, pools)
    store = InstrumentedStore(opened, clock)
    try:
        began_s = clock.monotonic_s()
        await probe(store.payloads, ids)
        took_s = clock.monotonic_s() - began_s
        yield Finding(Verdict.OK, "store", f"{settings.store_path} does all that is asked of it, in {took_s:.1f} s")
        name = f"_probe/{ids.nonce()}"
        await store.create(name, b"clock")
        try:
            listed = await store.listed(name)
            yield findings.clock("the store", (clock.now_us() - listed[0].modified_us) / 1e6)
        finally:
            await store.delete(name)
    finally:
        await opened.close()


async def _coordination(settings: Settings, clock: Clock, pools: Pools) -> AsyncIterator[Finding]:
    if settings.coordination == "embedded" and not (settings.data_dir / "coordination.db").exists():
        yield Finding(Verdict.OK, "coordination", "embedded, in a file that the first broker makes")
        return
    coordination = open_coordination(settings, clock, pools)
    try:
        began_s = clock.monotonic_s()
        await coordination.get("doctor")
        yield findings.coordination(settings.coordination, clock.monotonic_s() - began_s)
    finally:
        await coordination.close()
