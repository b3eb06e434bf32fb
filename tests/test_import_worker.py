"""The child process that reads a file: the same rows from wherever it begins, bounds that hold, lies of its own; and
files made to harm it: a precise refusal, nothing taken, and a broker that goes on in little memory.
"""

import asyncio
import os
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from seaweedq import import_worker
from seaweedq.broker.imports.reader_process import ReaderDied, ReaderProcess
from seaweedq.broker.imports.reader_protocol import BATCH_BYTES, Job
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.schema import encode_fields
from tests.support.http.uploading_files import arrow, numbered, parquet

pytestmark = pytest.mark.process

LAYOUT = Layout.from_format(Format.JSON)
GIB = 1024**3


class Given:
    """A file in the hands of a reader."""

    def __init__(self, data: bytes, format: str, **job) -> None:
        self.data, self.format, self.job = data, format, job
        self.command, self.layout = import_worker.COMMAND, LAYOUT

    async def __aenter__(self) -> ReaderProcess:
        with tempfile.TemporaryFile() as file:
            file.write(self.data)
            file.flush()
            stated = {
                "bare": False,
                "columns": None,
                "topic_format": "json",
                "key_field": None,
                "now_us": 1000,
                "max_message_bytes": 2**20,
                "memory_bytes": 3 * GIB // 2,
                "batch_rows": 1000,
                "check": False,
                "first_row": 0,
                **self.job,
            }
            job = Job(format=self.format, file=file.fileno(), size=len(self.data), **stated)
            self.reader = await ReaderProcess.start(self.command, job, self.layout)
        return self.reader

    async def __aexit__(self, *_) -> None:
        await self.reader.close()


async def batches(given: Given) -> list[pa.RecordBatch]:
    found = []
    async with given as reader:
        while True:
            told, rows = await reader.next_rows()
            if rows is None:
                assert told.kind == "ended", told
                return found
            found.append(rows)


def lines(count: int) -> bytes:
    return b"".join(b'{"key":"k%d","value":{"n":%d}}\n' % (n % 10, n) for n in range(count))


