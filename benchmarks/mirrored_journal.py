"""A mirrored journal among real brokers, each figure beside its limit: single publishes at the owner, 20 producers that
send 1,000 messages a second together, beside two bare requests at once to two other brokers; Arrow batches; puts to the
store; publishes while a mirror stops, dies or is replaced; the death of an owner with 64 MiB in memory alone; a rolling
restart. A figure of what is unreleased is given only if that was seen just before."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import httpx
import uvloop

from benchmarks import messages
from benchmarks.cluster_batches import round_of
from benchmarks.cluster_processes import Broker, Cluster
from benchmarks.cluster_processes import minio as find_minio
from benchmarks.failover import key_of_each
from benchmarks.http import NDJSON, Connection, request
from benchmarks.metrics import metrics_of
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.rolling_restart import rolled
from benchmarks.schedule import producers_ms
from seaweedq import Client
from seaweedq.coordination import keys

SECONDS, WARM_S, PRODUCERS, RATE, CALLS = 8.0, 4.0, 20, 1000.0, 400
TARGETS_MS = {0.5: 2.0, 0.99: 10.0}
PUBLISH = request("/v1/topics/latency/messages", b'{"key":"k","value":{"n":1}}', NDJSON)
HEALTH = request("/healthz", b"", NDJSON, "GET")
EXPOSURE_S, IDLE_S, PATIENCE_S = 10.0, 15.0, 0.5
BATCHES, ROUNDS = 60, 3
HELD_BYTES, FRAMES = 64 * 1024 * 1024, 100_000  # a recovery takes its time for each frame
SEGMENTS = 12  # an owner has four: a segment is flushed at 64 MiB, and a request makes a frame for each
SENDERS = {"mirrored": 8, "object": 200}  # a put takes all that waits
KEEPING = ("--journal-exposure-s", "3600", "--journal-max-unreleased-bytes", str(2**30))  # nothing goes to the store
RESTARTS, AFTER_S, READY_S = 3, 6.0, 30.0


def measure(folder: Path) -> Iterator[Result]:
    """All of it, one cluster after the other."""
    yield from _singles(folder)
    yield from _batches(folder)
    yield from _troubles(folder)
    yield from _rolling(folder)
    yield from _deaths(folder)


def _cluster(
    folder: Path, kind: str, name: str, count: int = 3, minio: str | None = None, options: Sequence[str] = ()
) -> Cluster:
    (folder / f"{name}-{kind}").mkdir()
    return Cluster(folder / f"{name}-{kind}", count, minio=minio, options=("--journal", kind, *options))


def _load() -> str:
    return f"load average {os.getloadavg()[0]:.1f}"


def _singles(folder: Path) -> Iterator[Result]:
    """The bare calls before and after, with the same brokers. The mirrored journal's puts, under load and idle."""
    for kind in ("mirrored", "file", "object"):
        with _cluster(folder, kind, "singles") as cluster:
            owner = _owner(cluster, "latency", kind)
            others = [one.port for one in cluster.brokers if one is not owner]
            bare = uvloop.run(_calls(others))
            before, begun, cpu_s = _puts(owner), time.perf_counter(), [one.cpu_s for one in cluster.brokers]
            times = uvloop.run(producers_ms(owner.port, PUBLISH, PRODUCERS, RATE, WARM_S, SECONDS))
            puts, took_s = _puts(owner) - before, time.perf_counter() - begun
            used = [
                (one.cpu_s - was) / RATE / (WARM_S + SECONDS) for one, was in zip(cluster.brokers, cpu_s, strict=True)
            ]
            cpu = ", ".join(f"{1e6 * one:.0f}" for one in sorted(used, reverse=True))
            bare += uvloop.run(_calls(others))
            if kind == "mirrored":
                time.sleep(2 * EXPOSURE_S)  # what is in memory goes into a last slot
                before = _puts(owner)
                time.sleep(IDLE_S)
                idle = _puts(owner) - before
        for part, target in TARGETS_MS.items():
            yield Result(
                name=f"mirrored journal, {kind}, p{100 * part:g}",
                figure=quantile(times, part),
                unit="ms",
                limit=quantile(bare, part),
                limit_is="two bare requests at once",
                target=target if kind == "mirrored" else None,
                better="lower",
                note=f"{PRODUCERS} send {RATE:g} msg/s together, {SECONDS:g} s; {puts:g} journal puts; CPU of the "
                f"brokers for a message {cpu} us; {_load()}",
            )
        if kind == "mirrored":
            most = 1 + took_s // EXPOSURE_S
            yield Result(name="mirrored journal, puts", figure=puts, unit="", target=most, better="lower", note=_load())
            yield Result(
                name="mirrored journal, idle puts", figure=idle, unit="", target=0, better="lower", note=_load()
            )


