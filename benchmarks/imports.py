"""A Parquet file imported into four segments, beside reading and hashing it bare, and the same rows over HTTP."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import messages, server
from benchmarks.arrow import written
from benchmarks.http import Connections, ask_all, run
from benchmarks.result import Result
from seaweedq.segments.row_hashes import hash_rows

ROUNDS, BATCHES, CONNECTIONS = 6, 400, 6
REAPED_S = 1.0
COUNT = BATCHES * messages.BATCH
TOPIC = {"format": "bytes", "initial_segments": 4}


def measure(folder: Path) -> Iterator[Result]:
    """Speed until all is acknowledged, and what a message costs the broker and its reader; the best of each."""
    batches = list(messages.arrow_batches(BATCHES))
    file = folder / "rows.parquet"
    pq.write_table(pa.Table.from_batches(batches), file, compression="zstd")
    with server.broker(folder / "data") as broker:
        rounds = [_imported(broker, folder / "data", f"import-{number}", file) for number in range(ROUNDS)]
        prepared = [messages.arrow_request("http", batch) for batch in batches]
        http_s = run(broker.port, CONNECTIONS, lambda opened: _published(opened, prepared))
    bare_s = min(written(lambda: _read(file))[0] for _ in range(3))
    import_s, cpu_s = (min(column) for column in zip(*rounds, strict=True))
    yield Result(
        name="imports",
        figure=COUNT / import_s,
        unit="msg/s",
        limit=COUNT / bare_s,
        limit_is="reading the same file with pyarrow and hashing its keys, best of three",
        target=1_500_000,
        note=f"from the POST to its 200: checked, then published; {file.stat().st_size / COUNT:.0f} bytes a row in the "
        f"file; best of {ROUNDS} rounds of {COUNT:,}",
    )
    yield Result(
        name="imports, beside HTTP",
        figure=COUNT / import_s,
        unit="msg/s",
        limit=COUNT / http_s,
        limit_is=f"the same rows as Arrow batches of {messages.BATCH:,} over {CONNECTIONS} connections, once",
    )
    yield Result(
        name="imports, cpu",
        figure=cpu_s / COUNT * 1e6,
        unit="µs/msg",
        note="user and system time of the broker and of the reader, all of it in Parquet",
    )


def _imported(broker: server.Server, folder: Path, topic: str, file: Path) -> tuple[float, float]:
    """Seconds from asking for the import to its end, and the broker's CPU seconds until all is in Parquet."""
    with httpx.Client(base_url=f"http://127.0.0.1:{broker.port}", timeout=600, trust_env=False) as http:
        _good(http.put(f"/v1/topics/{topic}", json=TOPIC))
        upload = _good(http.post(f"/v1/topics/{topic}/uploads", json={"size": file.stat().st_size}))
        with file.open("rb") as data:
            stated = {**upload["headers"], "content-length": str(file.stat().st_size)}
            _good(http.put(upload["url"], headers=stated, content=iter(lambda: data.read(2**20), b"")))
        _warm(folder)
        cpu_s, begun = broker.cpu_s(), time.perf_counter()
        asked = {"upload_id": upload["upload_id"], "format": "parquet"}
        done = _good(http.post(f"/v1/topics/{topic}/imports?wait_s=300", json=asked))
        wall_s = time.perf_counter() - begun
        assert (done["state"], done["count"]) == ("done", COUNT), done
        http.post(f"/v1/topics/{topic}/flush")
        time.sleep(REAPED_S)  # only then the reader's time counts as the broker's
    return wall_s, broker.cpu_s() - cpu_s


async def _published(opened: Connections, prepared: list[bytes]) -> float:
    await opened[0].ask_json("PUT", "/v1/topics/http", TOPIC)
    begun = time.perf_counter()
    await ask_all(opened, prepared)
    return time.perf_counter() - begun


def _warm(folder: Path) -> None:
    """Have what was uploaded in the page cache, as the file that the limit reads is."""
    for payload in folder.glob("store/_payloads/**/*"):
        if payload.is_file():
            payload.read_bytes()


def _read(file: Path) -> None:
    with pq.ParquetFile(file) as opened:
        for batch in opened.iter_batches(131_072):
            hash_rows(batch.column("_key"), batch.num_rows, None, None, lambda: 0)


def _good(answer: httpx.Response) -> Any:
    assert answer.status_code in (200, 201), answer.text
    return answer.json() if answer.content else None
