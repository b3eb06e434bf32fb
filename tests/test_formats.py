"""Formats: what level 1 writes (tests/fixtures/level1) is read, and written byte by byte; what is of a later version
needs a newer broker, and is no damage; what is of another draft is refused."""

import io
import json
import zlib
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from seaweedq import errors, levels
from seaweedq.broker.load import LoadReport
from seaweedq.broker.recovery import replay
from seaweedq.broker.rpc import messages
from seaweedq.broker.rpc.messages import (
    BrokerStatus,
    EndsCall,
    ErrorMessage,
    GiveCall,
    SegmentCall,
    SegmentRows,
    TopicCall,
)
from seaweedq.broker.rpc.peer_connections import Relayed
from seaweedq.broker.subscriptions.subscription import Acks
from seaweedq.coordination import keys
from seaweedq.coordination.backup import decode_change, decode_state, encode_state
from seaweedq.coordination.cluster_level import read_cluster
from seaweedq.coordination.interface import Entry
from seaweedq.errors import ChainDamaged, LevelMismatch, NeedsNewerBroker, NotOwner, PeerTooOld
from seaweedq.formats import Format as VersionTable
from seaweedq.journal.object_format import (
    HEADER_BYTES,
    SLOTS,
    SlotHeader,
    SlotHeaders,
    SlotKind,
    decode_header,
    decode_slot,
    encode_slot,
)
from seaweedq.segments.entry import EntryMetadata, encode_entry, open_entry, read_rows
from seaweedq.segments.frames import (
    FILE_HEADER_BYTES,
    FILES,
    FileHeader,
    Frame,
    FrameKind,
    encode_commit,
    pack,
    read_commits,
    read_header,
    rows_of,
    unpack,
)
from seaweedq.segments.producers import TABLES, Duplicate, ProducerTables
from seaweedq.storage.generations import Generation, create_generation, newest_generation
from seaweedq.storage.identity import Identity, known_identity
from seaweedq.storage.memory import MemoryStore
from tests.support.brokers.peer_client import stranger_peers
from tests.support.formats import BROKER, FIRST, LAYOUT, NONCE, ROWS, SEALER, change, state
from tests.support.journal.sim_disk import CountedIds

SLOT, FENCE = "_journals/b1.5f/00000020", "_journals/b1.5f/00000021"
CALLS: dict[str, Any] = json.loads((FIRST / "calls.json").read_text())
MESSAGES = {
    kind.__name__: kind for kind in (TopicCall, EndsCall, SegmentCall, GiveCall, BrokerStatus, LoadReport, SegmentRows)
}
LATER = {"slots": "seaweedq.journal.object_format.SLOTS", "journal files": "seaweedq.segments.frames.FILES"}


def first() -> int:
    """The first level."""
    return levels.LOWEST


def frames(data: bytes) -> tuple[Frame, ...]:
    return decode_slot(data, SLOT)[1].frames


def test_a_level_writes_the_version_of_the_last_level_that_changed_it() -> None:
    table = VersionTable("things", {1: 1, 3: 2, 4: 5})
    assert [table.at(level) for level in range(1, 7)] == [1, 1, 2, 5, 5, 5]
    table.check(5, "x")
    with pytest.raises(NeedsNewerBroker, match=r"^x is in version 6 of the format of things; this broker reads"):
        table.check(6, "x")


@pytest.mark.parametrize("table", [SLOTS, FILES, TABLES])
def test_every_level_has_a_version_that_is_read(table: VersionTable) -> None:
    assert levels.LOWEST in table.written
    assert set(table.written) <= set(range(levels.LOWEST, levels.HIGHEST + 1))


def test_slots_are_read_and_written_as_they_were() -> None:
    data, fence = ((FIRST / name).read_bytes() for name in ("slot.bin", "fence.bin"))
    header, commit = decode_slot(data, SLOT)
    assert header == SlotHeader(SlotKind.DATA, BROKER, 20, NONCE, 17, 19, commits=25)
    assert commit.number == 24
    rows, acks = commit.frames
    assert rows_of(rows, LAYOUT) == ROWS
    assert msgspec.msgpack.decode(acks.payload, type=Acks) == Acks("s", 1, 2, ((1, 4),))
    made = replace(SlotHeaders(BROKER, CountedIds(), first).make(SlotKind.DATA, 20, 17, 19, 25), nonce=NONCE)
    assert encode_slot(made, commit.frames) == data
    stopped = decode_slot(fence, FENCE)[0]
    assert stopped == SlotHeader(SlotKind.FENCE, BROKER, 21, NONCE, 17)
    assert stopped.commit == 21
    assert encode_slot(stopped, ()) == fence