def _batches(folder: Path) -> Iterator[Result]:
    """Arrow batches over MinIO, or over moto if that is missing; the kinds take turns."""
    batches = list(messages.arrow_batches(BATCHES))
    server = find_minio()
    kinds = ("mirrored", "object")
    with (
        _cluster(folder, kinds[0], "batches", minio=server) as one,
        _cluster(folder, kinds[1], "batches", minio=server) as two,
    ):
        for each in (one, two):
            _owner(each, "warm", "mirrored" if each is one else "object")
        found = [[round_of(each.urls, f"round-{n}", batches) for each in (one, two)] for n in range(ROUNDS)]
    best = [min(at) for at in zip(*((a[1], b[1]) for a, b in found), strict=True)]
    count = BATCHES * messages.BATCH
    yield Result(
        name="mirrored journal, Arrow batches",
        figure=count / best[0],
        unit="msg/s",
        limit=count / best[1],
        limit_is="an object journal",
        target=1.0,
        target_of="ratio",
        note=f"acknowledged, best of {ROUNDS}, over {'MinIO' if server else 'moto'}; {_load()}",
    )


def _troubles(folder: Path) -> Iterator[Result]:
    """The longest publish while one of two mirrors stands still, is killed, or is replaced behind 64 MiB. A fourth
    broker is there to replace one."""
    troubles: list[tuple[str, Callable[[Broker], None], float, int]] = [
        ("a mirror stops for good", Broker.silence, PATIENCE_S + 0.5, 0),
        ("a mirror is killed", Broker.kill, 0.1, 0),
        ("a mirror is replaced, 64 MiB unreleased", Broker.kill, 1.0, HELD_BYTES),
    ]
    for at, (name, how, target_s, size) in enumerate(troubles):
        with _cluster(folder, "mirrored", f"trouble-{at}", 4, options=KEEPING if size else ()) as cluster:
            owner, keys_of = _owner_of_several(cluster, "mirrored")
            said = _filled(owner, keys_of, size, 1_000, SENDERS["mirrored"]) if size else ""
            mirror = next(one for one in cluster.brokers if one.id in _mirrors(cluster, owner))
            trouble = partial(how, mirror)
            longest_s = uvloop.run(_longest(owner.port, keys_of[0], trouble))
            mirror.kill()
        yield Result(
            name=f"mirrored journal, {name}, longest publish",
            figure=longest_s,
            unit="s",
            target=target_s,
            better="lower",
            note=f"{said}{_load()}",
        )


def _deaths(folder: Path) -> Iterator[Result]:
    """SIGKILL of an owner with 64 MiB that are in no file, and with mirrors in no object, to the next acknowledgement
    for each of its segments at another broker."""
    took, said = {}, ""
    for kind in ("object", "mirrored"):
        with _cluster(folder, kind, "death", options=KEEPING) as cluster:
            owner, keys_of = _owner_of_several(cluster, kind)
            said = _filled(owner, keys_of, HELD_BYTES, FRAMES, SENDERS[kind])
            other = next(one for one in cluster.brokers if one is not owner)
            body = {"messages": [{"key": key, "value": 1} for key in keys_of]}
            with httpx.Client(timeout=60, trust_env=False) as http:
                begun = time.perf_counter()
                owner.kill()
                while http.post(f"{other.url}/v1/topics/t/messages", json=body).status_code != 200:
                    pass
            took[kind] = time.perf_counter() - begun
    yield Result(
        name="mirrored journal, SIGKILL of an owner, next acknowledgement",
        figure=took["mirrored"],
        unit="s",
        limit=took["object"],
        limit_is="an object journal",
        target=took["object"] + 1.0,
        better="lower",
        note=f"{said}{_load()}",
    )


def _rolling(folder: Path) -> Iterator[Result]:
    """Of plain producers, which publish once, and of idempotent ones."""
    with _cluster(folder, "mirrored", "rolling") as cluster:
        load, _ = rolled(cluster, 6, RESTARTS)
    for kind in ("plain", "idempotent"):
        said = "".join(f"; {one}" for one in set(load.said) if one.startswith(kind))
        name = f"mirrored journal, {RESTARTS} rolling restarts, {kind}"
        note = f"of {len(load.took_s[kind])}{said}; {_load()}"
        yield Result(name=f"{name}, failed", figure=load.errors[kind], unit="", target=0, better="lower", note=note)
        yield Result(name=f"{name}, longest", figure=load.worst_s(kind), unit="s", target=1, better="lower", note=note)


