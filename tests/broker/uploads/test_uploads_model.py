"""Any interleaving of upload, publish, abort, sweep and crash: what was published is never deleted, all else goes."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.broker.uploads import rules as upload_plan
from tests.support.tiers import examples
from tests.support.uploads.upload_steps import PART, check, put, sweep
from tests.support.uploads.upload_world import BYTES, SHA256, World, inline

Choose = Callable[[int], int]


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


@pytest.mark.parametrize(("presigns", "multipart"), [(True, False), (True, True), (False, False)])
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
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
