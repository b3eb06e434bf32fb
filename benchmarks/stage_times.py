"""The program that `benchmarks.stages` runs over each tree: prints a JSON object of nanoseconds a message.

It asks for the functions by their names where they are used, and leaves a stage out that has another form in a tree.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import seaweedq

SIZES = (1_000, 10_000, 100_000)
SEGMENTS, READ_BYTES, LEAST_S = 4, 256 * 1024, 0.25
NOW_US = 1_790_000_000_000_000
KEY_SPACE = 2**31 - 1


IS_OWN = Path(seaweedq.__file__).parents[1] == Path(__file__).parents[1]  # whose stages are all to be measured


def the(*paths: str) -> Any:
    """A name of a module, `module:name`: of its places, newest first, the one that the tree has."""
    for path in paths:
        module, name = path.split(":")
        with suppress(ImportError, AttributeError):
            return getattr(import_module(f"seaweedq.{module}"), name)
    raise ImportError(f"none of {paths}")


def cpu_ns(work: Callable[[], object], messages: int) -> float:
    """The best of the repeats within LEAST_S, at least of three."""
    work()
    times: list[int] = []
    begun = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - begun < LEAST_S:
        before = time.process_time_ns()
        work()
        times.append(time.process_time_ns() - before)
    return min(times) / messages


class Stages:
    """The stages of requests of so many rows, each with what the one before it gives."""

    def __init__(self, count: int, folder: Path) -> None:
        self.count, self.folder = count, folder
        layout = the("segments.layout:Layout")
        made = getattr(layout, "from_format", None) or layout.of
        self.layout = made(the("segments.layout:Format").BYTES)
        intake = the("rows.intake:Intake", "codec.intake:Intake")
        self.intake = intake(self.layout, None, 1 << 20, NOW_US, 1 << 30).at(NOW_US)
        keys = pa.array([f"key-{row:08d}" for row in range(count)])
        batch = pa.record_batch([keys, pa.array([os.urandom(100) for _ in range(count)])], ["_key", "value"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self.body = sink.getvalue().to_pybytes()
        self.lows = np.arange(SEGMENTS, dtype=np.int32) * (KEY_SPACE // SEGMENTS)
        self.rows = self._decode()
        self.hashes = self._hash()
        self.cut = self._take()
        self.encoded = self._serialize()

    def times(self) -> dict[str, float]:
        """Nanoseconds a message by stage."""
        stages: dict[str, Callable[[], Callable[[], object]]] = {
            "receive": self._receiving,
            "decode": lambda: self._decode,
            "hash": lambda: self._hash,
            "take": lambda: self._take,
            "serialize": lambda: self._serialize,
            "CRC": lambda: self._crc,
            "write": self._writing,
            "encode": lambda: self._encode,
            "write_table": lambda: self._write_table,
        }
        found = {}
        with asyncio.Runner() as self.runner:
            for name, prepare in stages.items():
                try:
                    found[f"{name} of {self.count:,}"] = cpu_ns(prepare(), self.count)
                except (ImportError, AttributeError, TypeError):
                    if IS_OWN:
                        raise
        return found

    def _receiving(self) -> Callable[[], None]:
        """The body as it comes out of reads, through the request reader."""
        clock, budget = the("clock:SystemClock")(), the("broker.log.memory_budget:Budget")(1 << 30)
        of = the("api.connections.request_reader:RequestReader", "api.bodies.request_reader:RequestReader").of
        refusals = the("api.problems:Refusals", "api.refusals:Refusals")
        reader = of(the("settings:Settings")(), budget, clock, refusals(clock))
        headers = [(b"content-type", b"application/x"), (b"content-length", b"%d" % len(self.body))]
        pieces = [self.body[at : at + READ_BYTES] for at in range(0, len(self.body), READ_BYTES)]

        async def received() -> None:
            messages = iter(enumerate(pieces, 1))

            async def receive() -> dict[str, Any]:
                number, piece = next(messages)
                return {"type": "http.request", "body": bytes(memoryview(piece)), "more_body": number < len(pieces)}

            scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
            async with reader.body(the("api.request:Request")(scope, receive)) as content:
                assert len(content) == len(self.body)

        return lambda: self.runner.run(received())

    def _decode(self) -> pa.RecordBatch:
        return the("rows.arrow_bodies:decode_arrow", "codec.arrow_bodies:decode_arrow")(self.body, self.intake)

    def _hash(self) -> Any:
        return the("segments.row_hashes:hash_rows")(self.rows.column("_key"), self.count, None, None, lambda: 0)

    def _take(self) -> Any:
        return the("segments.row_hashes:cut")(
            self.rows, the("segments.row_hashes:route")(self.hashes, self.lows), SEGMENTS
        )

    def _serialize(self) -> list[Any]:
        encoded = the("broker.log.group_commit:EncodedRows", "broker.log.append:EncodedRows").encode
        return [encoded(rows) for _, rows, _ in self.cut]

    def _frames(self) -> list[Any]:
        frame, kind = the("segments.frames:Frame"), the("segments.frames:FrameKind").ROWS
        mask = the("segments.layout:mask_of")
        return [
            frame(kind, "t", n, 0, one.rows.num_rows, mask(one.rows), 0, (), NOW_US, one.payload)
            for n, one in enumerate(self.encoded)
        ]

    def _crc(self) -> None:
        the("segments.frames:encode_commit", "segments.commits:encode_commit")(bytes(16), 0, self._frames())

    def _writing(self) -> Callable[[], None]:
        """write and fdatasync of a commit."""
        buffers = [memoryview(one.payload) for one in self.encoded]
        with tempfile.NamedTemporaryFile(dir=self.folder, delete=False) as file:
            fd = os.dup(file.fileno())

        def write() -> None:
            os.pwritev(fd, buffers, 0)
            os.fdatasync(fd)

        return write

    def _encode(self) -> None:
        """The Parquet file of each segment's rows."""
        encode, metadata = the("segments.entry:encode_entry"), the("segments.entry:EntryMetadata")
        for number, one in enumerate(self.encoded):
            rows = one.rows.num_rows
            about = metadata("c", "t", number, 0, KEY_SPACE, 1, 0, rows, "b", "0" * 32, 0, NOW_US, NOW_US, b"")
            encode([(0, one.rows)], self.layout, about)

    def _write_table(self) -> None:
        """pyarrow's Parquet file of each segment's keys and values, into memory: the limit of `encode`."""
        for one in self.encoded:
            rows = pa.Table.from_batches([one.rows]).select(["_key", "value"])
            pq.write_table(rows, pa.BufferOutputStream(), compression="zstd", compression_level=1)


def main() -> None:
    """Print all stages of all sizes, with the allocator as `serve` sets it: else each buffer is faulted in anew."""
    the("cli.server.serve:_keep_freed_memory")()
    found: dict[str, float] = {}
    for count in SIZES:
        found |= Stages(count, Path(sys.argv[1])).times()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
