"""Formats by level: what level 1 wrote (commit ba8a064, in tests/fixtures/level1) is read, and written byte by byte at
level 1; level 2 round-trips; what is of a later version needs a newer broker, and is no damage."""

import io
import json
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from seaweedq import errors
from seaweedq.broker.load.meters import LoadReport
from seaweedq.broker.read.segment_reads import SegmentRows
from seaweedq.broker.recovery import replay
from seaweedq.broker.rpc import forward_frames
from seaweedq.broker.rpc.client import KNOWN_TO_ALL, ErrorMessage, Peers
from seaweedq.broker.rpc.messages import BrokerStatus, EndsCall, GiveCall, SegmentCall, TopicCall
from seaweedq.broker.rpc.transport import Relayed
from seaweedq.broker.subscriptions.subscription import Acks
from seaweedq.errors import ChainDamaged, NeedsNewerBroker, NotOwner, PeerTooOld
from seaweedq.formats import Format as VersionTable
from seaweedq.journal.object_format import SLOTS, SlotHeader, SlotHeaders, SlotKind, decode_slot, encode_slot
from seaweedq.levels import HIGHEST, LOWEST
from seaweedq.segments.commits import FILE_HEADER_BYTES, FILES, FileHeader, encode_commit, read_commits, read_header
from seaweedq.segments.entry import EntryMetadata, encode_entry, open_entry, read_rows
from seaweedq.segments.frames import Frame, FrameKind, pack, rows_of, unpack
from seaweedq.segments.layout import TIMESTAMP, Format, Layout
from seaweedq.segments.producers import TABLES, Duplicate, ProducerTables
from seaweedq.storage.identity import Identity, known_identity
from seaweedq.storage.memory import MemoryStore
from tests.support import levels
from tests.support.journal.sim_disk import CountedIds
from tests.support.paths import ROOT

BROKER, NONCE = "b1.5f", "0123456789abcdef" * 2
FIRST = ROOT / "tests" / "fixtures" / "level1"
LAYOUT = Layout.of(Format.JSON)
ROWS = pa.RecordBatch.from_arrays(
    [pa.array([1_000_001, 1_000_002], TIMESTAMP), pa.array(["k", None]), pa.array(['{"a":1}', "2"])],
    schema=LAYOUT.rows(1),
)
CALLS: dict[str, Any] = json.loads((FIRST / "calls.json").read_text())
MESSAGES = {
    kind.__name__: kind for kind in (TopicCall, EndsCall, SegmentCall, GiveCall, BrokerStatus, LoadReport, SegmentRows)
}
ADDED = {"BrokerStatus": 5, "LoadReport": 1}  # members that were added since, behind those of level 1


def frames(data: bytes) -> tuple[Frame, ...]:
    return decode_slot(data, "_journals/b1.5f/00000020")[1].frames


def test_a_level_writes_the_version_of_the_last_level_that_changed_it() -> None:
    table = VersionTable("things", {1: 1, 3: 2, 4: 5})
    assert [table.at(level) for level in range(1, 7)] == [1, 1, 2, 5, 5, 5]
    table.check(5, "x")
    with pytest.raises(NeedsNewerBroker, match=r"^x has version 6 of the format of things; this broker reads"):
        table.check(6, "x")


@pytest.mark.parametrize("table", [SLOTS, FILES, TABLES])
def test_every_level_has_a_version_that_is_read(table: VersionTable) -> None:
    assert LOWEST in table.written
    assert set(table.written) <= set(range(LOWEST, HIGHEST + 1))


def test_slots_of_level_1_are_read_and_written_as_they_were() -> None:
    data, fence = ((FIRST / name).read_bytes() for name in ("slot.bin", "fence.bin"))
    header, commit = decode_slot(data, "_journals/b1.5f/00000020")
    assert header == SlotHeader(SlotKind.DATA, BROKER, 20, NONCE, 17)
    rows, acks = commit.frames
    assert rows_of(rows, LAYOUT) == ROWS
    assert msgspec.msgpack.decode(acks.payload, type=Acks) == Acks("s", 1, 2, ((1, 4),))
    made = replace(SlotHeaders(BROKER, CountedIds(), levels.first).make(SlotKind.DATA, 20, 17, 19), nonce=NONCE)
    assert encode_slot(made, commit.frames) == data
    stopped = decode_slot(fence, "_journals/b1.5f/00000021")[0]
    assert stopped == SlotHeader(SlotKind.FENCE, BROKER, 21, NONCE, 17)
    assert encode_slot(stopped, ()) == fence


