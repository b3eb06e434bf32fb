"""The end of a broker that owns 200 segments with rows that are in no file yet: how long until each of its key ranges
takes messages again, and what producers at the other brokers see of it. It is killed, or falls silent as a machine that
is cut off; of the second, others learn by the end of its lease alone."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import msgspec
import uvloop

from benchmarks.cluster_load import Load
from benchmarks.cluster_processes import LEASE_S, Broker, Cluster
from benchmarks.http import NDJSON, Connection, Failed, request
from benchmarks.result import Result
from seaweedq import Client
from seaweedq.concurrency.futures import gather_bounded
from seaweedq.coordination import keys
from seaweedq.coordination.interface import Coordination, Entry
from seaweedq.errors import SeaweedqError
from seaweedq.segments.keyrange import hash_key
from seaweedq.storage.s3 import S3Store

KILLS, SILENCES, SEGMENTS, ROWS, VALUE_BYTES = 10, 3, 600, 5, 100
SEGMENTS_AT_ONCE, ENTRY_BYTES = 16, 6_000
PAUSE_S = 0.05  # before a publish that failed is sent once more
FIRST_S, LAST_S, SILENT_S = 2.0, 3.0, 7.0  # the targets
STEPS = ("lease ended", "recovered", "given", "first ack", "last ack")


@dataclass
class Kill:
    """Seconds since the kill."""

    led: bool
    segments: int
    acked: list[float]
    lease_ended: float
    recovered: float
    given: float
    errors: Counter[str]
    worst: dict[str, float]
    said: list[str] = field(default_factory=list)
    load: float = 0.0
    cpu_s: float = 0.0  # of the brokers that are left, until the last range

    def __str__(self) -> str:
        times = (self.lease_ended, self.recovered, self.given, self.acked[0], self.acked[-1])
        steps = ", ".join(f"{step} {at:.2f}" for step, at in zip(STEPS, times, strict=True))
        said = f" ({self.said[0]})" if self.said else ""
        who = f"{self.segments} segments{' and the lead' if self.led else ''}"
        return f"{who}, load {self.load:.0f}, CPU {self.cpu_s:.1f} s: {steps}{said}"


def measure(folder: Path) -> Iterator[Result]:
    """Over moto."""
    return failovers(folder)


def failovers(folder: Path, minio: str | None = None, suffix: str = "") -> Iterator[Result]:
    """Each broker in turn is killed, then silenced, each time with a topic of its own; the worst of all. `minio` as in
    Cluster; the names end with `suffix`."""
    with Cluster(folder, minio=minio) as cluster:
        kills = [end(cluster, number, Broker.kill) for number in range(KILLS)]
        silences = [end(cluster, KILLS + number, Broker.silence) for number in range(SILENCES)]
        bare_s = uvloop.run(bare_requests(cluster.store(), max(one.segments for one in kills)))
    bare = {
        "limit": bare_s,
        "limit_is": "a list and a put, then a list and a read, of as many segments at the bare store",
    }
    last = max(one.acked[-1] - one.lease_ended for one in kills)
    yield Result(
        name=f"failover, SIGKILL{suffix}, last ack since the lease ended", figure=last, better="lower", unit="s", **bare
    )
    yield from _results(kills, f"SIGKILL{suffix}", FIRST_S, LAST_S)
    yield from _results(silences, f"silent{suffix}", SILENT_S, SILENT_S)


def _results(ends: Sequence[Kill], name: str, first_s: float, last_s: float) -> Iterator[Result]:
    note = f"worst of {len(ends)}, seconds since the end: " + "; ".join(map(str, ends))
    limit = {"limit": LEASE_S, "limit_is": "the lease", "better": "lower", "unit": "s"}
    first, last = max(one.acked[0] for one in ends), max(one.acked[-1] for one in ends)
    yield Result(name=f"failover, {name}, lease ended", figure=max(one.lease_ended for one in ends), **limit)
    yield Result(name=f"failover, {name}, first ack", figure=first, target=first_s, note=note, **limit)
    middle = max(median(one.acked) for one in ends)
    yield Result(name=f"failover, {name}, median ack", figure=middle, note=note, **limit)
    yield Result(name=f"failover, {name}, last ack", figure=last, target=last_s, note=note, **limit)
    for kind in ("plain", "idempotent"):
        errors = sum(one.errors[kind] for one in ends)
        yield Result(name=f"failover, {name}, errors, {kind}", figure=errors, unit="", target=0, better="lower")
        worst = max(one.worst[kind] for one in ends)
        yield Result(name=f"failover, {name}, longest publish, {kind}", figure=worst, target=last_s, **limit)


def end(cluster: Cluster, number: int, how: Callable[[Broker], None]) -> Kill:
    """A topic with rows in all its segments, then the end of one broker; it is started again afterwards."""
    topic, victim = f"failover-{number}", cluster.brokers[number % len(cluster.brokers)]
    others = [broker for broker in cluster.brokers if broker is not victim]
    with Client(cluster.urls) as client:
        client.create_topic(topic, initial_segments=SEGMENTS)
        segments = client.segments(topic)
        names = key_of_each(segments)
        for row in range(ROWS):
            client.publish(topic, [{"key": key, "value": f"{row} {'x' * VALUE_BYTES}"} for key in names])
        producers = [(kind, [other.url]) for other in others for kind in ("plain", "idempotent")]
        with Load(topic, names, producers) as load:
            time.sleep(1)
            segments = client.segments(topic)  # whose owners may have changed
            lost = [key for key, one in zip(names, segments, strict=True) if one["owner_url"] == victim.url]
            before_s = sum(other.cpu_s for other in others)
            led, acked, seen, failed = uvloop.run(_after_end(cluster, victim, others, topic, lost, how))
            used_s = sum(other.cpu_s for other in others) - before_s
        load.errors["plain"] += failed
        victim.kill()
        victim.start()
        with suppress(SeaweedqError):  # a machine that is busy: the leader ends the deletion
            client.delete_topic(topic)
    worst = {"plain": max(load.worst_s("plain"), acked[-1]), "idempotent": load.worst_s("idempotent")}
    times = (seen.lease_ended, seen.recovered, seen.given)
    return Kill(led, len(lost), acked, *times, load.errors, worst, load.said, os.getloadavg()[0], used_s)


async def bare_requests(store: S3Store, segments: int) -> float:
    """Returns the seconds that the requests take without which no segment changes hands: what its replay asks of the
    store, and its opening, as many at a time as a replay has."""

    async def ask(segment: int) -> None:
        folder = f"bare/{segment}/"
        await store.list(folder)
        await store.create(f"{folder}0", bytes(ENTRY_BYTES))
        await store.list(folder)
        await store.read(f"{folder}0", 0, ENTRY_BYTES)

    await ask(-1)
    began = time.perf_counter()
    await gather_bounded(SEGMENTS_AT_ONCE, ask, range(segments))
    took_s = time.perf_counter() - began
    await store.close()
    return took_s


def key_of_each(segments: Sequence[dict[str, int]]) -> list[str]:
    """A key for each segment."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < len(segments):
        value = hash_key(key := f"key-{number}")
        found.setdefault(next(n for n, one in enumerate(segments) if one["low"] <= value < one["high"]), key)
        number += 1
    return [found[n] for n in range(len(segments))]