def test_slots_of_the_next_level_have_its_version_and_need_a_newer_broker(
    monkeypatch: pytest.MonkeyPatch, next_level: int
) -> None:
    commit = frames((FIRST / "slot.bin").read_bytes())
    with monkeypatch.context() as later:
        later.setattr(LATER["slots"], VersionTable("slots", {1: 1, next_level: 2}))
        made = SlotHeaders(BROKER, CountedIds(), lambda: next_level).make(SlotKind.DATA, 20, 17, 19)
        data = encode_slot(made, commit)
        assert (made.version, decode_slot(data, SLOT)[0]) == (2, made)
        assert SlotHeaders(BROKER, CountedIds(), first).make(SlotKind.DATA, 20, 17, 19).version == 1
        assert decode_header((FIRST / "slot.bin").read_bytes(), SLOT).version == 1
    with pytest.raises(NeedsNewerBroker, match=f"^{SLOT} is in version 2 .* reads version 1; a newer broker"):
        decode_header(data, SLOT)


def test_journal_files_are_read_and_written_as_they_were() -> None:
    data = (FIRST / "commits.journal").read_bytes()
    header = read_header(data[:FILE_HEADER_BYTES], len(data), "f")
    assert header == FileHeader(bytes.fromhex(NONCE), 2, 999, 20)
    (commit,) = read_commits(data, "f")
    assert (commit.number, rows_of(commit.frames[0], LAYOUT)) == (20, ROWS)
    written = b"".join(map(bytes, encode_commit(header.file_id, 20, commit.frames)[0]))
    assert header.encode(levels.HIGHEST) + written == data


def test_journal_files_of_the_next_level_need_a_broker_that_reads_it(
    monkeypatch: pytest.MonkeyPatch, next_level: int
) -> None:
    header = FileHeader(bytes.fromhex(NONCE), 2, 999, 20)
    with monkeypatch.context() as later:
        later.setattr(LATER["journal files"], VersionTable("journal files", {1: 1, next_level: 2}))
        data = header.encode(next_level)
        assert read_header(data, len(data), "f") == header
        assert read_header(header.encode(levels.LOWEST), len(data), "f") == header
    with pytest.raises(NeedsNewerBroker, match=r"^f is in version 2 of the format of journal files"):
        read_header(data, len(data), "f")


DRAFTS = pytest.mark.parametrize(
    ("draft", "told"), [(0, "without a draft number,"), (levels.DRAFT + 1, f"with draft number {levels.DRAFT + 1},")]
)
DO = f"formats with draft number {levels.DRAFT}; continue with the unreleased version .* or start with an empty data"


@DRAFTS
def test_a_slot_of_another_draft_is_refused(draft: int, told: str) -> None:
    data = bytearray((FIRST / "slot.bin").read_bytes())
    data[10:12] = draft.to_bytes(2, "little")
    length = int.from_bytes(data[16:18], "little")
    data[12:16] = zlib.crc32(data[16:length], zlib.crc32(data[:12])).to_bytes(4, "little")
    with pytest.raises(
        LevelMismatch, match=f"^the journal's slot {SLOT} was written in storage formats {told} .* {DO}"
    ) as refused:
        decode_header(bytes(data[:HEADER_BYTES]), SLOT)
    assert refused.value.fields == {"draft": draft, "reads": levels.DRAFT}


@DRAFTS
def test_a_journal_file_of_another_draft_is_refused(draft: int, told: str) -> None:
    data = bytearray((FIRST / "commits.journal").read_bytes())
    data[10:12] = draft.to_bytes(2, "little")
    data[FILE_HEADER_BYTES - 4 : FILE_HEADER_BYTES] = zlib.crc32(data[: FILE_HEADER_BYTES - 4]).to_bytes(4, "little")
    with pytest.raises(LevelMismatch, match=f"^the journal file f was written in storage formats {told} .* {DO}"):
        list(read_commits(bytes(data), "f"))


