"""The bytes of each format at level 1, as tests/fixtures/level1 has them.

A change of a form that raises the draft (seaweedq/levels.py) makes them anew: python -m tests.support.formats
"""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from seaweedq import levels
from seaweedq.balancer.broker_count import Utilization
from seaweedq.balancer.load import SegmentLoad
from seaweedq.broker.load import LoadReport
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
from seaweedq.broker.subscriptions.subscription import Acks
from seaweedq.coordination.backup import AdminChange, Sealer, SealKeys, State, encode_change, encode_state
from seaweedq.errors import NotOwner
from seaweedq.journal.object_format import SlotHeader, SlotKind, encode_slot
from seaweedq.segments.entry import EntryMetadata, Seal, SealedIntent, SealedSuccessor, encode_entry
from seaweedq.segments.frames import FileHeader, Frame, FrameKind, ProducerRange, encode_commit
from seaweedq.segments.keyrange import KEY_SPACE, KeyRange
from seaweedq.segments.layout import TIMESTAMP, Format, Layout
from seaweedq.segments.producers import ProducerTable, ProducerTables
from seaweedq.storage.generations import Generation
from seaweedq.storage.identity import Identity
from tests.support.paths import ROOT

BROKER, NONCE = "b1.5f", "0123456789abcdef" * 2
FIRST = ROOT / "tests" / "fixtures" / "level1"
SEALER = Sealer(lambda: NONCE, (SealKeys(b"m" * 32, b"c" * 32),))
LAYOUT = Layout.from_format(Format.JSON)
ROWS = pa.RecordBatch.from_arrays(
    [pa.array([1_000_001, 1_000_002], TIMESTAMP), pa.array(["k", None]), pa.array(['{"a":1}', "2"])],
    schema=LAYOUT.rows(1),
)
TIMES_US = 1_000_003, 1_000_004
TERM = 1, 2


def frames() -> list[Frame]:
    """Rows of an idempotent producer, and acks."""
    sequences = ProducerRange("p", 4, 5, 7, 2, 0)
    sink = ROWS.serialize()
    acks = msgspec.msgpack.encode(Acks("s", 1, 2, ((1, 4),)))
    return [
        Frame(FrameKind.ROWS, "flights", 3, 7, 2, 1, 0, (sequences,), TIMES_US[0], sink, TERM),
        Frame(FrameKind.ACKS, "flights", 3, 0, 0, 0, 0, (), TIMES_US[1], acks),
    ]


def tables() -> bytes:
    """The producer tables of a segment of two parts."""
    low, high = KeyRange(0, KEY_SPACE).cut((KEY_SPACE // 2,))
    used = ProducerTable(3, low)
    used.record("p", 4, 5, 7, 2, TIMES_US[0])
    return ProducerTables([used, ProducerTable(3, high)]).encode(levels.LOWEST)


def metadata() -> EntryMetadata:
    """The metadata of the entry that seals the segment."""
    half = KEY_SPACE // 2
    return EntryMetadata(
        cluster="ab" * 16,
        topic="flights",
        segment=3,
        low=0,
        high=KEY_SPACE,
        sequence=1,
        first_offset=7,
        next_offset=9,
        broker=BROKER,
        nonce=NONCE,
        schema_id=0,
        appended_us=1_000_005,
        max_timestamp_us=1_000_002,
        producers=tables(),
        seal=Seal(
            (4, 5),
            ((0, half), (half, KEY_SPACE)),
            SealedIntent(4, (3,), (SealedSuccessor(4, 0, half), SealedSuccessor(5, half, KEY_SPACE))),
        ),
        term=TERM,
        owner=BROKER,
        since=5,
    )


def calls() -> dict[str, Any]:
    """Calls between brokers, each in hex by its name."""
    segment = ("flights", 1, 3)
    load = SegmentLoad(observed_s=3.0)
    found: dict[str, Any] = {
        "TopicCall": TopicCall("flights", 1, True, False),
        "EndsCall": EndsCall("flights", 1, {3: 9}, 2.5),
        "SegmentCall": SegmentCall(*segment, 7, 100, 1000, 5),
        "GiveCall": GiveCall(*segment, "b2.6a"),
        "BrokerStatus": BrokerStatus(5, 6, 7, 8, 9.5, 10.5, 11.5, 3, "b2"),
        "LoadReport": LoadReport([(segment, load, (9, 2, 30))], [(("flights", 1, 4), 2.0)], Utilization(0.5, 0.25)),
        "SegmentRows": SegmentRows(9, [(7, 1, b"rows")], 2),
        "Outcome": messages.Outcome(3, 7, True),
        "ErrorMessage": ErrorMessage.from_error(NotOwner("said", owner="b2.6a", inside="inside")),
    }
    rows = ROWS.serialize()
    header = messages.ForwardHeader("flights", 1, 3, 0, 1, "~forward.b1.5f.3.0", 4, 5, rows.size, 6, 2)
    forward = messages.encode_forward([messages.ForwardFrame(header, rows)])
    encoded = {name: msgspec.msgpack.encode(one).hex() for name, one in found.items()}
    return encoded | {"forward": bytes(forward).hex()}


def state() -> State:
    """A snapshot of a few keys."""
    return State(3, 12, 4_567, {"cluster": b"{}", "tokens/t": b'{"digest":"d"}', "topics/a": b"any bytes: \xff"})


def change() -> AdminChange:
    """An administrative change: a key written, a key deleted."""
    return AdminChange(3, 4_568, (("tokens/t", None), ("topics/a", b"{}")))


def main() -> None:
    """Writes all of them."""
    slots = (
        SlotHeader(SlotKind.DATA, BROKER, 20, NONCE, 17, 19, commits=25),
        SlotHeader(SlotKind.FENCE, BROKER, 21, NONCE, 17),
    )
    file = FileHeader(bytes.fromhex(NONCE), 2, 999, 20)
    commit = b"".join(map(bytes, encode_commit(file.file_id, 20, frames())[0]))
    identity = Identity("ab" * 16, 1, datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "cd" * 16)
    for name, data in {
        "slot.bin": encode_slot(slots[0], frames()),
        "fence.bin": encode_slot(slots[1], ()),
        "commits.journal": file.encode(levels.LOWEST) + commit,
        "tables.bin": tables(),
        "metadata.json": msgspec.json.encode(metadata()),
        "entry.parquet": bytes(memoryview(encode_entry([(7, ROWS)], LAYOUT, metadata()))),
        "cluster.json": msgspec.json.encode(identity),
        "snapshot.bin": encode_state(state(), SEALER, levels.LOWEST),
        "change.bin": encode_change(change(), SEALER, levels.LOWEST),
        "generation.json": msgspec.json.encode(Generation(3, NONCE)),
        "calls.json": json.dumps(calls(), indent=1).encode() + b"\n",
    }.items():
        (FIRST / name).write_bytes(data)


if __name__ == "__main__":
    main()
