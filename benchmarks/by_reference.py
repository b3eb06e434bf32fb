"""Payloads by reference: what a broker's CPU does for a byte, and how fast the Python client uploads.

On MinIO where its binary is, else on moto's server, and on a local folder, where the bytes go through the broker. CPU
is that of the broker's process alone. Inline are the same bytes as values of a bytes topic, a megabyte each, flushed
too.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit

import boto3
import psutil
import uvloop
from boto3.s3.transfer import TransferConfig

from benchmarks import server
from benchmarks.cluster_processes import BUCKET, Cluster, minio
from benchmarks.http import Connection, request
from benchmarks.result import Result
from seaweedq import Client

MIB = 1024 * 1024
FILES, FILE_BYTES, VALUE_BYTES, ROUNDS = 2, 256 * MIB, MIB - 1024, 3
UPLOAD_BYTES = 512 * MIB
INLINE, TOPIC = "inline", "payloads"


def measure(folder: Path) -> Iterator[Result]:
    """A file of random bytes, the same for all."""
    path = folder / "payload"
    with path.open("wb") as file:
        for _ in range(UPLOAD_BYTES // MIB):
            file.write(os.urandom(MIB))
    binary = minio()
    with Cluster(folder, 1, binary) as cluster:
        broker = cluster.brokers[0]
        assert broker.process
        process = psutil.Process(broker.process.pid)
        name = "MinIO" if binary else "moto"
        yield _cpu(f"broker CPU a byte by reference on {name}", broker.url, lambda: _seconds(process), path, 0.02)
        yield _uploads(f"upload to {name}", broker.url, cluster.s3, path)
    with server.broker(folder / "data") as local:
        url = f"http://127.0.0.1:{local.port}"
        yield _cpu("broker CPU a byte by reference on a folder", url, local.cpu_s, path, None)


def _cpu(name: str, url: str, cpu_s: Callable[[], float], path: Path, target: float | None) -> Result:
    """Nanoseconds a byte, beside those of the same bytes inline."""
    with path.open("rb") as file:
        data = file.read(FILES * FILE_BYTES)
    inline = _inline(url, data, cpu_s)
    with Client(url) as client:
        client.create_topic(TOPIC)
        client.publish(TOPIC, {"reference": {"upload_id": client.upload(TOPIC, b"what the first one of all costs")}})
        before = cpu_s()
        for at in range(FILES):
            upload = client.upload(TOPIC, data[at * FILE_BYTES : (at + 1) * FILE_BYTES])
            client.publish(TOPIC, {"reference": {"upload_id": upload}})
        by_reference = cpu_s() - before
    return Result(
        name=name,
        figure=by_reference * 1e9 / len(data),
        unit="ns",
        limit=inline * 1e9 / len(data),
        limit_is="the same bytes inline, not the limit but what is replaced",
        target=target,
        target_of="ratio",
        better="lower",
        note=f"{FILES} payloads of {FILE_BYTES // MIB} MiB; {by_reference:.2f} s and {inline:.2f} s of CPU",
    )


def _inline(url: str, data: bytes, cpu_s: Callable[[], float]) -> float:
    port = urlsplit(url).port
    assert port

    async def publish() -> None:
        connection = await Connection.to(port)
        await connection.ask_json("PUT", f"/v1/topics/{INLINE}", {"format": "bytes"})
        for at in range(0, len(data), VALUE_BYTES):
            part = data[at : at + VALUE_BYTES]
            await connection.ask(request(f"/v1/topics/{INLINE}/messages", part, "application/octet-stream"))
        await connection.ask_json("POST", f"/v1/topics/{INLINE}/flush")
        connection.close()

    before = cpu_s()
    uvloop.run(publish())
    return cpu_s() - before


def _uploads(name: str, url: str, endpoint: str, path: Path) -> Result:
    """The best of some rounds, in which the two take turns."""
    bare = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    config = TransferConfig(multipart_chunksize=16 * MIB, max_concurrency=4)
    ours, theirs = [], []
    with Client(url) as client:
        client.create_topic(TOPIC)
        for number in range(ROUNDS):
            began = perf_counter()
            bare.upload_file(str(path), BUCKET, f"bare/{number}", Config=config)
            theirs.append(perf_counter() - began)
            began = perf_counter()
            client.upload(TOPIC, path)
            ours.append(perf_counter() - began)
    return Result(
        name=name,
        figure=UPLOAD_BYTES / MIB / min(ours),
        unit="MiB/s",
        limit=UPLOAD_BYTES / MIB / min(theirs),
        limit_is="boto3's upload of the same file, in parts of 16 MiB, 4 at a time",
        target=0.9,
        target_of="ratio",
        note=f"{UPLOAD_BYTES // MIB} MiB; ours reads it once more, for the digest",
    )


def _seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
