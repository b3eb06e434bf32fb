"""References of a request are resolved before anything is taken: each upload once, few at a time, errors by name.
Uploads that are imported stay while an import reads them, and go unless a message names them, in any interleaving.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.payloads import CLAIMS, MAX_CLAIMS, Payloads
from seaweedq.clock import SystemClock
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Compare, Put
from seaweedq.coordination.records import ImportRecord, TopicConfig, TopicRecord, WriteRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import (
    BadRequest,
    CoordinationUnavailable,
    Damaged,
    InvalidMessages,
    InvalidRequest,
    TopicBeingDeleted,
    UploadConflict,
    UploadExpired,
    UploadIncomplete,
    UploadMismatch,
    UploadNotFound,
)
from seaweedq.segments.layout import Layout
from seaweedq.segments.rows import Reference, Single, rows_of_singles
from tests.support.brokers.stored import record_of
from tests.support.tiers import examples
from tests.support.uploads.upload_steps import check, put, sweep
from tests.support.uploads.upload_world import BYTES, SHA256, World, inline

TOPIC = Topic.from_record("t", Versioned(TopicRecord(0, "active", TopicConfig(), 0), 1))
REFUSALS = (UploadNotFound, UploadIncomplete, UploadMismatch, UploadExpired)


class Uploads:
    """Claims: those in `errors` raise, all take a turn of the loop."""

    def __init__(self) -> None:
        self.claimed: Counter[str] = Counter()
        self.errors: dict[str, Exception] = {}
        self.most = self._now = 0

    async def claim(self, topic: Topic, upload: str) -> Reference:
        self.claimed[upload] += 1
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.001)
        self._now -= 1
        if error := self.errors.get(upload):
            raise error
        return Reference(f"s3://b/{upload}", 5, "text/plain", "ab")


def rows_of(*uploads: str | None) -> pa.RecordBatch:
    singles = [Single(f"k{n}", None if u else b"1", None, n, None, u) for n, u in enumerate(uploads)]
    return rows_of_singles(singles, TOPIC.layout)


def payloads(uploads: Uploads) -> Payloads:
    return Payloads(None, uploads.claim, None, None, None, SystemClock(), 1)  # type: ignore[arg-type]


def resolve(uploads: Uploads, rows: pa.RecordBatch) -> pa.RecordBatch:
    return asyncio.run(payloads(uploads).resolve(TOPIC, rows))


def test_each_upload_once_and_every_row() -> None:
    uploads = Uploads()
    rows = rows_of("a", None, "b", "a", "a")
    found = resolve(uploads, rows)
    found.validate(full=True)
    assert found.schema.equals(Layout.rows(TOPIC.layout, 0b1001))
    assert uploads.claimed == {"a": 1, "b": 1}
    uris = [each and each["uri"] for each in found.column("_reference").to_pylist()]
    assert uris == ["s3://b/a", None, "s3://b/b", "s3://b/a", "s3://b/a"]
    assert found.column("_reference").to_pylist()[2] == {
        "uri": "s3://b/b",
        "size": 5,
        "content_type": "text/plain",
        "sha256": "ab",
    }
    assert found.drop_columns(["_reference"]).equals(rows.drop_columns(["_reference"]))


def test_few_at_a_time() -> None:
    uploads = Uploads()
    resolve(uploads, rows_of(*map(str, range(5 * CLAIMS))))
    assert uploads.most == CLAIMS


@pytest.mark.parametrize("kind", REFUSALS)
def test_one_message_gets_the_very_error(kind: type[BadRequest]) -> None:
    uploads = Uploads()
    uploads.errors["a"] = kind("no", upload_id="a")
    with pytest.raises(kind):
        resolve(uploads, rows_of("a"))
    single = Single("k", None, None, 0, None, "a")
    with pytest.raises(kind):
        asyncio.run(payloads(uploads).resolve_single(TOPIC, single))


def test_of_several_each_is_named() -> None:
    uploads = Uploads()
    uploads.errors = {f"bad{n}": kind(f"why {n}", upload_id="x") for n, kind in enumerate(REFUSALS)}
    with pytest.raises(InvalidMessages) as caught:
        resolve(uploads, rows_of("good", "bad0", None, "bad1", "bad2", "bad0", "bad3"))
    errors = caught.value.fields["errors"]
    assert [each["index"] for each in errors] == [1, 3, 4, 5, 6]
    assert [each["reason"] for each in errors] == ["why 0", "why 1", "why 2", "why 0", "why 3"]
    assert [each["type"].rpartition("/")[2] for each in errors[:3]] == [
        "upload-not-found",
        "upload-incomplete",
        "upload-mismatch",
    ]
    assert caught.value.fields["invalid"] == 5


def test_the_first_hundred_are_named() -> None:
    uploads = Uploads()
    uploads.errors["bad"] = UploadNotFound("no", upload_id="bad")
    with pytest.raises(InvalidMessages) as caught:
        resolve(uploads, rows_of(*["bad"] * 250))
    assert len(caught.value.fields["errors"]) == 100
    assert caught.value.fields["invalid"] == 250


@pytest.mark.parametrize("kind", [CoordinationUnavailable, TopicBeingDeleted])
def test_what_is_no_word_on_a_message_goes_first(kind: type[Exception]) -> None:
    uploads = Uploads()
    uploads.errors = {"a": UploadNotFound("no", upload_id="a"), "c": kind("later")}
    with pytest.raises(kind):
        resolve(uploads, rows_of("a", "b", "c"))


def test_uploads_of_a_request_are_bounded() -> None:
    uploads = Uploads()
    with pytest.raises(InvalidRequest) as caught:
        resolve(uploads, rows_of(*map(str, range(MAX_CLAIMS + 1))))
    assert caught.value.fields["bound"] == MAX_CLAIMS
    assert not uploads.claimed


def test_whoever_gives_up_ends_the_claims() -> None:
    uploads = Uploads()
    begun = asyncio.Event()

    async def never(topic: Topic, upload: str) -> Reference:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            uploads.claimed[upload] += 1
        raise AssertionError

    async def give_up(claim: Callable[[Topic, str], Awaitable[Reference]]) -> None:
        work = asyncio.create_task(
            Payloads(None, claim, None, None, None, SystemClock(), 1).resolve(TOPIC, rows_of("a", "b"))  # type: ignore[arg-type]
        )
        await begun.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(give_up(never))
    assert uploads.claimed == {"a": 1, "b": 1}


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
def test_a_file_stays_while_imported_and_then_only_if_a_message_names_it(data):
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
    assert name in world.store.objects


@pytest.mark.parametrize(
    ("state", "stays"), [("checking", True), ("running", True), ("done", False), ("failed", False)]
)
async def test_the_file_waits_for_its_import(world, state, stays):
    upload, name = await _claimed(world, "imported")
    key = keys.IMPORTS.key("t", world.topic.record.incarnation, upload)
    await world.coordination.commit([], [Put(key, keys.IMPORTS.encode(Versioned.new(_record(name, state=state))))])
    await world.sweep.records()
    assert (name in world.store.objects) == stays


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
    assert name in world.store.objects


async def test_a_claim_without_an_import_goes(world):
    _, name = await _claimed(world, "imported")
    await world.sweep.records()
    assert name not in world.store.objects


async def test_nobody_puts_or_ends_what_is_imported(world):
    upload, _ = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", SHA256, False)
    await put(world, 0, upload, BYTES)
    await world.uploads[0].claim(world.topic, upload, "imported")
    with pytest.raises(UploadConflict, match="imported"):
        await world.uploads[1].signed(world.topic, upload)
    with pytest.raises(UploadConflict, match="imported"):
        await world.uploads[1].abort(world.topic, upload)
    assert (await world.uploads[1].complete(world.topic, upload)).state == "imported"


def _write(number: int, state: Any, **more: Any) -> WriteRecord:
    record = WriteRecord(number, "parquet", False, 1, "", None, False, 0, 1, 1, "n", 0, None, state, **more)
    return msgspec.structs.replace(record, ended_us=record.ended_us if state in ("done", "failed") else None)


async def _newest(world: World, record: WriteRecord, before: int = 0) -> int:
    key = keys.WRITES.key("t", world.topic.record.incarnation, "w")
    put = Put(key, keys.WRITES.encode(Versioned.new(record)))
    revision = await world.coordination.commit([Compare(key, before)], [put])
    assert revision
    return revision


async def _for_write(world: World, write: str = "w/7", claimed: bool = True) -> tuple[str, str]:
    upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", SHA256, False, write)
    await put(world, 0, upload, BYTES)
    if claimed:
        await world.uploads[0].claim(world.topic, upload, "imported", write)
    return upload, record.name


# The newest write; what stays of the uploads of write 7 (claimed, not claimed), an hour later and once they expired.
SWEPT = {
    "none": (None, (True, True), (False, False)),
    "an earlier one": (_write(6, "running"), (True, True), (False, False)),
    "checking": (_write(7, "checking"), (True, True), (True, True)),
    "running": (_write(7, "running"), (True, True), (True, True)),
    "failed": (_write(7, "failed", ended_us=0), (True, True), (False, False)),
    "done": (_write(7, "done", ended_us=0), (False, False), (False, False)),
    "a later one": (_write(9, "checking"), (False, False), (False, False)),
}


@pytest.mark.parametrize("what", SWEPT)
async def test_uploads_go_once_the_number_of_their_write_is_settled(world, what):
    newest, soon, late = SWEPT[what]
    names = [(await _for_write(world, claimed=claimed))[1] for claimed in (True, False)]
    if newest is not None:
        ended_us = world.clock.us if newest.ended_us is not None else None
        await _newest(world, msgspec.structs.replace(newest, started_us=world.clock.us, ended_us=ended_us))
    await world.sweep.records()
    assert all(name in world.store.objects for name in names), "within the grace time"
    world.pass_s(world.settings.upload_grace_s + 1)
    await world.sweep.records()
    assert tuple(name in world.store.objects for name in names) == soon
    world.pass_s(world.settings.upload_expires_s)
    await world.sweep.records()
    assert tuple(name in world.store.objects for name in names) == late


async def test_uploads_of_a_write_that_a_later_broker_has_written_stay(world):
    upload, name = await _for_write(world)
    key = keys.WRITES.key("t", world.topic.record.incarnation, "w")
    encoded = keys.WRITES.encode(Versioned.new(_write(7, "done", ended_us=0)))
    await world.coordination.commit([], [Put(key, encoded.replace(b'"done"', b'"else"'))])
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    await world.sweep.records()
    assert name in world.store.objects
    with pytest.raises(UploadConflict):
        await world.uploads[0].abort(world.topic, upload)


@pytest.mark.parametrize("state", ["checking", "running"])
async def test_no_abort_takes_an_upload_that_a_write_may_read(world, state):
    upload, name = await _for_write(world, claimed=False)
    revision = await _newest(world, _write(7, state))
    with pytest.raises(UploadConflict, match="write w/7, which has not ended"):
        await world.uploads[1].abort(world.topic, upload)
    await _newest(world, _write(7, "failed", ended_us=0), revision)
    await world.uploads[1].abort(world.topic, upload)
    assert name not in world.store.objects


@pytest.mark.parametrize("act", ["abort", "sweep"])
async def test_a_write_that_begins_while_its_upload_ends_keeps_it(world, act, monkeypatch):
    upload, name = await _for_write(world, claimed=False)
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    get, key = world.coordination.get, keys.WRITES.key("t", world.topic.record.incarnation, "w")

    async def slow(asked):
        found = await get(asked)
        if asked == key and found is None:
            await _newest(world, _write(7, "checking"))
        return found

    monkeypatch.setattr(world.coordination, "get", slow)
    if act == "sweep":
        await world.sweep.records()
    else:
        with pytest.raises(UploadConflict):
            await world.uploads[1].abort(world.topic, upload)
    assert name in world.store.objects


async def test_a_pass_reads_the_write_of_many_uploads_once(world, monkeypatch):
    names = [(await _for_write(world, claimed=False))[1] for _ in range(40)]
    await _newest(world, _write(7, "done", ended_us=world.clock.us))
    world.pass_s(world.settings.upload_grace_s + 1)
    reads, commits = [], []
    get, commit = world.coordination.get, world.coordination.commit
    monkeypatch.setattr(world.coordination, "get", lambda key: reads.append(key) or get(key))
    monkeypatch.setattr(world.coordination, "commit", lambda *given: commits.append(given) or commit(*given))
    await world.sweep.records()
    assert not set(names) & set(world.store.objects)
    assert len([key for key in reads if key.startswith("writes/")]) <= 16
    assert len(commits) == 2  # all records say `removed`, then that their objects are gone


async def test_what_changes_amid_a_pass_stays_and_others_go(world, monkeypatch):
    names = dict([await _for_write(world, f"w{at}/7", claimed=False) for at in range(45)])
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    kept, commit = list(names)[3], world.coordination.commit

    async def slow(*given):
        monkeypatch.undo()
        key = keys.UPLOADS.key("t", world.topic.record.incarnation, kept)
        there = await world.coordination.get(key)
        await commit([], [Put(key, there.value)])
        return await commit(*given)

    monkeypatch.setattr(world.coordination, "commit", slow)
    await world.sweep.records()
    assert {names[kept]} == set(names.values()) & set(world.store.objects)
    await world.sweep.records()
    assert not set(names.values()) & set(world.store.objects)


async def test_a_damaged_record_hinders_no_other_of_its_page(world):
    names = dict([await _for_write(world, claimed=False) for _ in range(3)])
    key = keys.UPLOADS.key("t", world.topic.record.incarnation, sorted(names)[1])
    there = await world.coordination.get(key)
    await world.coordination.commit([], [Put(key, there.value.replace(b"_payloads/t/", b"_payloads/u/"))])
    world.pass_s(world.settings.upload_expires_s + world.settings.upload_grace_s + 1)
    with pytest.raises(Damaged):
        await world.sweep.records()
    assert {names[sorted(names)[1]]} == set(names.values()) & set(world.store.objects)


async def _write_once(world: World, choose: Choose, lost: list[str]) -> None:
    """A write of one upload beside aborts, sweeps and a broker that does the same: the object is there while the write
    may read it, and whoever claimed it is not refused."""
    await world.start()
    upload, record = await world.uploads[0].create(world.topic, len(BYTES), "text/plain", SHA256, False, "w/7")
    await put(world, 0, upload, BYTES)

    async def written(broker: int) -> None:
        key = keys.WRITES.key("t", world.topic.record.incarnation, "w")
        there = await world.coordination.get(key)
        before = there.revision if there else 0
        begun = Put(key, keys.WRITES.encode(Versioned.new(_write(7, "checking"))))
        if there or not (revision := await world.coordination.commit([Compare(key, 0)], [begun])):
            return
        try:
            await world.uploads[broker].claim(world.topic, upload, "imported", "w/7")
        except (UploadNotFound, UploadExpired):
            end = "failed"
        else:
            end = "done"
            for _ in range(3):
                if record.name not in world.store.objects:
                    lost.append(record.name)
                await world.coordination.get(f"other/{before}")  # others' turn
        over = Put(key, keys.WRITES.encode(Versioned.new(_write(7, end, ended_us=world.clock.us))))
        await world.coordination.commit([Compare(key, revision)], [over])

    acts = [written(0), sweep(world), world.uploads[1].abort(world.topic, upload)]
    acts += [act for act in (written(1), world.uploads[0].abort(world.topic, upload)) if choose(2) or act.close()]
    await world.run(acts, choose, kills=0)
    assert not lost
    await check(world, upload, record.name)


@settings(max_examples=examples(250), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_file_stays_while_a_write_may_read_it(data):
    with patch.object(asyncio, "to_thread", inline):
        asyncio.run(_write_once(World(presigns=True), lambda count: data.draw(st.integers(0, count - 1)), []))
