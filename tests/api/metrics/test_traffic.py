"""Requests are counted by route and status, and timed by outcome; no name that a client chose becomes a label, and
what one broker hands on to another counts once."""

import asyncio
import re
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from seaweedq.broker.broker import Broker
from seaweedq.errors import JournalUnavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop
from tests.support.brokers.reshaped import at, make

pytestmark = pytest.mark.brokers

TOPIC = "/v1/topics/t"
TEMPLATE = "/v1/topics/{topic}"


async def samples(http: httpx.AsyncClient, name: str) -> dict[str, float]:
    """The samples of a name that are not 0, by the values of their labels."""
    families = text_string_to_metric_families((await http.get("/metrics")).text)
    found = [one for family in families for one in family.samples if one.name == name and one.value]
    return {" ".join(one.labels.values()): one.value for one in found}


async def responses(http: httpx.AsyncClient) -> dict[str, float]:
    found = await samples(http, "seaweedq_http_responses_total")
    return {labels: count for labels, count in found.items() if "/metrics" not in labels}


async def took(http: httpx.AsyncClient, operation: str) -> dict[str, float]:
    found = await samples(http, "seaweedq_request_duration_seconds_count")
    return {k.partition(" ")[2]: count for k, count in found.items() if k.startswith(f"{operation} ")}


async def test_answers_are_counted_by_template_and_status(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        await make(together.brokers[0])
        await http.post(f"{TOPIC}/messages", json={"value": 1})
        await http.post(f"{TOPIC}/messages", content=b"{", headers={"content-type": "application/json"})
        await http.get("/v1/topics/absent")
        await http.get("/v1/topics/other-absent")
        await http.get("/nowhere/my-secret")
        await http.request("BREW", f"{TOPIC}/messages")
        await http.get("/healthz", headers={"host": "evil.example"})
        assert await responses(http) == {
            f"POST {TEMPLATE}/messages 200": 1,
            f"POST {TEMPLATE}/messages 400": 1,
            f"GET {TEMPLATE} 404": 2,
            "other none 404": 1,
            "other none 405": 1,
            "other none 421": 1,
        }
        text = (await http.get("/metrics")).text
        assert "absent" not in text
        assert "nowhere" not in text
        assert await took(http, "publish") == {"ok": 1, "refused": 1}


async def test_a_pull_that_waited_is_not_as_slow_as_it_looks(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        await make(together.brokers[0])
        path = f"{TOPIC}/subscriptions/s"
        await http.put(path, json={"start": "earliest"})
        assert (await http.post(f"{path}/pull", json={"wait_s": 0})).json()["messages"] == []
        waiting = asyncio.create_task(http.post(f"{path}/pull", json={"wait_s": 20}))
        while not (await http.get(path)).json()["waiting_pulls"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await http.post(f"{TOPIC}/messages", json={"value": 1})
        (message,) = (await waiting).json()["messages"]
        await http.post(f"{TOPIC}/messages", json={"value": 2})
        assert len((await http.post(f"{path}/pull", json={"wait_s": 20})).json()["messages"]) == 1
        await http.post(f"{path}/ack", json={"ids": [message["id"]]})
        await http.post(f"{path}/nack", json={})
        assert await took(http, "pull") == {"empty": 1, "waited": 1, "ok": 1}
        assert await took(http, "ack") == {"ok": 1}
        assert await took(http, "nack") == {"refused": 1}


async def test_what_is_handed_on_counts_where_it_came_in(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 2) as together:
        one, other = together.brokers
        await make(one)
        name = dispatched_by(one, other)
        async with at(together, one) as here, at(together, other) as there:
            assert (await here.put(f"{TOPIC}/subscriptions/{name}", json={})).status_code == 201
            assert (await here.post(f"{TOPIC}/subscriptions/{name}/pull", json={"wait_s": 0})).status_code == 200
            assert await took(here, "pull") == {"empty": 1}
            assert await took(there, "pull") == {}
            assert not [labels for labels in await responses(there) if "pull" in labels]


def dispatched_by(asked: Broker, broker: Broker) -> str:
    """The name of a subscription that a broker is to dispatch."""
    preferred = inside.assignment(asked).preferred
    topic = inside.topic(asked, "t")
    return next(name for name in map("s{}".format, range(1000)) if preferred(topic, name) == broker.id)


async def test_commits_flushes_and_the_store_are_timed_by_outcome(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        (broker,) = together.brokers
        await make(broker)
        before = await samples(http, "seaweedq_store_sent_bytes_total")
        await http.post(f"{TOPIC}/messages", json={"value": "x" * 5000})
        assert (await samples(http, "seaweedq_tails"))[""] == 1
        assert (await samples(http, "seaweedq_tail_oldest_seconds"))[""] > 0
        assert (await samples(http, "seaweedq_commit_duration_seconds_count"))["ok"] >= 1
        assert (await http.post(f"{TOPIC}/flush")).status_code == 200
        assert await samples(http, "seaweedq_tails") == {}
        assert await samples(http, "seaweedq_tail_oldest_seconds") == {}
        assert (await samples(http, "seaweedq_flush_duration_seconds_count"))["ok"] >= 1
        assert (await samples(http, "seaweedq_store_request_duration_seconds_count"))["create ok"] >= 1
        sent = (await samples(http, "seaweedq_store_sent_bytes_total"))["create"] - before["create"]
        assert sent >= 1000
        journal, append = inside.journal(broker), inside.journal(broker).append

        async def fail(frames: object) -> int:
            raise JournalUnavailable("the disk is full")

        journal.append = fail  # type: ignore[method-assign,assignment]
        assert (await http.post(f"{TOPIC}/messages", json={"value": 1})).status_code == 503
        journal.append = append  # type: ignore[method-assign]
        assert (await samples(http, "seaweedq_commit_duration_seconds_count"))["failed"] == 1
        assert await took(http, "publish") == {"ok": 1, "failed": 1}


async def test_a_scrape_of_10_000_files_adds_nothing_to_what_is_known(tmp_path: Path) -> None:
    """Each flush made the next scrape sum up all files of the segment, 4 ms of the event loop for 10,000."""
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        (broker,) = together.brokers
        await make(broker)
        await http.post(f"{TOPIC}/messages", json={"value": 1})
        await http.post(f"{TOPIC}/flush")
        chain = inside.topic(broker, "t").opened[0].chain
        sizes = chain.known_sizes()
        await http.post(f"{TOPIC}/messages", json={"value": 2})
        await http.post(f"{TOPIC}/flush")
        assert chain.known_sizes() is sizes
        assert sizes.size_since(1) < sizes.size_since(0)
        assert sizes.size_since(2) == 0


async def test_the_version_and_the_process_are_shown(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1) as together, at(together, together.brokers[0]) as http:
        text = (await http.get("/metrics")).text
        assert re.search(r'^seaweedq_build_info\{version="\d+\.\d+\.\d+\S*"\} 1.0$', text, re.MULTILINE)
        assert re.search(r"^process_resident_memory_bytes \d", text, re.MULTILINE)
        assert re.search(r"^process_open_fds \d", text, re.MULTILINE)
