"""Uploads that are imported, in any interleaving with publishes, sweeps and crashes: the file is there while an import
reads it, stays where a message names it, and goes else."""

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records.uploads import ImportRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.errors import UploadConflict
from tests.support.brokers.stored import record_of
from tests.support.tiers import examples
from tests.support.uploads.upload_steps import check, put, sweep
from tests.support.uploads.upload_world import BYTES, SHA256, World, inline

Choose = Callable[[int], int]


async def imported(world: World, broker: int, upload: str, lost: list[str], end: str) -> None:
    """An import: its record, some reading, its end."""
    await world.uploads[broker].claim(world.topic, upload, "imported")
    key = keys.UPLOADS.key("t", world.topic.record.incarnation, upload)
    there = await world.coordination.get(key)
    if there is None or (upload_record := record_of(keys.UPLOADS, there.value)).state == "removed":
        return  # one that is begun when the file is gone fails; that is no matter here
    record = _record(upload_record.name)
    where = keys.IMPORTS.key("t", world.topic.record.incarnation, upload)
    compares = [Compare(where, 0), Compare(key, there.revision)]
    revision = await world.coordination.commit(compares, [Put(where, keys.IMPORTS.encode(Versioned.new(record)))])
    if not revision:
        return
    for _ in range(3):
        try:
            await world.store.size(record.name)
        except FileNotFoundError:
            lost.append(record.name)
    over = msgspec.structs.replace(record, state=end)
    await world.coordination.commit([Compare(where, revision)], [Put(where, keys.IMPORTS.encode(Versioned.new(over)))])


def _record(name: str, **more: Any) -> ImportRecord:
    return ImportRecord("ndjson", True, name, len(BYTES), SHA256, 0, 0, 1, 1, "b", **more)


async def _one(world: World, choose: Choose, lost: list[str]) -> None:
    await world.start()
    upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", SHA256, False)
    await put(world, 0, upload, BYTES)
    end = ("done", "failed")[choose(2)]
    acts = [imported(world, 0, upload, lost, end), sweep(world)]
    more = [world.claim(1, upload), imported(world, 1, upload, lost, "done"), world.abort(1, upload)]
    acts += [act for act in more if choose(2) or act.close()]
    await world.run(acts, choose, kills=0)
    assert not lost
    await check(world, upload, record.name)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_file_stays_while_it_is_imported_and_then_only_where_a_message_names_it(data):
    with patch.object(asyncio, "to_thread", inline):
        asyncio.run(_one(World(presigns=True), lambda count: data.draw(st.integers(0, count - 1)), []))


@pytest.fixture
async def world():
    made = World(presigns=True)
    await made.start()
    yield made
    await asyncio.gather(*(one.close() for one in made.uploads))


async def _claimed(world: World, *uses: str) -> tuple[str, str]:
    upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", SHA256, False)
    await put(world, 0, upload, BYTES)
    for use in uses:
        await world.uploads[0].claim(world.topic, upload, use)
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    return upload, record.name


@pytest.mark.parametrize("uses", [("imported", "published"), ("published", "imported")])
async def test_what_is_imported_and_published_stays(world, uses):
    _, name = await _claimed(world, *uses)
    await world.sweep.records()
    assert name in world.store._objects


@pytest.mark.parametrize(
    ("state", "stays"), [("checking", True), ("running", True), ("done", False), ("failed", False)]
)
async def test_the_file_waits_for_its_import(world, state, stays):
    upload, name = await _claimed(world, "imported")
    key = keys.IMPORTS.key("t", world.topic.record.incarnation, upload)
    await world.coordination.commit([], [Put(key, keys.IMPORTS.encode(Versioned.new(_record(name, state=state))))])
    await world.sweep.records()
    assert (name in world.store._objects) == stays


async def test_an_import_that_begins_while_the_sweep_looks_keeps_its_file(world, monkeypatch):
    upload, name = await _claimed(world, "imported")
    key = keys.IMPORTS.key("t", world.topic.record.incarnation, upload)
    get = world.coordination.get

    async def slow(asked):
        found = await get(asked)
        if asked == key:
            await world.coordination.commit([], [Put(key, keys.IMPORTS.encode(Versioned.new(_record(name))))])
        return found

    monkeypatch.setattr(world.coordination, "get", slow)
    await world.sweep.records()
    assert name in world.store._objects


async def test_a_claim_without_an_import_goes(world):
    _, name = await _claimed(world, "imported")
    await world.sweep.records()
    assert name not in world.store._objects


async def test_nobody_puts_or_ends_what_is_imported(world):
    upload, _ = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", SHA256, False)
    await put(world, 0, upload, BYTES)
    await world.uploads[0].claim(world.topic, upload, "imported")
    with pytest.raises(UploadConflict, match="imported"):
        await world.uploads[1].signed(world.topic, upload)
    with pytest.raises(UploadConflict, match="imported"):
        await world.uploads[1].abort(world.topic, upload)
    assert (await world.uploads[1].complete(world.topic, upload)).state == "imported"
