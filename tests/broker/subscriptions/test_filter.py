"""A subscription with a filter delivers what all of its conditions hold for; the rest counts as acked."""

from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seaweedq.broker.subscriptions.policy import left_out
from seaweedq.broker.subscriptions.pull_rounds import Pull
from seaweedq.coordination.records import MessageFilter
from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import Single, rows_of_singles
from tests.support import privates
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import ARROW, TOPIC, make, opened, replace
from tests.support.brokers.subscribing import SUBSCRIPTION, ack, everywhere, lag, pull
from tests.support.http.asking import problem_of
from tests.support.tiers import later

TEXT = st.text("ab%_é", max_size=3)
LAYOUT = Layout.from_format(Format.JSON)


@given(
    st.lists(st.tuples(st.none() | TEXT, st.none() | st.dictionaries(TEXT, TEXT, max_size=3)), max_size=8),
    st.none() | st.text("ab%_é", min_size=1, max_size=2),
    st.dictionaries(TEXT, TEXT, max_size=2),
)
def test_it_is_what_a_loop_over_the_messages_would_say(
    messages: list[tuple[str | None, dict[str, str] | None]], prefix: str | None, headers: dict[str, str]
) -> None:
    rows = rows_of_singles([Single(key, b"1", one, 0, None) for key, one in messages], LAYOUT)
    kept = [
        (prefix is None or (key is not None and key.startswith(prefix)))
        and all((one or {}).get(name) == value for name, value in headers.items())
        for key, one in messages
    ]
    assert left_out(MessageFilter(prefix, headers), rows).tolist() == [not one for one in kept]


async def subscribe(http: httpx.AsyncClient, wanted: dict[str, Any], **more: Any) -> None:
    answer = await http.put(SUBSCRIPTION, json={"start": "earliest", "filter": wanted, **more})
    assert answer.status_code == 201, answer.text
    assert answer.json()["filter"].items() >= wanted.items()


@pytest.mark.brokers
@pytest.mark.parametrize("mode", ["ordered", "keyed", "shared"])
async def test_what_is_left_out_counts_as_acked(tmp_path: Path, mode: str) -> None:
    """Over a split, whose successors wait for what is delivered; also behind a dispatcher that has died."""
    async with in_loop(tmp_path, checkpoint_s=600, publish_timeout_s=20) as together, everywhere(together) as clients:
        one, two = together.brokers
        await make(one)
        messages = [{"key": f"{'ab'[n % 2]}{n % 8}", "value": n, "headers": {"n": str(n % 4)}} for n in range(80)]
        assert (await clients[0].post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200
        await subscribe(clients[1], {"key_prefix": "a", "headers": {"n": "2"}}, mode=mode)
        first = await pull(clients[0], 5, wait_s=5)
        await ack(clients[0], [m["id"] for m in first])
        await replace(together, [0], 2, [one, two])
        assert (await clients[0].post(f"{TOPIC}/messages", json={"messages": messages})).status_code == 200
        (dispatcher,) = [b for b in together.brokers if inside.dispatcher(b).names()]
        (left,) = [c for c, b in zip(clients, together.brokers, strict=True) if b is not dispatcher]
        await together.crash(dispatcher)
        found = list(first)
        while len(found) < 40:
            came = await pull(left, wait_s=10)
            found += came
            await ack(left, [m["id"] for m in came])
        assert sorted(m["value"] for m in found) == sorted([n for n in range(80) if n % 4 == 2] * 2)
        assert await pull(left) == []
        assert sum(one["messages"] for one in await lag(left)) == 0
        assert {one["segment"] for one in await lag(left)} <= set(opened(one if left is clients[0] else two))


@pytest.mark.brokers
@pytest.mark.parametrize("mode", ["ordered", later("keyed")])
async def test_a_pull_filters_in_turns_and_needs_no_frames(tmp_path: Path, mode: str) -> None:
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await make(together.brokers[0])
        for n in range(3):
            keys = [f"k{n}"] * 50_000 + (["wanted"] if n == 2 else [])
            batch = pa.record_batch({"value": ["1"] * len(keys), "_key": keys})
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            sent = {"content": sink.getvalue().to_pybytes(), "headers": {"content-type": ARROW}}
            assert (await http.post(f"{TOPIC}/messages", **sent)).status_code == 200
        await subscribe(http, {"key_prefix": "wanted"}, mode=mode)
        commits = inside.group_commit(together.brokers[0]).commits
        (broker,) = together.brokers
        dispatcher = inside.dispatcher(broker)
        topic = inside.topic(broker, "t")
        subscription = await dispatcher.open(topic, "s")
        look = await privates.pulling(dispatcher).round(topic, "s", Pull())
        assert not look.found.messages
        assert look.rows_left == 0
        assert 65_536 <= subscription.acked_to(0) < 100_000
        (message,) = await pull(http, 100, "c", 10)
        assert (message["key"], message["offset"]) == ("wanted", 150_000)
        assert subscription.acked_to(0) == 150_000
        assert inside.group_commit(broker).commits == commits
        await ack(http, [message["id"]])
        assert (await lag(http))[0]["messages"] == 0


@pytest.mark.brokers
async def test_bounds_of_a_filter(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, everywhere(together) as (http,):
        await make(together.brokers[0])
        bad: list[tuple[dict[str, Any], str]] = [
            ({"key_prefix": ""}, "filter.key_prefix"),
            ({"key_prefix": "a" * 1_025}, "1024"),
            ({"headers": {str(n): "" for n in range(17)}}, "16"),
            ({"headers": {"a" * 256: ""}}, "255"),
            ({"headers": {"a": "b" * 4_097}}, "4096"),
            ({"headers": {}}, "filter"),
        ]
        for wanted, told in bad:
            problem_of(await http.put(SUBSCRIPTION, json={"filter": wanted}), 422, "invalid-request", told)
        await subscribe(http, {"key_prefix": "a"})
        for wanted in (None, {"key_prefix": "b"}):
            problem_of(await http.patch(SUBSCRIPTION, json={"filter": wanted}), 422, "invalid-request", "filter")
        changed = {"start": "earliest", "filter": {"key_prefix": "b"}}
        problem_of(await http.put(SUBSCRIPTION, json=changed), 409, "subscription-exists", "filter")
