"""Microseconds a message for each way through the bodies, beside a limit measured in the same run.

    python benchmarks/bodies.py [--messages 10000]

The limits: msgspec's bare `decode_lines` into the envelope, and a bare Arrow IPC read, each over the same bytes.
"""

import argparse
import base64
import json
import time
from collections.abc import Callable

import msgspec
import pyarrow as pa

from seaweedq.api import answers, bodies, envelopes
from seaweedq.api.intake import Intake
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import rows_of_singles

NOW_US = 1_790_000_000_000_000
FIELDS = pa.schema([pa.field("carrier", pa.string()), pa.field("delay", pa.int64()), pa.field("pad", pa.string())])


def best_us(work: Callable[[], object], messages: int, repeats: int = 15) -> float:
    """The best of some runs, in microseconds a message."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) / messages * 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000)
    count = parser.parse_args().messages
    layouts = {format: Layout.of(format, FIELDS) for format in Format}
    intake = {format: Intake(layout, None, 1 << 20, NOW_US, 1 << 30) for format, layout in layouts.items()}
    keyed = Intake(layouts[Format.JSON], "carrier", 1 << 20, NOW_US)

    values = [b'{"carrier":"UA","delay":%d,"pad":"%s"}' % (i, b"x" * 40) for i in range(count)]
    lines = [b'{"key":"k%06d","value":%b}' % (i, value) for i, value in enumerate(values)]
    body = b"\n".join(lines)
    batch = b'{"messages":[%b]}' % b",".join(lines)
    encoded = b"\n".join(b'{"value_base64":"%b"}' % base64.b64encode(value) for value in values)
    spoiled = body + b"\n\n"  # an empty line is all that it takes to leave nothing to the good path
    spoiled = spoiled.replace(b"\n", b"\n\n", 1)
    rows = bodies.decode_ndjson(body, intake[Format.JSON])
    raw_rows = bodies.decode_ndjson(encoded, intake[Format.BYTES])
    typed_rows = bodies.decode_ndjson(body, intake[Format.TYPED])
    streams = {name: stream_of(each) for name, each in (("json", rows), ("bytes", raw_rows), ("typed", typed_rows))}
    singles = [bodies.decode_single(line, intake[Format.JSON]) for line in lines]
    bare_lines = msgspec.json.Decoder(envelopes.Envelope)

    print(f"{count} messages of {len(body) // count} bytes a line; µs a message, best of several runs\n")
    for name, work in {
        "limit: bare decode_lines": lambda: bare_lines.decode_lines(body),
        "NDJSON to json rows": lambda: bodies.decode_ndjson(body, intake[Format.JSON]),
        "  with key_field": lambda: bodies.decode_ndjson(b"\n".join(b'{"value":%b}' % v for v in values), keyed),
        "  bare": lambda: bodies.decode_ndjson(b"\n".join(values), intake[Format.JSON], bare=True),
        "  the slow path": lambda: bodies.decode_ndjson(spoiled, intake[Format.JSON]),
        "NDJSON to bytes rows": lambda: bodies.decode_ndjson(encoded, intake[Format.BYTES]),
        "NDJSON to typed rows": lambda: bodies.decode_ndjson(body, intake[Format.TYPED]),
        "JSON batch to json rows": lambda: bodies.decode_json(batch, intake[Format.JSON]),
        "decode_single": lambda: [bodies.decode_single(line, intake[Format.JSON]) for line in lines],
        "rows_of_singles": lambda: rows_of_singles(singles, layouts[Format.JSON]),  # type: ignore[arg-type]
        "rows_of_singles, 64 a batch": lambda: [
            rows_of_singles(singles[at : at + 64], layouts[Format.JSON])  # type: ignore[arg-type]
            for at in range(0, count, 64)
        ],
        "limit: bare IPC read (json)": lambda: pa.ipc.open_stream(streams["json"]).read_all(),
        "Arrow to json rows": lambda: bodies.decode_arrow(streams["json"], intake[Format.JSON]),
        "Arrow to bytes rows": lambda: bodies.decode_arrow(streams["bytes"], intake[Format.BYTES]),
        "Arrow to typed rows": lambda: bodies.decode_arrow(streams["typed"], intake[Format.TYPED]),
        "limit: json.dumps of the values": lambda: json.dumps(values and [v.decode() for v in values]),
        "answer of json rows": lambda: answers.encode_messages([(0, rows)], 3, layouts[Format.JSON], None),
        "answer of json rows, attempts": lambda: answers.encode_messages([(0, rows)], 3, layouts[Format.JSON], {7: 2}),
        "answer of bytes rows": lambda: answers.encode_messages([(0, raw_rows)], 3, layouts[Format.BYTES], None),
        "answer of typed rows": lambda: answers.encode_messages([(0, typed_rows)], 3, layouts[Format.TYPED], None),
    }.items():
        print(f"{name:34s}{best_us(work, count):8.3f}")


def stream_of(rows: pa.RecordBatch) -> bytes:
    """Rows as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


if __name__ == "__main__":
    main()
