"""What versions of a typed topic's schema cost: publishes of Arrow after many versions, publishes during a change, and
the check of a wide schema. Ratios and the check are of the broker's CPU, which a busy machine changes least; notes also
have the times by the clock, and the machine's load."""

import asyncio
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import server
from benchmarks.http import ARROW, Connections, ask_all, request, run
from benchmarks.quantiles import quantile
from benchmarks.result import Result

ROUNDS, REQUESTS, ROWS, CONNECTIONS = 15, 40, 5_000, 4
VERSIONS = 20
CHANGES, PAUSE_S = 30, 0.005
WIDE, CHECKS = 1_000, 20
TYPES = {"n": ("int", "long"), "price": ("double",) * 2, "city": ("string",) * 2, "day": ("date",) * 2}
ARROWS = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64(), "string": pa.string(), "date": pa.date32()}


def measure(folder: Path) -> Iterator[Result]:
    """A broker, and all of it."""
    with server.broker(folder) as broker:
        run(broker.port, 1, _make_topics)
        kinds = {
            "before": _requests("before", True),
            "after": _requests("after", True),
            "half behind": _requests("behind", True, behind=VERSIONS - 1),
        }
        spent, took = run(broker.port, CONNECTIONS, lambda all: _spent(all, broker, kinds))
        during, alone = run(broker.port, 2, _publishes)
        checks, times, reads = run(broker.port, 1, lambda all: _checks(all, broker))
    rows = REQUESTS * ROWS * ROUNDS
    load = f"load average {os.getloadavg()[0]:.1f}"
    note = (
        f"{ROWS:,} rows a request, {CONNECTIONS} connections, messages for a second of the broker's CPU, last flush "
        f"included; all of {ROUNDS} rounds, each of which has all three in turn; {load}"
    )
    for name, shown, target in (("after", f"after {VERSIONS} versions", 0.97), ("half behind", "half behind", 0.8)):
        yield Result(
            name=f"schemas, Arrow {shown}",
            figure=rows / spent[name],
            unit="messages/CPU s",
            limit=rows / spent["before"],
            limit_is="the same rows to a topic whose schema has never changed",
            target=target,
            target_of="ratio",
            note=f"{note}; {rows / took[name]:,.0f} messages/s by the clock, {rows / took['before']:,.0f} the limit",
        )
    yield Result(
        name="schemas, p99 of publishes during a change",
        figure=1000 * quantile(during, 0.99),
        unit="ms",
        limit=1000 * quantile(alone, 0.99),
        limit_is="p99 of publishes when none is under way",
        target=300,
        better="lower",
        note=f"by the clock, a row each {1000 * PAUSE_S:g} ms, {CHANGES} changes met {len(during)} publishes; {load}",
    )
    yield Result(
        name=f"schemas, check of {WIDE:,} fields",
        figure=1000 * checks,
        unit="ms of CPU",
        limit=1000 * reads,
        limit_is="a read of the topic, which answers with these fields",
        target=50,
        better="lower",
        note=f"the broker's CPU, mean of {CHECKS}; answers came after {1000 * statistics.median(times):.0f} ms; {load}",
    )


def _fields(wide: bool, more: Sequence[str] = ()) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = [{"name": name, "type": types[wide]} for name, types in TYPES.items()]
    return [*fields, *({"name": name, "type": "string"} for name in more)]


