"""Any interleaving of upload, publish, abort, sweep and crash: what was published is never deleted, all else goes."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from upload_world import BYTES, DAY_S, SHA256, World, inline

from seaweedq.broker.uploads import rules as upload_plan

PART = 10
Choose = Callable[[int], int]


async def chunks(content: bytes):
    yield content[:7]
    yield content[7:]


async def put(world: World, broker: int, upload: str, content: bytes) -> None:
    """The client's part: at the store, or through a broker."""
    uploads = world.uploads[broker]
    record, _ = await uploads.find(world.topic, upload)
    if not world.store.presigns:
        await uploads.receive(world.topic, upload, chunks(content))
    elif record.parts is None:
        await world.store.create(record.name, content)
    else:
        for number, start in enumerate(range(0, len(content), PART), 1):
            await world.store.put_part(record.name, number, content[start : start + PART])
        await uploads.complete(world.topic, upload)


async def sweep(world: World) -> None:
    """A leader's passes, before and after an upload may have expired."""
    await world.new_sweep().records()
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    await world.new_sweep().records()


async def one(world: World, choose: Choose, multipart: bool, sha256: str | None, first: bool) -> None:
    """One upload, and all that may happen to it; `first`: the bytes are there before, and nobody puts them again."""
    await world.start()
    upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", sha256, multipart)
    if first:
        await put(world, 0, upload, BYTES)
    acts: list[Any] = [] if first else [put(world, 0, upload, BYTES), put(world, 1, upload, BYTES)]
    acts += [world.claim(0, upload), sweep(world)]
    more = [world.claim(1, upload), world.abort(0, upload)]
    acts += [act for act in more if choose(2) or act.close()]
    await world.run(acts, choose, kills=choose(3))
    await check(world, upload, record.name)


async def check(world: World, upload: str, name: str) -> None:
    """What must hold now, and once all time has gone by."""
    kept = name in world.coordination.published
    assert not (world.claimed and world.aborted)
    assert kept or not world.claimed
    for after_s in (0, world.settings.upload_expires_s + world.settings.upload_grace_s + 1, 2 * DAY_S, 1):
        world.pass_s(after_s)
        await world.sweep.records()
        if kept:
            assert world.store._objects.get(name) == BYTES
    assert (name in world.store._objects) == kept
    assert not world.store.multipart
    assert not (await world.coordination.range("uploads/")).entries


@pytest.mark.parametrize(("presigns", "multipart"), [(True, False), (True, True), (False, False)])
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), sha256=st.sampled_from([None, SHA256]), first=st.booleans())
def test_what_is_published_stays_and_all_else_goes(presigns, multipart, data, sha256, first):
    """Parts are small here, so that there are several; and nothing is left to threads, so that a failure comes
    again."""

    async def run() -> None:
        world = World(presigns)
        await one(world, lambda count: data.draw(st.integers(0, count - 1)), multipart, sha256, first)

    small = patch.multiple(upload_plan, MIN_PART_BYTES=PART, PART_BYTES=PART, MIB=1)
    with small, patch.object(asyncio, "to_thread", inline):
        asyncio.run(run())