def _owner(cluster: Cluster, topic: str, kind: str) -> Broker:
    """Creates a topic of one segment. Returns its owner, once that has its mirrors."""
    with Client(cluster.urls) as client:
        client.create_topic(topic, flush={"max_age_s": 3600, "max_bytes": 64 * 2**20})
        owner = cluster.by_url(client.segments(topic)[0]["owner_url"])
    return _mirrored(owner, kind)


def _owner_of_several(cluster: Cluster, kind: str) -> tuple[Broker, list[str]]:
    """Creates the topic `t`, which does not split. Returns the owner of most of its segments, once that has mirrors,
    and a key of each of them."""
    with Client(cluster.urls) as client:
        client.create_topic(
            "t",
            initial_segments=SEGMENTS,
            scaling={"max_segments": SEGMENTS},
            flush={"max_age_s": 3600, "max_bytes": 64 * 2**20},
        )
        segments = client.segments("t")
    urls = [one["owner_url"] for one in segments]
    url = max(urls, key=urls.count)
    keys_of = [key for key, of in zip(key_of_each(segments), urls, strict=True) if of == url]
    return _mirrored(cluster.by_url(url), kind), keys_of


def _mirrored(owner: Broker, kind: str) -> Broker:
    """Waits until a mirrored journal has its mirrors."""
    end = time.monotonic() + READY_S
    while kind == "mirrored" and metrics_of(owner.url)["seaweedq_journal_mirrors"] < 2:
        assert time.monotonic() < end, "it has no mirrors"
        time.sleep(0.1)
    return owner


def _mirrors(cluster: Cluster, owner: Broker) -> list[str]:
    async def read() -> list[str]:
        coordination = cluster.coordination()
        try:
            there = await coordination.get(keys.MIRRORS.key(owner.id))
            assert there
            return [one.broker for one in keys.MIRRORS.require(there).record.members]
        finally:
            await coordination.close()

    return asyncio.run(read())


def _puts(broker: Broker) -> float:
    return metrics_of(broker.url)["seaweedq_journal_puts_total"]


def _filled(owner: Broker, keys_of: Sequence[str], size: int, frames: int, senders: int) -> str:
    """Publishes so many bytes at the owner, in requests of a frame for each key. Returns what is unreleased then.
    Raises RuntimeError if that is less: a figure would be of something else."""
    value = b"x" * (size * 5 // 4 // frames)  # journals count in ways of their own
    body = b"\n".join(b'{"key":"%s","value":"%s"}' % (key.encode(), value) for key in keys_of)
    prepared = request("/v1/topics/t/messages", body, NDJSON)
    requests = -(-frames // len(keys_of))
    before = metrics_of(owner.url)["seaweedq_commits_total"]

    async def publish() -> None:
        left = iter(range(requests))

        async def one(connection: Connection) -> None:
            for _ in left:
                await connection.ask(prepared)

        await asyncio.gather(*[one(await Connection.to(owner.port)) for _ in range(senders)])

    uvloop.run(publish())
    found = metrics_of(owner.url)
    unreleased, commits = found["seaweedq_journal_unreleased_bytes"], found["seaweedq_commits_total"] - before
    if unreleased < size:
        raise RuntimeError(f"{unreleased:g} bytes are unreleased, and {size} are to be: no figure")
    said = f"{unreleased / 2**20:.0f} MiB unreleased just before"
    return f"{said}, {requests * len(keys_of):,} frames in {commits:,.0f} commits; "


async def _longest(port: int, key: str, trouble: Callable[[], None]) -> float:
    """Returns how long the longest publish took, of one connection that has one under way at a time."""
    connection, longest_s, end = await Connection.to(port), 0.0, float("inf")
    prepared = request("/v1/topics/t/messages", b'{"key":"%s","value":1}' % key.encode(), NDJSON)
    for _ in range(100):
        await connection.ask(prepared)
    task = asyncio.create_task(asyncio.to_thread(trouble))
    end = time.perf_counter() + AFTER_S
    while time.perf_counter() < end:
        begun = time.perf_counter()
        await connection.ask(prepared)
        longest_s = max(longest_s, time.perf_counter() - begun)
    await task
    connection.close()
    return longest_s


async def _calls(ports: list[int]) -> list[float]:
    connections = [await Connection.to(port) for port in ports]
    times = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        await asyncio.gather(*(connection.ask(HEALTH) for connection in connections))
        times.append((time.perf_counter() - begun) * 1000)
    for connection in connections:
        connection.close()
    return times
