"""A topic that splits and merges by hand under producers: how long a range of keys takes nothing while it changes.

The *pause* of a change is the longest time between two acknowledgements of publishes that touch one of the ranges that
give way or come to be, less what is usual between two there. Whoever waits longest is seen in the *longest* publish
that touches them while it goes on.
"""

import asyncio
import itertools
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import msgspec

from benchmarks.http import NDJSON, Connection, Failed, request
from seaweedq.segments.keyrange import hash_key

TOPIC, SEGMENTS, ROWS, KEYS = "changing", 4, 20, 512
THINK_S, CALM_S, AFTER_S, AROUND_S, MOST_S = 0.01, 0.4, 0.6, 1.0, 30.0
KINDS = (("plain", 1), ("idempotent", 1), ("plain", ROWS), ("idempotent", ROWS))
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Publish:
    """One that was acknowledged: when it was sent and answered, and the hashes of its keys, sorted."""

    began: float
    ended: float
    hashes: Sequence[int]

    def touches(self, one: Range) -> bool:
        """Whether it has a key there."""
        return bisect_left(self.hashes, one[0]) < bisect_left(self.hashes, one[1])


@dataclass(frozen=True, slots=True)
class Span:
    """A time of interest, and ranges: those of the segments that give way in it, and of those that come to be."""

    began: float
    ended: float
    ranges: Sequence[Range]


@dataclass
class Seen:
    """What came of it: `changes` last until a while after they were answered; `calm` are times between them, with the
    ranges of the next one."""

    publishes: list[Publish] = field(default_factory=list)
    changes: list[Span] = field(default_factory=list)
    calm: list[Span] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def pauses_ms(self, spans: Sequence[Span]) -> list[float]:
        """Of each span, the range that paused longest."""
        ordered = sorted(self.publishes, key=lambda one: one.ended)
        ends = [one.ended for one in ordered]
        found = []
        for span in spans:
            low, high = (bisect_left(ends, at) for at in (span.began - AROUND_S, span.ended + AROUND_S))
            found.append(max(_pause_s(ordered[low:high], span, one) for one in span.ranges) * 1000)
        return found

    def longest_ms(self, spans: Sequence[Span]) -> list[float]:
        """Of each span, what of it the publish took that took most of it."""
        ordered = sorted(self.publishes, key=lambda one: one.began)
        begins = [one.began for one in ordered]
        found = []
        for span in spans:
            low, high = bisect_left(begins, span.began - MOST_S), bisect_left(begins, span.ended)
            there = (one for one in ordered[low:high] if any(map(one.touches, span.ranges)))
            found.append(max((_within(one.began, one.ended, span) for one in there), default=0.0) * 1000)
        return found


def _pause_s(publishes: Sequence[Publish], span: Span, one: Range) -> float:
    ends = [publish.ended for publish in publishes if publish.touches(one)]
    usual = median(after - before for before, after in pairwise(ends)) if len(ends) > 2 else 0.0
    return max((_within(before, after, span) for before, after in pairwise(ends)), default=0.0) - usual


def _within(began: float, ended: float, span: Span) -> float:
    """How much of a time is in the span."""
    return min(ended, span.ended) - max(began, span.began)


async def watch_changes(ports: Sequence[int], connections: int, count: int, seed: int = 7) -> Seen:
    """`count` splits, each followed by the merge of its halves, at the first port, while at all of them as many
    connections publish."""
    random, seen, stopped = Random(seed), Seen(), asyncio.Event()
    asking = await Connection.to(ports[0])
    await asking.ask_json("PUT", f"/v1/topics/{TOPIC}", {"initial_segments": SEGMENTS})
    opened = [await Connection.to(ports[n % len(ports)]) for n in range(connections)]
    kinds = itertools.cycle(KINDS)
    producers = [
        asyncio.create_task(_produce(connection, f"producer-{n}", *next(kinds), Random(n), seen, stopped))
        for n, connection in enumerate(opened)
    ]
    await asyncio.sleep(2.0)
    for _ in range(count):
        segment = random.choice([one for one in await _segments(asking) if one["state"] == "open"])
        halves = await _change(asking, seen, "split", segment, {}, [segment])
        await _change(asking, seen, "merge", halves[0], {"with": halves[1]["id"]}, halves)
    await asyncio.sleep(1.0)
    stopped.set()
    await asyncio.gather(*producers)
    for connection in (asking, *opened):
        connection.close()
    return seen


async def _change(asking: Connection, seen: Seen, kind: str, segment: Any, wanted: Any, old: Sequence[Any]) -> Any:
    """Ask for it after a while of calm: the successors."""
    calm = time.perf_counter()
    await asyncio.sleep(CALM_S)
    began = time.perf_counter()
    answer = await asking.ask_json("POST", f"/v1/topics/{TOPIC}/segments/{segment['id']}/{kind}", wanted)
    await asyncio.sleep(AFTER_S)
    ranges = [(one["low"], one["high"]) for one in [*old, *answer["successors"]]]
    seen.calm.append(Span(calm, began, ranges))
    seen.changes.append(Span(began, time.perf_counter(), ranges))
    return answer["successors"]


async def _segments(asking: Connection) -> Any:
    return (await asking.ask_json("GET", f"/v1/topics/{TOPIC}/segments"))["segments"]


async def _produce(
    connection: Connection, name: str, kind: str, rows: int, random: Random, seen: Seen, stopped: asyncio.Event
) -> None:
    sequence = 0
    while not stopped.is_set():
        keys = [f"key-{random.randrange(KEYS)}" for _ in range(rows)]
        lines = [msgspec.json.encode({"key": key, "value": {"n": sequence, "by": name}}) for key in keys]
        more = [f"Producer-Id: {name}", f"Producer-Sequence: {sequence}"] if kind == "idempotent" else []
        asked = request(f"/v1/topics/{TOPIC}/messages", b"\n".join(lines), NDJSON, more=more)
        began = time.perf_counter()
        try:
            await connection.ask(asked)
            seen.publishes.append(Publish(began, time.perf_counter(), sorted(map(hash_key, keys))))
        except Failed as error:
            seen.errors.append(f"{kind}, {rows}: {error}")
        sequence += rows
        await asyncio.sleep(2 * THINK_S * random.random())