def test_slots_of_level_2_state_what_was_acknowledged() -> None:
    commit = frames((FIRST / "slot.bin").read_bytes())
    made = SlotHeaders(BROKER, CountedIds(), levels.newest).make(SlotKind.DATA, 20, 17, 19)
    header, found = decode_slot(encode_slot(made, commit), "_journals/b1.5f/00000020")
    assert (header.version, header.acknowledged, header) == (2, 19, made)
    assert rows_of(found.frames[0], LAYOUT) == ROWS


@pytest.mark.parametrize("level", range(LOWEST, HIGHEST + 1))
def test_journal_files_are_read_and_written_as_they_were(level: int) -> None:
    data = (FIRST / "commits.journal").read_bytes()
    header = read_header(data[:FILE_HEADER_BYTES], len(data), "f")
    assert header == FileHeader(bytes.fromhex(NONCE), 2, 999, 20)
    (commit,) = read_commits(data, "f")
    assert (commit.number, rows_of(commit.frames[0], LAYOUT)) == (20, ROWS)
    written = b"".join(map(bytes, encode_commit(header.file_id, 20, commit.frames)))
    assert header.encode(level) + written == data


def unpacked(headers: Any, payload: bytes = b"") -> tuple[Frame, ...] | None:
    return unpack(memoryview(msgspec.msgpack.encode(headers)), memoryview(payload))


def test_frames_of_a_later_version_need_a_newer_broker() -> None:
    index, _ = pack([Frame(FrameKind.ACKS, "t", 0, 0, 0, 0, 0, (), 0, b"")])
    (known,) = msgspec.msgpack.decode(index)
    assert unpacked([known]) == unpacked([[*known, "a member of later versions"]])
    for later in ([7, *known[1:]], [known[0], ["t"], *known[2:]]):
        with pytest.raises(NeedsNewerBroker, match=r"has a form that this broker does not read .*; a newer broker"):
            unpacked([later])
    with pytest.raises(NeedsNewerBroker, match="a frame of segment 3 of 'flights' from offset 0 has columns that"):
        rows_of(Frame(FrameKind.ROWS, "flights", 3, 0, 2, 16, 0, (), 0, b""), LAYOUT)
    with pytest.raises(NeedsNewerBroker, match="a frame of segment 3 of 'flights' from offset 0 has rows that"):
        rows_of(Frame(FrameKind.ROWS, "flights", 3, 0, 2, 0, 0, (), 0, b"no rows of this version"), LAYOUT)
    with pytest.raises(NeedsNewerBroker, match="a frame of segment 3 of 'flights' has acks that"):
        replay._add_acks({}, [Frame(FrameKind.ACKS, "flights", 3, 0, 0, 0, 0, (), 0, b"no acks of this version")])


def test_producer_tables_are_read_and_written_as_they_were() -> None:
    data = (FIRST / "tables.bin").read_bytes()
    tables = ProducerTables.decode(data, 3)
    assert tables.judge(0, "p", 4, 5, 2) == Duplicate(3, 7)
    for level in range(LOWEST, HIGHEST + 1):
        assert tables.encode(level) == data


def test_producer_tables_of_a_later_version_need_a_newer_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = ProducerTables.decode((FIRST / "tables.bin").read_bytes(), 3)
    monkeypatch.setattr("seaweedq.segments.producers.TABLES", VersionTable("producer tables", {1: 3}))
    later = tables.encode(HIGHEST)
    monkeypatch.undo()
    with pytest.raises(NeedsNewerBroker, match=r"^segment 3 has version 3 of the format of producer tables"):
        ProducerTables.decode(later, 3)


