"""Payloads by reference: what a broker's CPU does for a byte, and how fast the Python client uploads.

On MinIO where its binary is, else on moto's server, and on a local folder, where the bytes go through the broker. CPU
is that of the broker's process alone. Inline are the same bytes as values of a bytes topic, a megabyte each, flushed
too.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from urllib.parse import urlsplit

import boto3
import uvloop
from boto3.s3.transfer import TransferConfig

from benchmarks import server
from benchmarks.cluster_processes import BUCKET, Cluster, minio
from benchmarks.http import Connection, request
from benchmarks.result import Result
from seaweedq import Client

MIB = 1024 * 1024
FILES, FILE_BYTES, VALUE_BYTES, ROUNDS = 2, 256 * MIB, MIB - 1024, 6
UPLOAD_BYTES = 512 * MIB
SETTLED_S = 5.0
PARTS = TransferConfig(multipart_chunksize=16 * MIB, max_concurrency=4)
WHOLE = TransferConfig(multipart_threshold=UPLOAD_BYTES)
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
        name = "MinIO" if binary else "moto"
        yield _cpu(f"broker CPU a byte by reference on {name}", broker.url, lambda: broker.cpu_s, path, 0.02)
        yield from _uploads(f"upload to {name}", broker.url, cluster.s3, path)
    with server.broker(folder / "data") as local:
        url = f"http://127.0.0.1:{local.port}"
        yield _cpu("broker CPU a byte by reference on a folder", url, local.cpu_s, path, None)


def _cpu(name: str, url: str, cpu_s: Callable[[], float], path: Path, target: float | None) -> Result:
    """Nanoseconds a byte, beside those of the same bytes inline."""
    with path.open("rb") as file:
        data = file.read(FILES * FILE_BYTES)
    inline = _inline(url, data, cpu_s)
    sleep(SETTLED_S)  # what they leave to be cleaned up is none of the others'
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


def _uploads(name: str, url: str, endpoint: str, path: Path) -> Iterator[Result]:
    """One file alone, and its quarters all at a time; the two clients take turns, and in each round another one is
    first."""
    bare = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    quarters = [path.with_name(f"quarter-{n}") for n in range(4)]
    with path.open("rb") as file:
        for quarter in quarters:
            quarter.write_bytes(file.read(UPLOAD_BYTES // len(quarters)))
    with Client(url) as client, ThreadPoolExecutor(len(quarters)) as threads:
        client.create_topic(TOPIC)

        def theirs() -> None:
            bare.upload_file(str(path), BUCKET, "bare", Config=PARTS)

        def all_theirs() -> None:
            list(threads.map(lambda one: bare.upload_file(str(one), BUCKET, one.name, Config=WHOLE), quarters))

        def all_ours() -> None:
            with client.producer(TOPIC) as producer:
                for quarter in quarters:
                    producer.send_file(quarter)

        note = f"{UPLOAD_BYTES // MIB} MiB, median of {ROUNDS} rounds; ours reads a file once more, for the digest"
        pairs = (
            (name, lambda: client.upload(TOPIC, path), theirs, "boto3's, in parts of 16 MiB, 4 at a time"),
            (f"{name}, 4 files at a time", all_ours, all_theirs, "boto3's, each as a whole, which is its faster way"),
        )
        for what, ours, other, limit_is in pairs:
            taken_s, other_s = _in_turns(ours, other)
            yield Result(
                name=what,
                figure=UPLOAD_BYTES / MIB / taken_s,
                unit="MiB/s",
                limit=UPLOAD_BYTES / MIB / other_s,
                limit_is=limit_is,
                target=0.9,
                target_of="ratio",
                note=note,
            )


def _in_turns(*acts: Callable[[], object]) -> list[float]:
    """The median seconds that each takes; once before that nobody looks."""
    taken: dict[int, list[float]] = {number: [] for number in range(len(acts))}
    for turn in range(ROUNDS + 1):
        for at in range(len(acts)):
            number = (turn + at) % len(acts)
            began = perf_counter()
            acts[number]()
            if turn:
                taken[number].append(perf_counter() - began)
    return [median(found) for found in taken.values()]
