"""Files made to harm their reader: a precise refusal, nothing taken, and a broker that goes on in little memory."""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.http.uploading_files import arrow, numbered, parquet

pytestmark = pytest.mark.process

MIB = 1024 * 1024
PLAIN = {"compression": "none", "use_dictionary": False, "write_statistics": False}


def footer_length(data: bytes, length: int) -> bytes:
    return data[:-8] + struct.pack("<I", length) + data[-4:]


def in_footer(data: bytes, old: bytes, new: bytes) -> bytes:
    """The file with other bytes of the same length in its footer."""
    start = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    assert old in data[start:]
    assert len(old) == len(new)
    return data[:start] + data[start:].replace(old, new)


def varint(number: int) -> bytes:
    """As thrift's compact protocol has an i64."""
    number, made = number << 1, b""
    while number > 127:
        made, number = made + bytes([number & 127 | 128]), number >> 7
    return made + bytes([number])


def more_rows_than_there_are() -> bytes:
    data = parquet(numbered(10_000), **PLAIN)
    return in_footer(data, varint(10_000), varint(16_000))


def values_of(column: pa.Array) -> bytes:
    return parquet(pa.table({"value": column}))


def not_text() -> bytes:
    column = pa.array([b"\xff\xfe", b"{}"]).view(pa.string())
    return values_of(column)


def bomb(rows: int) -> bytes:
    """Rows of half a MiB each in a file of some KiB: one text in a dictionary, taken many times."""
    text = '"' + "x" * (MIB // 2) + '"'
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))
    return parquet(pa.table({"value": column}))


def lying_offsets() -> bytes:
    """An Arrow stream whose text column points outside of its bytes."""
    data = arrow(pa.table({"value": ['"aaaaaaaa"', '"bbbbbbbbb"']}))
    honest, lying = struct.pack("<3i", 0, 10, 21), struct.pack("<3i", 0, 10, 2**31 - 1)
    assert data.count(honest) == 1
    return data.replace(honest, lying)


def lying_buffer() -> bytes:
    """A compressed buffer that says it has ten GiB."""
    data = bytearray(arrow(numbered(10_000), options=pa.ipc.IpcWriteOptions(compression="zstd")))
    at = data.index(b"\x28\xb5\x2f\xfd") - 8
    data[at : at + 8] = struct.pack("<q", 10 * 1024**3)
    return bytes(data)


def deep_columns() -> bytes:
    kind = pa.int32()
    for _ in range(60):
        kind = pa.list_(kind)
    return parquet(pa.table({"value": pa.array([None], kind)}))


def many_columns() -> bytes:
    return parquet(pa.table({f"c{n}": pa.array([1]) for n in range(20_000)}))


def endless_line() -> bytes:
    return b'{"value":"' + b"x" * (40 * MIB)


def twice() -> bytes:
    table = pa.Table.from_arrays([pa.array(["{}"]), pa.array(["{}"])], names=["value", "value"])
    return parquet(table)


def scrambled(seed: int) -> bytes:
    data = bytearray(parquet(numbered(1000)))
    for at in np.random.default_rng(seed).integers(4, len(data) - 8, 20):
        data[at] ^= 0xFF
    return bytes(data)


# Data, or the function that makes what takes long or much memory.
REFUSED: dict[str, tuple[bytes | Callable[[], bytes], str, str]] = {
    "no parquet": (b"PAR1" + b"x" * 100 + b"PAR1", "parquet", "invalid-import"),
    "empty footer": (b"PAR1\x00\x00\x00\x00PAR1", "parquet", "invalid-import"),
    "cut off": (parquet(numbered(1000))[:-100], "parquet", "invalid-import"),
    "a footer of 4 GiB": (footer_length(parquet(numbered(10)), 2**32 - 1), "parquet", "invalid-import"),
    "more rows than there are": (more_rows_than_there_are(), "parquet", "invalid-import"),
    "no rows": (parquet(numbered(5).slice(0, 0)), "parquet", "invalid-import"),
    "not UTF-8": (not_text(), "parquet", "invalid-import"),
    "twice": (twice(), "parquet", "invalid-request"),
    "another column": (parquet(pa.table({"value": ["{}"], "other": [1]})), "parquet", "invalid-request"),
    "no value": (parquet(pa.table({"_key": ["a"]})), "parquet", "invalid-request"),
    "numbers": (parquet(pa.table({"value": [1.5]})), "parquet", "invalid-request"),
    "offsets": (parquet(pa.table({"value": ["{}"], "_offset": [1]})), "parquet", "invalid-request"),
    "references": (parquet(pa.table({"value": ["{}"], "_reference": ["x"]})), "parquet", "invalid-request"),
    "deep": (deep_columns(), "parquet", "invalid-import"),
    "many columns": (many_columns, "parquet", "invalid-request"),
    "NaN": (values_of(pa.array(["1", "NaN"])), "parquet", "invalid-messages"),
    "a null": (values_of(pa.array(["1", None])), "parquet", "invalid-messages"),
    "too large": (values_of(pa.array(['"' + "x" * (2 * MIB) + '"'])), "parquet", "invalid-messages"),
    "arrow, not": (b"ARROW1\x00\x00" + b"\xff" * 100, "arrow", "invalid-import"),
    "arrow, cut off": (arrow(numbered(10_000))[:-5000], "arrow", "invalid-import"),
    "arrow, lying offsets": (lying_offsets(), "arrow", "invalid-import"),
    "arrow, lying buffer": (lying_buffer(), "arrow", "invalid-import"),
    "arrow, empty": (b"\x00" * 8, "arrow", "invalid-import"),
    "no lines": (b"\n\n  \n", "ndjson", "invalid-import"),
    "no JSON": (b"\x00\x01\x02", "ndjson", "invalid-messages"),
    "one endless line": (endless_line, "ndjson", "invalid-import"),
    "parquet as lines": (parquet(numbered(10)), "ndjson", "invalid-messages"),
    "deep JSON": (b'{"value":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "ndjson", "invalid-messages"),
    "an unknown field": (b'{"value":1,"x":2}\n', "ndjson", "invalid-messages"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(importer, name):
    data, format, problem = REFUSED[name]
    importer.make()
    answer = importer.take(data() if callable(data) else data, format)
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == f"/problems/{problem}"
    assert len(answer.json()["detail"]) > 10
    assert importer.messages() == []


@pytest.mark.parametrize("seed", range(8))
def test_scrambled_bytes_are_refused_or_read(importer, seed):
    importer.make()
    answer = importer.take(scrambled(seed))
    assert answer.status_code in (200, 422), answer.text


@pytest.mark.long
def test_a_dictionary_that_expands_too_far_is_refused(importing_broker, importer):
    importer.make()
    answer = importer.take(bomb(20_000))
    assert answer.status_code == 422
    assert answer.json()["type"] == "/problems/invalid-import"
    assert resident(importing_broker.process.pid) < 600 * MIB
    assert importer.take(parquet(numbered(3))).status_code == 200


@pytest.mark.long
def test_one_text_many_times_is_taken_in_little_memory(importing_broker, importer):
    importer.make()
    before = resident(importing_broker.process.pid)
    answer = importer.take(bomb(400))
    assert answer.status_code == 200, answer.text
    assert answer.json()["count"] == 400
    assert resident(importing_broker.process.pid) < before + 400 * MIB


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