@DRAFTS
def test_a_clusters_record_of_another_draft_is_refused(draft: int, told: str) -> None:
    record = {"cluster": "c", "store": "s", "level": 4, "written": 4} | ({"draft": draft} if draft else {})
    with pytest.raises(
        LevelMismatch, match=f"^the cluster's record in coordination was written in storage formats {told} .* {DO}"
    ):
        read_cluster(Entry(keys.CLUSTER.key(), msgspec.json.encode(record), 1))


def test_backups_of_coordination_are_read_as_they_were() -> None:
    snapshot, changed = ((FIRST / name).read_bytes() for name in ("snapshot.bin", "change.bin"))
    assert decode_state(snapshot, "_coordination/0000000003/0000000012", SEALER) == state()
    assert decode_change(changed, "_coordination/0000000003/changes/00000000000000004568", SEALER) == change()
    assert encode_state(state(), SEALER, levels.HIGHEST)[:12] == snapshot[:12]


async def test_a_generation_is_read_and_written_as_it_was() -> None:
    store = MemoryStore()
    await create_generation(store, Generation(3, NONCE))
    assert store.objects == {"_generations/0000000003": (FIRST / "generation.json").read_bytes()}
    assert await newest_generation(store) == Generation(3, NONCE)


def unpacked(headers: Any, payload: bytes = b"") -> tuple[Frame, ...] | None:
    return unpack(memoryview(msgspec.msgpack.encode(headers)), memoryview(payload))


def test_frames_of_a_later_version_need_a_newer_broker() -> None:
    index, _, _ = pack([Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, b"")])
    (known,) = msgspec.msgpack.decode(index)
    assert unpacked([known]) == unpacked([[*known, "a member of later versions"]])
    for later in ([7, *known[1:]], [known[0], ["t"], *known[2:]]):
        with pytest.raises(
            NeedsNewerBroker, match=r"this broker cannot read a record of the journal: .*; a newer broker"
        ):
            unpacked([later])
    with pytest.raises(NeedsNewerBroker, match="a frame of segment 3 of 'flights' from offset 0 has columns that"):
        rows_of(Frame(FrameKind.ROWS, "flights", 3, 0, 2, 16, 0, (), 0, b""), LAYOUT)
    with pytest.raises(NeedsNewerBroker, match="a frame of segment 3 of 'flights' from offset 0 has rows that"):
        rows_of(Frame(FrameKind.ROWS, "flights", 3, 0, 2, 0, 0, (), 0, b"no rows of this version"), LAYOUT)
    with pytest.raises(NeedsNewerBroker, match="a frame of segment 3 of 'flights' has acks that"):
        replay.add_acks({}, [Frame(FrameKind.ACKS, "flights", 3, 0, 0, 0, 0, (), 0, b"no acks of this version")])


def test_producer_tables_are_read_and_written_as_they_were() -> None:
    data = (FIRST / "tables.bin").read_bytes()
    tables = ProducerTables.decode(data, 3)
    assert tables.judge(0, "p", 4, 5, 2) == Duplicate(3, 7)
    assert tables.encode(levels.HIGHEST) == data


def test_producer_tables_of_the_next_level_need_a_newer_broker(
    monkeypatch: pytest.MonkeyPatch, next_level: int
) -> None:
    tables = ProducerTables.decode((FIRST / "tables.bin").read_bytes(), 3)
    with monkeypatch.context() as later:
        later.setattr("seaweedq.segments.producers.TABLES", VersionTable("producer tables", {1: 1, next_level: 2}))
        data = tables.encode(next_level)
        assert ProducerTables.decode(data, 3).judge(0, "p", 4, 5, 2) == Duplicate(3, 7)
    with pytest.raises(NeedsNewerBroker, match=r"^segment 3 is in version 2 of the format of producer tables"):
        ProducerTables.decode(data, 3)