@pytest.mark.parametrize("format", ["parquet", "arrow", "ndjson"])
async def test_the_same_batches_from_wherever_it_begins(format):
    count = 300_000 if format != "ndjson" else 20_000
    data = {"parquet": lambda: parquet(numbered(count), row_group_size=70_001), "arrow": lambda: arrow(numbered(count))}
    file = data[format]() if format in data else lines(count)
    whole = await batches(Given(file, format, batch_rows=3000))
    assert [rows.num_rows for rows in whole] == [3000] * (count // 3000) + ([count % 3000] if count % 3000 else [])
    table = pa.Table.from_batches(whole)
    assert table["_timestamp"].cast(pa.int64()).unique().to_pylist() == [1000]
    assert table.select(["value", "_key"]).equals(numbered(count))
    later = await batches(Given(file, format, batch_rows=3000, first_row=count // 6000 * 3000))
    assert pa.Table.from_batches(later).equals(pa.Table.from_batches(whole[count // 6000 :]))


async def test_rows_are_given_only_once_they_were_checked_and_asked_for():
    async with Given(parquet(numbered(2500)), "parquet", check=True) as reader:
        while (told := await reader.next_message()).kind == "seen":
            assert 0 <= told.rows <= 2500
        assert (told.kind, told.rows) == ("checked", 2500)
        await reader.request_rows()
        told, rows = await reader.next_rows()
        assert told.rows == rows.num_rows == 1000


async def test_a_bound_on_memory_holds():
    column = pa.array(['"' + "x" * (300 * 2**20) + '"'], pa.large_string())
    file = parquet(pa.table({"value": column}), compression="zstd", write_statistics=False)
    assert len(file) < 2**20
    async with Given(file, "parquet", memory_bytes=300 * 2**20, check=True) as reader:
        told = await reader.next_message()
        assert told.kind == "refused"
        assert "memory" in told.problem.detail or "malloc" in told.problem.detail


@pytest.mark.long
async def test_what_stands_for_far_more_than_it_has_is_refused():
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), pa.array(['"' + "x" * 2**19 + '"']))
    async with Given(parquet(pa.table({"value": column})), "parquet", check=True) as reader:
        while (told := await reader.next_message()).kind == "seen":
            pass
        assert told.kind == "refused"
        assert "expands to" in told.problem.detail


async def test_rows_of_many_short_texts_come_in_batches_that_are_taken():
    """What Arrow needs beside the texts counts, or nobody would take the batch."""
    names = [f"c{n}" for n in range(60)]
    schema = pa.schema([pa.field(name, pa.string()) for name in names])
    given = Given(
        parquet(pa.table([pa.array(["ab"] * 131_072)] * 60, schema=schema)),
        "parquet",
        topic_format="typed",
        columns=encode_fields(schema),
        batch_rows=131_072,
    )
    given.layout = Layout.from_format(Format.TYPED, schema)
    found = await batches(given)
    assert sum(rows.num_rows for rows in found) == 131_072
    assert max(rows.nbytes for rows in found) <= 2 * BATCH_BYTES


async def test_one_that_is_killed_is_dead():
    async with Given(parquet(numbered(100_000)), "parquet") as reader:
        os.kill(reader.pid, 9)
        with pytest.raises(ReaderDied, match="signal 9"):
            await _to_the_end(reader)


async def _to_the_end(reader: ReaderProcess) -> None:
    while True:
        await reader.next_rows()


LIES = {
    "nothing": "pass",
    "noise": "out(b'\\xff' * 100)",
    "a head without end": "out((2**31).to_bytes(4, 'little'))",
    "no JSON": "out((4).to_bytes(4, 'little') + b'{{{{')",
    "far too many bytes": "tell(ReaderMessage('rows', rows=10, size=2**40))",
    "bytes that are no batch": "tell(ReaderMessage('rows', rows=10, size=100)); out(b'x' * 100)",
    "more rows than it said": "send(pa.record_batch({'value': ['1', '2']}), 1)",
    "other columns": "send(pa.record_batch({'value': ['1']}), 1)",
    "no batch": "stream([], 1)",
    "far too many bytes once decompressed": "stream([pa.record_batch({'value': ['x' * 2**26]}, ROWS)], 1, 'zstd')",
}
LIAR = """
import sys, pyarrow as pa
from seaweedq.broker.imports.reader_protocol import ReaderMessage, head
ROWS = pa.schema([('value', pa.string())])
def out(data):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
def tell(told): out(head(told))
def send(batch, rows): stream([batch], rows)
def stream(batches, rows, compression=None):
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema if batches else ROWS, options=options) as writer:
        for batch in batches: writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    tell(ReaderMessage('rows', rows=rows, size=len(data)))
    out(data)
"""


@pytest.mark.parametrize("lie", LIES)
async def test_one_that_lies_is_dead(lie):
    given = Given(b"", "parquet")
    given.command = (sys.executable, "-c", LIAR + LIES[lie])
    async with given as reader:
        with pytest.raises(ReaderDied) as died:
            await asyncio.wait_for(reader.next_rows(), 20)
    assert "decompressed" in str(died.value) or "decompressed" not in lie


async def test_it_has_no_files_sockets_or_secrets(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    looks = """
import os, socket, sys, threading
from seaweedq import import_worker
from seaweedq.broker.imports.reader_protocol import ImportProblem, ReaderMessage
def looked(job, asked):
    found = ["secret"] if "AWS_SECRET_ACCESS_KEY" in os.environ else []
    try:
        kept = [socket.socket() for _ in range(20)]
        found.append("sockets")
    except OSError: pass
    import_worker.send_message(ReaderMessage("refused", problem=ImportProblem("x", ",".join(found))))
import_worker.read_files = looked
import_worker.main()
"""
    given = Given(b"x", "parquet")
    given.command = (sys.executable, "-c", looks)
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(30)]  # so that the file has a high number
    try:
        async with given as reader:
            told = await reader.next_message()
    finally:
        for other in others:
            os.close(other)
    assert told.kind == "refused"
    assert told.problem.detail == ""


async def test_a_start_that_is_given_up_leaves_nothing():
    given = Given(parquet(numbered(10)), "parquet")
    given.command = ["sleep", "100"]
    files, processes = {*os.listdir("/proc/self/fd")}, {*children()}  # what other tests have left may go meanwhile
    starting = asyncio.create_task(given.__aenter__())
    await asyncio.sleep(0)  # it has asked a thread for the process, and has none yet
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    async with asyncio.timeout(20):
        while not files >= {*os.listdir("/proc/self/fd")} or not processes >= {*children()}:
            await asyncio.sleep(0.01)


def children() -> list[str]:
    """Of all threads; other tests may have some too."""
    found = [pid for tasks in Path("/proc/self/task").glob("*/children") for pid in tasks.read_text().split()]
    return sorted(found)


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
    "two files": (parquet(numbered(2)) + parquet(numbered(2, first=2)), "parquet", "invalid-import"),
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
    "arrow, two streams": (arrow(numbered(2)) * 2, "arrow", "invalid-import"),
    "arrow, bytes behind the end": (arrow(numbered(2)) + b"\x00", "arrow", "invalid-import"),
    "arrow, two files": (arrow(numbered(2), file=True) * 2, "arrow", "invalid-import"),
    "arrow, a file and a stream": (arrow(numbered(2), file=True) + arrow(numbered(2)), "arrow", "invalid-import"),
    "arrow, a file without its end": (arrow(numbered(2), file=True)[:-1], "arrow", "invalid-import"),
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


def test_of_many_invalid_rows_so_many_are_named_and_no_number_is_a_lie(importer):
    importer.make()
    answer = importer.take(b"x\n" * 5000, "ndjson").json()
    assert (len(answer["errors"]), answer["invalid"]) == (100, 100)
    assert answer["detail"].startswith("at least 100 messages are not valid")


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