class Sight:
    """When coordination said what of one broker: `time.perf_counter()`, later since the kill."""

    lease_ended = recovered = given = 0.0

    def __init__(self, coordination: Coordination, broker: str) -> None:
        self._coordination, self._broker = coordination, broker

    async def watch(self, prefix: str, revision: int) -> None:
        """For ever."""
        async for changes in self._coordination.watch(prefix, revision):
            for change in changes:
                self._see(change.key, change.value, time.perf_counter())

    def since(self, killed: float) -> None:
        """From now on the times count from the kill."""
        self.lease_ended, self.recovered, self.given = (
            at - killed for at in (self.lease_ended, self.recovered, self.given)
        )

    def _see(self, key: str, value: bytes | None, now: float) -> None:
        if key == keys.BROKERS.key(self._broker) and value is None:
            self.lease_ended = now
        elif key == keys.JOURNALS.key(self._broker) and not self.recovered:
            if value is None or keys.JOURNALS.require(Entry(key, value, 1)).record.recovered:
                self.recovered = now
        elif key.startswith(keys.SEGMENTS.prefix()):
            self.given = now


async def _after_end(
    cluster: Cluster,
    victim: Broker,
    others: Sequence[Broker],
    topic: str,
    lost: Sequence[str],
    how: Callable[[Broker], None],
) -> tuple[bool, list[float], Sight, int]:
    """Whether it led, when each range took a message, what coordination said, how many publishes failed."""
    coordination = cluster.coordination()
    sight = Sight(coordination, victim.id)
    opened = [await Connection.to(others[n % len(others)].port) for n in range(len(lost))]
    page = await coordination.range(keys.LEADER.key())
    led = keys.LEADER.require(page.entries[0]).record.broker == victim.id
    prefixes = (kind.prefix() for kind in (keys.BROKERS, keys.JOURNALS, keys.SEGMENTS))
    watches = [asyncio.create_task(sight.watch(prefix, page.revision)) for prefix in prefixes]
    killed = time.perf_counter()
    how(victim)
    ended = await asyncio.gather(*(_until_taken(one, topic, key) for one, key in zip(opened, lost, strict=True)))
    for watch in watches:
        watch.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*watches)
    await coordination.close()
    for connection in opened:
        connection.close()
    sight.since(killed)
    return led, sorted(at - killed for at, _ in ended), sight, sum(failed for _, failed in ended)


async def _until_taken(connection: Connection, topic: str, key: str) -> tuple[float, int]:
    """When the publish was taken, and how often it failed before."""
    body = msgspec.json.encode({"key": key, "value": "after"})
    failed = 0
    while True:
        try:
            await connection.ask(request(f"/v1/topics/{topic}/messages", body, NDJSON))
            return time.perf_counter(), failed
        except Failed:
            failed += 1
            await asyncio.sleep(PAUSE_S)
