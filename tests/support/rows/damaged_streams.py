"""Valid Arrow streams of many shapes, and damage to their bytes."""

import pyarrow as pa

from seaweedq.segments.layout import HEADERS, TIMESTAMP
from tests.support.rows.body_samples import NOW_US, intake, stream


def rich_table() -> pa.Table:
    return pa.table(
        {
            "value": pa.array(["1", '{"a":2}', '"a text that fits no view"']).dictionary_encode(),
            "_key": pa.array(["a", None, "a key that fits no view"], pa.string_view()),
            "_timestamp": pa.array([NOW_US, None, 0], TIMESTAMP),
            "_headers": pa.array([None, [("a", "b")], []], HEADERS),
            "_expires": pa.array([None, None, 1], pa.timestamp("s", "UTC")),
        }
    )


TYPED = pa.table(
    {
        "small": pa.array([1, 2, 3], pa.int32()),
        "price": pa.array([1, None, 3], pa.decimal128(10, 2)),
        "day": pa.array([1, None, 3], pa.date32()),
        "clock": pa.array([1, None, 3], pa.time64("us")),
        "local": pa.array([1, None, 3], pa.timestamp("ns")),
        "code": pa.array([b"abc", None, b"def"], pa.binary(3)),
    }
)
VALID = [
    (stream(rich_table()), intake(key_field="a")),
    (stream(rich_table(), "zstd"), intake()),
    (stream(rich_table(), "lz4"), intake("bytes")),
    (stream(TYPED), intake("typed", "day")),
    (stream(pa.concat_tables([rich_table()] * 3)), intake()),
]


def damaged(body: bytes, flips: list[tuple[int, int]]) -> bytes:
    octets = bytearray(body)
    for place, octet in flips:
        octets[place % len(octets)] = octet
    return bytes(octets)
