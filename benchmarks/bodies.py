"""Each way through the bodies, in this process, beside bare decoding or reading of the same bytes."""

import base64
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from benchmarks.result import Result
from seaweedq.rows import bodies, envelopes
from seaweedq.rows import message_json as answers
from seaweedq.rows.arrow_bodies import decode_arrow
from seaweedq.rows.envelopes import Envelope
from seaweedq.rows.intake import Intake
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import rows_of_singles

LINES, READ, TEXT = "bare decode_lines", "bare IPC read", "json.dumps of the values"
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


def measure(folder: Path) -> Iterator[Result]:
    """Each way, the best of several runs. Nothing is written."""
    count = 10_000
    layouts = {format: Layout.from_format(format, FIELDS) for format in Format}
    intake = {format: Intake(layout, None, 1 << 20, NOW_US, 1 << 30).at(NOW_US) for format, layout in layouts.items()}
    keyed = Intake(layouts[Format.JSON], "carrier", 1 << 20, NOW_US).at(NOW_US)

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
    unkeyed, bare = b"\n".join(b'{"value":%b}' % value for value in values), b"\n".join(values)
    singles = [envelopes.decode_single(line, intake[Format.JSON]) for line in lines]
    bare_lines = msgspec.json.Decoder(Envelope)

    lines_us = best_us(lambda: bare_lines.decode_lines(body), count)
    read_us = best_us(lambda: pa.ipc.open_stream(streams["json"]).read_all(), count)
    text_us = best_us(lambda: json.dumps([value.decode() for value in values]), count)
    ways: dict[str, tuple[Callable[[], object], float, str]] = {
        "NDJSON to json": (lambda: bodies.decode_ndjson(body, intake[Format.JSON]), lines_us, LINES),
        "NDJSON to json, key_field": (lambda: bodies.decode_ndjson(unkeyed, keyed), lines_us, LINES),
        "NDJSON to json, bare": (lambda: bodies.decode_ndjson(bare, intake[Format.JSON], bare=True), lines_us, LINES),
        "NDJSON to json, slow path": (lambda: bodies.decode_ndjson(spoiled, intake[Format.JSON]), lines_us, LINES),
        "NDJSON to bytes": (lambda: bodies.decode_ndjson(encoded, intake[Format.BYTES]), lines_us, LINES),
        "NDJSON to typed": (lambda: bodies.decode_ndjson(body, intake[Format.TYPED]), lines_us, LINES),
        "JSON batch to json": (lambda: bodies.decode_json(batch, intake[Format.JSON]), lines_us, LINES),
        "singles decoded": (
            lambda: [envelopes.decode_single(line, intake[Format.JSON]) for line in lines],
            lines_us,
            LINES,
        ),
        "singles to rows, 64 a batch": (lambda: in_batches(singles, layouts[Format.JSON]), lines_us, LINES),
        "Arrow to json": (lambda: decode_arrow(streams["json"], intake[Format.JSON]), read_us, READ),
        "Arrow to bytes": (lambda: decode_arrow(streams["bytes"], intake[Format.BYTES]), read_us, READ),
        "Arrow to typed": (lambda: decode_arrow(streams["typed"], intake[Format.TYPED]), read_us, READ),
        "answer, json": (lambda: answer(rows, layouts[Format.JSON]), text_us, TEXT),
        "answer, bytes": (lambda: answer(raw_rows, layouts[Format.BYTES]), text_us, TEXT),
        "answer, typed": (lambda: answer(typed_rows, layouts[Format.TYPED]), text_us, TEXT),
    }
    for name, (work, limit, limit_is) in ways.items():
        figure = best_us(work, count)
        yield Result(name=name, figure=figure, unit="µs/msg", limit=limit, limit_is=limit_is, better="lower")


def in_batches(singles: list[Any], layout: Layout) -> None:
    """As the group commit puts singles together."""
    for at in range(0, len(singles), 64):
        rows_of_singles(singles[at : at + 64], layout)


def answer(rows: pa.RecordBatch, layout: Layout) -> bytes:
    """A fetch's array."""
    return answers.encode_messages([(0, rows)], 3, layout)[0]


def stream_of(rows: pa.RecordBatch) -> bytes:
    """Rows as an IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