def test_entries_are_read_and_their_metadata_is_written_as_it_was() -> None:
    name, metadata = "00000001-0000000000000007.parquet", (FIRST / "metadata.json").read_bytes()
    parquet, found = open_entry(io.BytesIO((FIRST / "entry.parquet").read_bytes()), name)
    assert msgspec.json.encode(found) == metadata
    assert found == msgspec.json.decode(metadata, type=EntryMetadata)
    assert read_rows(parquet, 0, LAYOUT) == ROWS


def test_an_entry_that_a_later_level_wrote_otherwise_needs_a_newer_broker() -> None:
    name, metadata = "00000001-0000000000000007.parquet", (FIRST / "metadata.json").read_bytes()
    known = msgspec.json.decode(metadata, type=EntryMetadata)

    def opened(changed: EntryMetadata) -> EntryMetadata:
        return open_entry(io.BytesIO(bytes(memoryview(encode_entry([(7, ROWS)], LAYOUT, changed, HIGHEST)))), name)[1]

    assert opened(msgspec.structs.replace(known, needs_level=HIGHEST)).nonce == NONCE
    with pytest.raises(NeedsNewerBroker, match=f"{name} needs a broker that reads level {HIGHEST + 1}; this one reads"):
        opened(msgspec.structs.replace(known, needs_level=HIGHEST + 1))
    with pytest.raises(ChainDamaged):
        opened(msgspec.structs.replace(known, sequence=2))


async def test_the_identity_of_a_store_is_read_and_written_as_it_was() -> None:
    data, store = (FIRST / "cluster.json").read_bytes(), MemoryStore()
    await store.create("_cluster.json", data)
    found = await known_identity(store)
    assert isinstance(found, Identity)
    assert (found.store, msgspec.json.encode(found)) == ("cd" * 16, data)


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_calls_are_read_and_written_as_they_were_and_later_members_are_ignored(name: str) -> None:
    data = bytes.fromhex(CALLS[name])
    found = msgspec.msgpack.decode(data, type=MESSAGES[name])
    members, known = msgspec.msgpack.decode(msgspec.msgpack.encode(found)), msgspec.msgpack.decode(data)
    assert len(members) - len(known) == ADDED.get(name, 0)
    assert msgspec.msgpack.encode(members[: len(known)]) == data
    later = msgspec.msgpack.encode([*members, "a member of later versions"])
    assert msgspec.msgpack.decode(later, type=MESSAGES[name]) == found


def test_forwards_are_read_and_written_as_they_were() -> None:
    data = bytes.fromhex(CALLS["forward"])
    (frame,) = forward_frames.decode(data)
    assert frame.rows(LAYOUT) == ROWS
    assert forward_frames.encode([frame]) == data
    outcome = msgspec.msgpack.decode(bytes.fromhex(CALLS["Outcome"]), type=forward_frames.Outcome)
    assert outcome == forward_frames.Outcome(3, 7, True)


def test_errors_travel_under_a_name_that_every_version_knows() -> None:
    said = msgspec.msgpack.decode(bytes.fromhex(CALLS["ErrorMessage"]), type=ErrorMessage).error()
    assert (type(said), said.detail, said.fields) == (NotOwner, "said", {"owner": "b2.6a"})
    assert set(CALLS["slugs"]) == KNOWN_TO_ALL
    for kind in errors.by_slug().values():
        told = ErrorMessage.of(kind("x"))
        assert told.slug in KNOWN_TO_ALL
        assert type(told.error()).slug == kind.slug
    assert ErrorMessage.of(NeedsNewerBroker("x")).slug == "unavailable"
    assert type(ErrorMessage("a-later-slug", "x", {}).error()) is errors.Unavailable


async def test_a_call_that_another_broker_does_not_know_says_that_it_is_too_old() -> None:
    class Old(Peers):
        async def relay(self, *_: Any) -> Relayed:
            return Relayed(404, {}, b'{"type": "/problems/not-found"}')

    with pytest.raises(PeerTooOld, match="too old for this request: http://b does not know later"):
        await Old("secret").call("http://b", "later", None, bool, 1)
