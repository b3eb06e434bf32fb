"""Frames as hypothesis draws them: all kinds, all formats, any mask of optional columns, payloads of any length."""

from datetime import UTC, datetime

import pyarrow as pa
from hypothesis import strategies as st

from seaweedq.segments.frames import Frame, FrameKind, ProducerRange
from seaweedq.segments.layout import OPTIONAL_FIELDS, Format, Layout, mask_of

LAYOUTS = [
    Layout.from_format(Format.JSON),
    Layout.from_format(Format.BYTES),
    Layout.from_format(
        Format.TYPED, pa.schema([("delay", pa.int64()), ("tags", pa.list_(pa.string())), ("when", pa.date32())])
    ),
]
INTEGERS = st.integers(0, 2**62)
RANGES = st.builds(ProducerRange, st.text("añ😀-", max_size=8), INTEGERS, INTEGERS, INTEGERS, INTEGERS, INTEGERS)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
_VALUES = {
    "_timestamp": st.just(NOON),
    "_key": st.none() | st.text("kü", max_size=5),
    "_headers": st.none() | st.lists(st.tuples(st.text("h", max_size=2), st.text("v", max_size=2)), max_size=2),
    "_expires": st.none() | st.just(NOON),
    "_reference": st.none() | st.just({"uri": "u", "size": 1, "content_type": None, "sha256": "s"}),
    "delay": st.none() | st.integers(-(2**63), 2**63 - 1),
    "tags": st.none() | st.lists(st.none() | st.text("t", max_size=2), max_size=3),
    "when": st.none() | st.just(NOON.date()),
}


@st.composite
def rows(draw: st.DrawFn, layout: Layout) -> pa.RecordBatch:
    """Rows as they go into a frame, sometimes a slice of a longer batch."""
    schema = layout.rows(draw(st.integers(0, 2 ** len(OPTIONAL_FIELDS) - 1)))
    value = st.text("v😀", max_size=9) if layout.format is Format.JSON else st.binary(max_size=9)
    count, skipped = draw(st.integers(0, 5)), draw(st.integers(0, 2))
    columns = []
    for field in schema:
        values = st.lists(_VALUES.get(field.name, value), min_size=count + skipped, max_size=count + skipped)
        columns.append(pa.array(draw(values), field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema).slice(skipped)


def rows_frame(batch: pa.RecordBatch, first_offset: int = 0, segment: int = 0) -> Frame:
    return Frame(
        kind=FrameKind.ROWS,
        topic="flights",
        segment=segment,
        first_offset=first_offset,
        count=batch.num_rows,
        columns=mask_of(batch),
        schema_id=0,
        ranges=(),
        append_time_us=1_700_000_000_000_000,
        payload=batch.serialize(),
    )


FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    topic=st.text("flights.-", min_size=1, max_size=9),
    segment=INTEGERS,
    first_offset=INTEGERS,
    count=INTEGERS,
    columns=st.integers(0, 15),
    schema_id=INTEGERS,
    ranges=st.lists(RANGES, max_size=3).map(tuple),
    append_time_us=INTEGERS,
    payload=st.binary(max_size=40) | st.binary(max_size=9).map(memoryview) | st.binary(max_size=9).map(pa.py_buffer),
)
COMMITS = st.lists(st.lists(FRAMES, max_size=3), max_size=4)


def plain(frame: Frame) -> tuple[object, ...]:
    """A frame's content, comparable whatever buffer its payload is in."""
    return tuple(
        bytes(v) if n == "payload" else v for n, v in zip(frame.__struct_fields__, _values(frame), strict=True)
    )


def _values(frame: Frame) -> list[object]:
    return [getattr(frame, name) for name in frame.__struct_fields__]