def test_entries_are_read_and_their_metadata_is_written_as_it_was() -> None:
    name, metadata = "00000001-0000000000000007.parquet", (FIRST / "metadata.json").read_bytes()
    parquet, found = open_entry(io.BytesIO((FIRST / "entry.parquet").read_bytes()), name)
    assert msgspec.json.encode(found) == metadata
    assert found == msgspec.json.decode(metadata, type=EntryMetadata)
    assert read_rows(parquet, 0, LAYOUT, 0) == ROWS


class LaterMetadata(EntryMetadata, frozen=True, kw_only=True):
    """The metadata of an entry that only readers of a level can read."""

    needs_level: int


def test_an_entry_that_a_later_level_wrote_otherwise_needs_a_newer_broker() -> None:
    name, metadata = "00000001-0000000000000007.parquet", (FIRST / "metadata.json").read_bytes()
    known = msgspec.json.decode(metadata, type=EntryMetadata)

    def opened(changed: EntryMetadata) -> EntryMetadata:
        return open_entry(io.BytesIO(bytes(memoryview(encode_entry([(7, ROWS)], LAYOUT, changed)))), name)[1]

    def needing(level: int) -> EntryMetadata:
        return LaterMetadata(**msgspec.structs.asdict(known), needs_level=level)

    assert opened(needing(levels.HIGHEST)).nonce == NONCE
    later = levels.HIGHEST + 1
    with pytest.raises(
        NeedsNewerBroker, match=f"{name} needs a broker that can read format level {later}; this broker can read"
    ):
        opened(needing(later))
    with pytest.raises(ChainDamaged):
        opened(msgspec.structs.replace(known, sequence=2))


async def test_the_identity_of_a_store_is_read_and_written_as_it_was() -> None:
    data, store = (FIRST / "cluster.json").read_bytes(), MemoryStore()
    await store.create("_cluster.json", data)
    found = await known_identity(store)
    assert isinstance(found, Identity)
    assert (found.store, msgspec.json.encode(found)) == ("cd" * 16, data)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_calls_keep_their_form_and_later_members_are_ignored(name: str) -> None:
    data = bytes.fromhex(CALLS[name])
    found = msgspec.msgpack.decode(data, type=MESSAGES[name])
    assert msgspec.msgpack.encode(found) == data
    later = msgspec.msgpack.encode([*msgspec.msgpack.decode(data), "a member of later versions"])
    assert msgspec.msgpack.decode(later, type=MESSAGES[name]) == found


def test_forwards_are_read_and_written_as_they_were() -> None:
    data = bytes.fromhex(CALLS["forward"])
    (frame,) = messages.decode_forward(data)
    assert frame.rows(LAYOUT) == ROWS
    assert (frame.header.seen, frame.header.schema_id) == (6, 2)
    assert messages.encode_forward([frame]) == data
    outcome = msgspec.msgpack.decode(bytes.fromhex(CALLS["Outcome"]), type=messages.Outcome)
    assert outcome == messages.Outcome(3, 7, True)


def test_an_error_is_raised_as_the_nearest_class_that_the_receiver_knows() -> None:
    said = msgspec.msgpack.decode(bytes.fromhex(CALLS["ErrorMessage"]), type=ErrorMessage).error()
    assert (type(said), said.detail, said.fields) == (NotOwner, "said", {"owner": "b2.6a"})
    for kind in errors.by_slug().values():
        assert type(ErrorMessage.from_error(kind("x")).error()).slug == kind.slug
    later = ErrorMessage(("a-later-slug", *ErrorMessage.from_error(NotOwner("x")).slugs), "x", {})
    assert type(later.error()) is NotOwner
    assert ErrorMessage.from_error(NeedsNewerBroker("x")).slugs[1] == "unavailable"
    assert type(ErrorMessage(("a-later-slug",), "x", {}).error()) is errors.Unavailable


async def test_a_call_that_another_broker_does_not_know_says_that_it_is_too_old() -> None:
    async def relay(*_: Any) -> Relayed:
        return Relayed(404, {}, b'{"type": "/problems/not-found"}')

    peers = stranger_peers()
    peers.relay = relay  # type: ignore[method-assign]
    with pytest.raises(PeerTooOld, match="too old for this request: http://b does not know later"):
        await peers.call("http://b", "later", None, bool, 1)
