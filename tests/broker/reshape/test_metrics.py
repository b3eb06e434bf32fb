"""Metrics of splits, merges and rolls: counts by kind, what is under way, and how long publishes were held."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from seaweedq.broker.reshape.reshaper import BOUNDS_S, Counters, kind_of
from seaweedq.coordination.interface import Delete, Put
from seaweedq.coordination.records import Intent, Successor
from tests.support.brokers import inside
from tests.support.brokers.changing import TOPIC, ask, at, make, records
from tests.support.brokers.in_process_cluster import in_loop, until

PAUSE = "seaweedq_reshape_pause_seconds"
HELD_S = 0.3


async def metrics(http: httpx.AsyncClient) -> dict[str, float]:
    """Each sample by its name, with the values of its labels behind it."""
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    samples = (sample for family in families for sample in family.samples)
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


def reshapes(found: dict[str, float]) -> dict[str, float]:
    return {kind: found[f"seaweedq_reshapes_total {kind}"] for kind in ("split", "merge", "roll")}


@pytest.mark.brokers
async def test_each_broker_counts_what_it_carried_out_by_kind(tmp_path: Path) -> None:
    async with in_loop(tmp_path) as together:
        one, two = together.brokers
        await make(one)
        async with at(together, one) as here, at(together, two) as there:
            assert reshapes(await metrics(here)) == {"split": 0, "merge": 0, "roll": 0}
            began_s = time.monotonic()
            for segment, change, body in (
                (0, "split", {"parts": 3}),
                (1, "roll", None),
                (2, "merge", {"with": 4}),
                (3, "move", {"to": "b1"}),
                (3, "roll", None),
                (99, "roll", None),
                (5, "split", None),
            ):
                answer = await ask(there, segment, change, body)
                assert answer.status_code == (404 if segment == 99 else 200), answer.text
            passed_s = time.monotonic() - began_s
            mine, others = await metrics(here), await metrics(there)
            assert reshapes(mine) == {"split": 2, "merge": 1, "roll": 1}
            assert reshapes(others) == {"split": 0, "merge": 0, "roll": 1}
            assert mine["seaweedq_reshapes_under_way"] == others["seaweedq_reshapes_under_way"] == 0
            assert (mine[f"{PAUSE}_count"], others[f"{PAUSE}_count"]) == (4, 1)
            assert 0 < mine[f"{PAUSE}_sum"] + others[f"{PAUSE}_sum"] < passed_s


@pytest.mark.brokers
async def test_the_pause_is_as_long_as_publishes_are_held(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        await make(broker)
        async with at(together, broker) as http:
            await http.post(f"{TOPIC}/messages", json={"value": 1})
            held, ends = asyncio.Event(), asyncio.Event()

            async def slow(writes: Sequence[Put | Delete]) -> None:
                if sum(write.key.startswith("segments/") for write in writes) == 3:  # the sealed one and its successors
                    held.set()
                    await ends.wait()

            together.coordination.before = slow
            splitting = asyncio.create_task(ask(http, 0, "split"))
            await held.wait()
            during = await metrics(http)
            assert (during["seaweedq_reshapes_under_way"], during[f"{PAUSE}_count"]) == (1, 0)
            publishing = asyncio.create_task(http.post(f"{TOPIC}/messages", json={"value": 2}))
            await asyncio.sleep(HELD_S)
            assert not publishing.done()
            ends.set()
            assert (await publishing).status_code == 200
            assert (await splitting).status_code == 200
            await until(lambda: not inside.reshaper(broker).under_way)
            after = await metrics(http)
    assert after[f"{PAUSE}_count"] == 1
    assert HELD_S <= after[f"{PAUSE}_sum"] < HELD_S + 30
    assert {n: r.end_offset for n, r in records(broker).items() if r.state == "sealed"} == {0: 1}


def test_pauses_fall_into_classes() -> None:
    counters, roll = Counters(), Intent(1, "committed", (0,), (Successor(1, 0, 8),))
    for pause_s in (0.0, 0.01, 0.011, 0.2, 30.0, 30.1, 99.0):
        counters.add(roll, pause_s)
    by_bound = dict(zip([*BOUNDS_S, "more"], counters.pauses.counts, strict=True))
    assert {bound: count for bound, count in by_bound.items() if count} == {
        0.01: 2,
        0.02: 1,
        0.2: 1,
        30.0: 1,
        "more": 2,
    }
    assert counters.pauses.sum_s == pytest.approx(159.321)
    assert counters.done == {"roll": 7}


@pytest.mark.parametrize(
    ("segments", "successors", "kind"),
    [(1, 2, "split"), (1, 32, "split"), (2, 1, "merge"), (9, 1, "merge"), (1, 1, "roll")],
)
def test_kinds(segments: int, successors: int, kind: str) -> None:
    heirs = tuple(Successor(n, n, n + 1) for n in range(successors))
    assert kind_of(Intent(0, "planned", tuple(range(segments)), heirs)) == kind


@pytest.mark.brokers
async def test_the_histogram_adds_up(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together:
        (broker,) = together.brokers
        for pause_s in (0.004, 0.15, 0.15, 77.0):
            inside.reshaper(broker).counters.add(Intent(1, "committed", (0,), (Successor(1, 0, 8),)), pause_s)
        async with at(together, broker) as http:
            found = await metrics(http)
    buckets = {name.split()[1]: value for name, value in found.items() if name.startswith(f"{PAUSE}_bucket")}
    assert [float(bound) for bound in buckets] == [*BOUNDS_S, float("inf")]
    assert list(buckets.values()) == [1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3, 4]
    assert found[f"{PAUSE}_count"] == 4
    assert found[f"{PAUSE}_sum"] == pytest.approx(77.304)
