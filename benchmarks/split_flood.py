"""Splits and merges by hand while Arrow batches flood the range, as fast as asks for a split by the default policy: how
long a publish waits. What came and is in no file yet has to be written before a segment can end."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from benchmarks import messages, server
from benchmarks.changing import AFTER_S, CALM_S, Publish, Seen, Span
from benchmarks.http import Connection, Failed
from benchmarks.quantiles import quantile
from benchmarks.result import Result
from benchmarks.split_pause import SHARES, TARGET_MS
from seaweedq.balancer.policy import ScalingPolicy
from seaweedq.segments.keyrange import KEY_SPACE

COUNT, CONNECTIONS, BATCHES, WARM_S = 10, 4, 40, 5.0
TIMES = 2  # of the target: what is split after a minute
RATE = TIMES * ScalingPolicy().target_bytes_per_s / (messages.BATCH * messages.VALUE_BYTES)  # batches a second
TOPIC, EVERYWHERE, POLL_S = "flood", [0], 0.05
WHOLE = [(0, KEY_SPACE)]


def measure(folder: Path) -> Iterator[Result]:
    """One broker with a file journal; each split is followed by the merge of its halves."""
    prepared = [messages.arrow_request(TOPIC, batch) for batch in messages.arrow_batches(BATCHES)]
    with server.broker(folder / "data") as broker:
        seen = uvloop.run(_watched(broker.port, prepared))
    span_s = seen.publishes[-1].ended - seen.publishes[0].began
    rate = len(seen.publishes) * messages.BATCH / span_s
    took = [change.ended - AFTER_S - change.began for change in seen.changes]
    note = (
        f"{rate:,.0f} messages/s of {RATE * messages.BATCH:,.0f} that were due, {messages.BATCH:,} a batch; {COUNT} "
        f"splits and as many merges, which took {quantile(took, 0.5):.2f} s (median), at most {max(took):.2f} s"
    )
    figures, calm = seen.longest_ms(seen.changes), seen.longest_ms(seen.calm)
    for share, part in SHARES:
        yield Result(
            name=f"split in a flood, longest publish, {share}",
            figure=quantile(figures, part),
            unit="ms",
            limit=quantile(calm, part),
            limit_is="the same where nothing changes",
            target=TARGET_MS if share == "p99" else None,
            better="lower",
            note=note,
        )
    said = "; ".join(seen.errors[:3])
    yield Result(name="split in a flood, errors", figure=len(seen.errors), unit="", target=0, better="lower", note=said)


async def _watched(port: int, prepared: Sequence[bytes]) -> Seen:
    asking, seen, stopped = await Connection.to(port), Seen(), asyncio.Event()
    await asking.ask_json("PUT", f"/v1/topics/{TOPIC}", {"format": "bytes"})
    opened = [await Connection.to(port) for _ in range(CONNECTIONS)]
    began = time.perf_counter()

    async def produce(number: int) -> None:
        for at in itertools.count(number, CONNECTIONS):
            await asyncio.sleep(max(0.0, began + at / RATE - time.perf_counter()))
            if stopped.is_set():
                break
            sent = time.perf_counter()
            try:
                await opened[number].ask(prepared[at % len(prepared)])
                seen.publishes.append(Publish(sent, time.perf_counter(), EVERYWHERE))
            except Failed as error:
                seen.errors.append(str(error))

    producing = asyncio.gather(*map(produce, range(CONNECTIONS)))
    await asyncio.sleep(WARM_S)
    for _ in range(COUNT):
        (whole,) = await _open(asking)
        await _change(asking, seen, whole, "split", {})
        low, high = await _open(asking)
        await _change(asking, seen, low, "merge", {"with": high})
    stopped.set()
    await producing
    for connection in (asking, *opened):
        connection.close()
    return seen


async def _change(asking: Connection, seen: Seen, segment: int, kind: str, wanted: dict[str, int]) -> None:
    """Ask for it after a while of calm, and see to its end."""
    calm, before = time.perf_counter(), await _open(asking)
    await asyncio.sleep(CALM_S)
    began = time.perf_counter()
    try:
        await asking.ask_json("POST", f"/v1/topics/{TOPIC}/segments/{segment}/{kind}", wanted)
    except Failed as error:
        if not str(error).startswith("202"):
            raise
    while await _open(asking) == before:
        await asyncio.sleep(POLL_S)
    await asyncio.sleep(AFTER_S)
    seen.calm.append(Span(calm, began, WHOLE))
    seen.changes.append(Span(began, time.perf_counter(), WHOLE))


async def _open(asking: Connection) -> list[int]:
    """The open segments, by their ranges."""
    found = (await asking.ask_json("GET", f"/v1/topics/{TOPIC}/segments"))["segments"]
    return [one["id"] for one in sorted(found, key=lambda one: one["low"]) if one["state"] == "open"]