def _requests(topic: str, wide: bool, more: Sequence[str] = (), behind: int | None = None) -> list[bytes]:
    """Publishes of rows; each second one with the int in place of the long, of the version `behind`."""
    rng, found = np.random.default_rng(1), []
    for at in range(REQUESTS):
        kinds = {name: types[wide and (behind is None or at % 2 == 0)] for name, types in TYPES.items()}
        values = {
            "n": rng.integers(0, 2**31 - 1, ROWS),
            "price": rng.random(ROWS),
            "city": np.char.add("city-", rng.integers(0, 5_000, ROWS).astype(str)),
            "day": rng.integers(0, 20_000, ROWS).astype(np.int32),
        }
        columns = {name: pa.array(values[name], ARROWS[kinds[name]]) for name in kinds}
        columns |= {name: pa.array(values["city"]) for name in more}
        table = pa.table(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        lines = [f"schema-id: {behind}"] if behind is not None and at % 2 else []
        found.append(request(f"/v1/topics/{topic}/messages", sink.getvalue().to_pybytes(), ARROW, more=lines))
    return found


async def _checks(opened: Connections, broker: server.Server) -> tuple[float, list[float], float]:
    """The seconds of CPU of a check of a wide schema, of answers to checks, and of the CPU of a read of the topic."""
    (alone,), times = opened, list[float]()
    path, fields = "/v1/topics/wide", [{"name": f"f{at}", "type": "string"} for at in range(WIDE)]
    await alone.ask_json("PUT", path, {"format": "typed", "schema": {"fields": fields[:-1]}})
    begun_s = broker.cpu_s()
    for _ in range(CHECKS):
        begun = time.perf_counter()
        await alone.ask_json("PATCH", f"{path}?dry_run=true", {"schema": {"fields": fields}})
        times.append(time.perf_counter() - begun)
    checked_s = broker.cpu_s()
    for _ in range(CHECKS):
        await alone.ask_json("GET", path)
    return (checked_s - begun_s) / CHECKS, times, (broker.cpu_s() - checked_s) / CHECKS


async def _make_topics(opened: Connections) -> None:
    """A topic whose schema never changes, and two with VERSIONS changes."""
    (alone,) = opened
    config: dict[str, Any] = {"format": "typed", "initial_segments": 4}
    await alone.ask_json("PUT", "/v1/topics/before", {**config, "schema": {"fields": _fields(True)}})
    for topic in ("after", "behind"):
        path = f"/v1/topics/{topic}"
        await alone.ask_json("PUT", path, {**config, "schema": {"fields": _fields(False)}})
        for version in range(VERSIONS):  # a field comes and goes; the last one widens the int
            fields = _fields(version == VERSIONS - 1, [f"x{version}"] if version % 2 == 0 else [])
            await alone.ask_json("PATCH", path, {"schema": {"fields": fields}, "if_schema_id": version})


async def _spent(
    opened: Connections, broker: server.Server, kinds: Mapping[str, Sequence[bytes]]
) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Seconds of CPU, and by the clock, that each kind takes in all rounds but the first one, which warms."""
    spent, took = dict.fromkeys(kinds, 0.0), dict.fromkeys(kinds, 0.0)
    for number in range(ROUNDS + 1):
        for name in sorted(kinds, key=lambda name: (len(name) + number) % len(kinds)):
            before, begun = broker.cpu_s(), time.perf_counter()
            await ask_all(opened, kinds[name])
            await opened[-1].ask_json("POST", f"/v1/topics/{name.split()[-1]}/flush")  # an idle one may be closed
            spent[name] += broker.cpu_s() - before if number else 0
            took[name] += time.perf_counter() - begun if number else 0
    return spent, took


async def _publishes(opened: Connections) -> tuple[list[float], list[float]]:
    """The seconds of publishes that met a change, and of others."""
    alone, changing, *_ = opened
    path, times, spans = "/v1/topics/changing", list[tuple[float, float]](), list[tuple[float, float]]()
    await alone.ask_json("PUT", path, {"format": "typed", "schema": {"fields": _fields(True)}})
    over = False

    async def publish() -> None:
        while not over:
            begun = time.perf_counter()
            await alone.ask_json("POST", f"{path}/messages", {"value": {"n": 1, "city": "a"}})
            times.append((begun, time.perf_counter()))
            await asyncio.sleep(PAUSE_S)

    task = asyncio.create_task(publish())
    for change in range(CHANGES):
        fields, begun = _fields(True, [f"x{at}" for at in range(change + 1)]), time.perf_counter()
        await changing.ask_json("PATCH", path, {"schema": {"fields": fields}})
        spans.append((begun, time.perf_counter()))
        await asyncio.sleep(0.1)
    over = True
    await task
    met = [end - begin for begin, end in times if any(begin < last and end > first for first, last in spans)]
    return met, [end - begin for begin, end in times if not any(begin < last and end > first for first, last in spans)]
