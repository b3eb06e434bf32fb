"""Leases with names, over HTTP: repeated pulls, answers by ids and by lease, modes, pauses and bounds."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from seaweedq.errors import Unavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import DirectPeers, InLoop, in_loop
from tests.support.brokers.reshaped import at
from tests.support.http.asking import problem_of

pytestmark = pytest.mark.brokers

TOPIC = "/v1/topics/t"
JSON = {"content-type": "application/json"}
SUB = f"{TOPIC}/subscriptions/s"


class Client:
    """One client of the subscription `s` of the topic `t`."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def make(self, *keys: str | None, **settings: Any) -> None:
        """The topic, the subscription, and a message for each key, whose value is its number."""
        assert (await self.http.put(TOPIC, json={})).status_code == 201
        made = await self.http.put(SUB, json={"start": "earliest", **settings})
        assert made.status_code == 201, made.text
        messages = [{"value": n, "key": key} for n, key in enumerate(keys)]
        answer = await self.http.post(f"{TOPIC}/messages", json={"messages": messages})
        assert answer.status_code == 200, answer.text

    async def pull(self, count: int = 100, **more: Any) -> tuple[str | None, list[int]]:
        """The lease, and the values."""
        lease, messages = await self.messages(count, **more)
        return lease, [message["value"] for message in messages]

    async def messages(self, count: int = 100, **more: Any) -> tuple[str | None, list[dict[str, Any]]]:
        """The lease, and the messages."""
        answer = await self.http.post(f"{SUB}/pull", json={"max_messages": count, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["lease"], answer.json()["messages"]

    async def tell(self, verb: str, offsets: Sequence[int] = (), **more: Any) -> list[Any]:
        """How many were acked, nacked or extended, how many late, and which ids are unknown."""
        ids = {"ids": [f"0-{offset}" for offset in offsets]} if offsets else {}
        answer = await self.http.post(f"{SUB}/{verb}", json={**ids, **more})
        assert answer.status_code == 200, answer.text
        return list(answer.json().values())

    async def gone(self, verb: str, lease: str) -> None:
        """The lease has ended."""
        problem_of(await self.http.post(f"{SUB}/{verb}", json={"lease": lease}), 410, "lease-ended", lease)


@asynccontextmanager
async def one(folder: Path) -> AsyncIterator[tuple[InLoop, Client]]:
    async with in_loop(folder, 1) as together, at(together, together.brokers[0]) as http:
        yield together, Client(http)


async def test_a_pull_that_is_repeated_gets_the_same_messages(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 6)
        lease, first = await client.messages(3, lease="mine", consumer="c")
        assert (lease, [message["value"] for message in first]) == ("mine", [0, 1, 2])
        assert await client.messages(3, lease="mine", consumer="c") == (lease, first)
        assert await client.tell("ack", [1]) == [1, 0, []]
        assert await client.pull(3, lease="mine", wait_s=30) == ("mine", [0, 2]), "what of it is unanswered, at once"
        other, messages = await client.messages(1, consumer="c", ahead=True)
        assert other not in (None, "mine")
        assert [(message["value"], message["attempt"]) for message in messages] == [(3, 1)]
        assert await client.tell("ack", lease="mine") == [3, 0, []]
        assert await client.tell("ack", lease="mine") == [3, 0, []], "an answer that was lost, again"
        await client.gone("pull", "mine")
        assert await client.tell("nack", lease=other) == [1, 0, []]
        await client.gone("pull", str(other))
        await client.gone("extend", "unknown")
        await client.gone("nack", "unknown")
        await client.gone("ack", "unknown")
        assert await client.pull(9) != (other, [3, 4, 5])


async def test_a_relay_that_loses_an_answer_does_not_take_the_next_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One consumer saw 5 to 9, then 0 to 4."""
    lost = 0
    relay = DirectPeers.relay

    async def losing(self: DirectPeers, method: str, url: str, path: str, *more: Any) -> Any:
        nonlocal lost
        found = await relay(self, method, url, path, *more)
        if path.endswith("/pull") and not lost:
            lost += 1
            raise Unavailable("the answer was lost")
        return found

    async with (
        in_loop(tmp_path, 2) as together,
        at(together, together.brokers[0]) as first,
        at(together, together.brokers[1]) as second,
    ):
        await Client(first).make(*[None] * 10)
        topic = inside.topic(together.brokers[0], "t")
        open_at_first = inside.dispatcher(together.brokers[0]).has(topic, "s")
        monkeypatch.setattr(DirectPeers, "relay", losing)
        other = Client(second if open_at_first else first)
        _, values = await other.pull(5, consumer="c")
        assert (lost, values) == (1, [0, 1, 2, 3, 4])
        assert (await other.pull(5, consumer="c", ahead=True))[1] == [5, 6, 7, 8, 9]


async def test_a_repeat_that_comes_after_its_lease_has_ended_takes_another_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client named no lease: 410 would tell it of one that it never saw."""
    relay, names = DirectPeers.relay, []

    async def late(
        self: DirectPeers, method: str, url: str, path: str, headers: Any, content: bytes, *more: Any
    ) -> Any:
        found = await relay(self, method, url, path, headers, content, *more)
        if path.endswith("/pull"):
            names.append(json.loads(content)["lease"])
            if len(names) == 1:
                assert (await Client(dispatching).tell("ack", lease=names[0])) == [2, 0, []]
                raise Unavailable("the answer was lost")
        return found

    async with (
        in_loop(tmp_path, 2) as together,
        at(together, together.brokers[0]) as first,
        at(together, together.brokers[1]) as second,
    ):
        await Client(first).make(*[None] * 3)
        topic = inside.topic(together.brokers[0], "t")
        open_at_first = inside.dispatcher(together.brokers[0]).has(topic, "s")
        dispatching, other = (first, second) if open_at_first else (second, first)
        monkeypatch.setattr(DirectPeers, "relay", late)
        lease, values = await Client(other).pull(2, consumer="c")
        assert values == [2]
        assert names[0] == names[1] != names[2] == lease


async def test_more_ids_than_may_be_are_said_to_be_too_many(tmp_path: Path) -> None:
    """They were `overloaded`, which is to be tried again, for ever."""
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 3)
        await client.pull(3)
        for verb in ("ack", "nack", "extend"):
            for count in (100_001, 102_000, 2_500_000):
                content = b'{"ids":["0-0"%b]}' % (b',"0-1"' * (count - 1))
                answer = await client.http.post(f"{SUB}/{verb}", content=content, headers=JSON)
                problem_of(answer, 422, "invalid-request", "ids")
        assert await client.tell("ack", [0, 1, 2] * 33_333) == [3, 0, []]
        settings = b'{"flush":{' + b'"a":1,' * 2_700_000 + b'"a":1}}'
        answer = await client.http.patch(TOPIC, content=settings, headers=JSON)
        problem_of(answer, 413, "request-too-large", "memory_budget_bytes")


async def test_a_lease_is_answered_with_its_own_consumer_alone(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 3)
        lease, _ = await client.pull(3, consumer="a")
        for consumer in ("b", "a "):
            answer = await client.http.post(f"{SUB}/ack", json={"lease": lease, "consumer": consumer})
            problem_of(answer, 409, "lease-of-another", consumer)
        for verb in ("extend", "nack"):
            assert (await client.http.post(f"{SUB}/{verb}", json={"lease": lease, "consumer": "b"})).status_code == 409
        assert await client.tell("ack", lease=lease, consumer="a") == [3, 0, []]


async def test_a_lease_is_pulled_again_by_its_own_consumer_alone(tmp_path: Path) -> None:
    """Whoever knew its name got the messages, and the lease a new deadline."""
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 3, mode="shared")
        await client.pull(2, consumer="a", lease="mine")
        answer = await client.http.post(f"{SUB}/pull", json={"consumer": "b", "lease": "mine", "wait_s": 5})
        problem_of(answer, 409, "lease-of-another", "b")
        assert await client.pull(consumer="a", lease="mine") == ("mine", [0, 1])
        assert await client.pull(lease="mine") == ("mine", [0, 1]), "nobody else is named"
        await client.pull(1, lease="anybodys")
        assert await client.pull(consumer="b", lease="anybodys") == ("anybodys", [2])


@pytest.mark.parametrize("mode", ["shared", "ordered"])
async def test_a_lease_that_is_over_is_gone_for_every_answer(tmp_path: Path, mode: str) -> None:
    """200 with 0 looked like an answer that had counted."""
    async with one(tmp_path) as (together, client):
        await client.make(*[None] * 4, mode=mode, ack_deadline_s=600)
        await client.pull(2, lease="over", consumer="a")
        topic = inside.topic(together.brokers[0], "t")
        subscription = await inside.dispatcher(together.brokers[0]).open(topic, "s")
        subscription.expire([0], float("inf"))
        await client.gone("extend", "over")
        await client.gone("nack", "over")
        assert (await client.pull(2, lease="next", consumer="a"))[1] == [0, 1]
        await client.gone("ack", "over")
        assert await client.tell("ack", [0], lease="over") == [0, 0, ["0-0"]]
        assert await client.tell("ack", [0], lease="next") == [1, 0, []]
        assert await client.tell("nack", lease="next", delay_s=60) == [1, 0, []]
        assert await client.tell("nack", lease="next", delay_s=60) == [1, 0, []], "an answer that was lost, again"
        await client.gone("extend", "next")
        assert await client.tell("ack", lease="next") == [2, 1, []], "late, and nobody else had it"


async def test_a_name_is_used_once_over_a_seek(tmp_path: Path) -> None:
    """The old client's ack took messages that it had never seen."""
    async with one(tmp_path) as (together, client):
        await client.make(*[None] * 9, mode="shared")
        await client.pull(3, lease="mine")
        assert (await client.http.post(f"{SUB}/seek", json={"to": {"offsets": {"0": 5}}})).status_code == 200
        for verb in ("pull", "ack", "nack", "extend"):
            await client.gone(verb, "mine")
        assert await client.tell("ack", [5], lease="mine") == [0, 0, ["0-5"]]
        assert (await client.http.post(f"{SUB}/seek", json={"to": "earliest"})).status_code == 200
        await client.gone("pull", "mine")
        topic = inside.topic(together.brokers[0], "t")
        dispatcher = inside.dispatcher(together.brokers[0])
        subscription = await dispatcher.open(topic, "s")
        subscription.sweep(together.brokers[0].process.clock.monotonic_s() + 31)
        assert await client.pull(3, lease="mine") == ("mine", [0, 1, 2]), "forgotten, as any other"


async def test_answers_by_ids_and_lease(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 8, mode="shared")
        a, _ = await client.pull(4, consumer="a")
        b, _ = await client.pull(4, consumer="b")
        assert await client.tell("ack", [0, 4], lease=a) == [1, 0, ["0-4"]]
        assert await client.tell("nack", [1, 4, 99], consumer="b") == [1, 0, ["0-1", "0-99"]]
        assert await client.tell("extend", [1, 2, 5], ack_deadline_s=600) == [3, 0, []]
        assert await client.tell("nack", [2], delay_s=600) == [1, 0, []]
        assert await client.tell("nack", [2]) == [0, 0, ["0-2"]]
        _, (again,) = await client.messages()
        assert (again["offset"], again["attempt"]) == (4, 2)
        assert await client.tell("ack", [2], consumer="a") == [1, 1, []], "late: nobody else has it"
        assert await client.tell("ack", [7], lease=b) == [1, 0, []]
        found = await client.http.post(f"{SUB}/ack", json={"ids": ["strange", "0-01", "9-9"]})
        assert found.json() == {"acked": 0, "late": 0, "unknown": ["strange", "0-01", "9-9"]}


async def test_shared_gives_each_message_to_one_and_waits_for_nobody(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 6, mode="shared", backoff_s=[0])
        assert (await client.pull(2, consumer="a"))[1] == [0, 1]
        assert (await client.pull(2, consumer="b"))[1] == [2, 3]
        assert await client.tell("nack", [0]) == [1, 0, []]
        _, messages = await client.messages(3, consumer="b")
        assert [(message["value"], message["attempt"]) for message in messages] == [(0, 2), (4, 1), (5, 1)]
        assert await client.tell("nack", [0]) == [1, 0, []]
        assert await client.tell("nack", [4]) == [1, 0, []]
        assert (await client.pull(3))[1] == [0], "what failed twice comes without others"
        assert (await client.pull(3))[1] == [4]


async def test_keyed_keeps_the_order_of_each_key_alone(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make("x", "y", "x", None, "y", "z", mode="keyed")
        assert (await client.pull(1, consumer="a"))[1] == [0]
        assert (await client.pull(2, consumer="b"))[1] == [1, 3], "the next of x waits for the first"
        assert (await client.pull(9, consumer="c"))[1] == [5]
        assert (await client.pull(9, consumer="c"))[1] == []
        assert await client.tell("ack", [0]) == [1, 0, []]
        assert (await client.pull(9, consumer="c"))[1] == [2]
        assert await client.tell("nack", [1], delay_s=600) == [1, 0, []]
        assert (await client.pull(9))[1] == [], "a delayed message blocks its key"
        assert await client.tell("ack", [1], consumer="b") == [1, 1, []]
        assert (await client.pull(9))[1] == [4]


async def test_keyed_reads_far_beyond_a_key_that_is_blocked(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*["hot"] * 9_000, "cold", mode="keyed")
        assert (await client.pull(1))[1] == [0]
        assert (await client.pull(5))[1] == [9_000]


async def test_max_in_flight_and_a_pause_hold_messages_back(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(*[None] * 5, mode="shared", max_in_flight=3)
        lease, values = await client.pull(100)
        assert values == [0, 1, 2]
        assert (await client.pull(100))[1] == []
        assert (await client.http.patch(SUB, json={"paused": True})).json()["paused"]
        assert await client.tell("ack", [0]) == [1, 0, []]
        assert (await client.pull(100))[1] == []
        assert (await client.pull(100, lease=lease))[1] == [1, 2], "leases stay"
        assert not (await client.http.patch(SUB, json={"paused": False})).json()["paused"]
        assert (await client.pull(100))[1] == [3]


async def test_a_successor_takes_acks_of_work_under_way(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 1, checkpoint_s=600) as together:
        (broker,) = together.brokers
        async with at(together, broker) as http:
            await Client(http).make(*[None] * 5)
            lease, _ = await Client(http).pull(3, consumer="c")
        await together.crash(broker)
        async with at(together, await together.begin_again(broker)) as http:
            client = Client(http)
            assert await client.tell("ack", [0, 2, 9], lease=str(lease)) == [2, 2, ["0-9"]]
            await client.gone("ack", str(lease))
            assert (await client.pull(9))[1] == [1, 3, 4]


async def test_what_is_not_valid_names_value_and_bound(tmp_path: Path) -> None:
    async with one(tmp_path) as (_, client):
        await client.make(None)
        for verb, body, *says in (
            ("pull", {"lease": ""}, "lease"),
            ("pull", {"lease": "a" * 65}, "lease"),
            ("pull", {"lease": "a/b"}, "lease", "a/b"),
            ("pull", {"lease": "a\n"}, "lease"),
            ("ack", {}, "ids", "lease"),
            ("ack", {"ids": []}, "ids", "1"),
            ("ack", {"ids": ["0-0"] * 100_001}, "ids", "100000"),
            ("nack", {"ids": ["0-0"], "delay_s": -1}, "delay_s", "-1", "0"),
            ("nack", {"ids": ["0-0"], "delay_s": 43_201}, "delay_s", "43201", "43200"),
            ("nack", {"ids": ["0-0"], "reason": "x" * 256}, "reason", "255"),
            ("extend", {"ids": ["0-0"], "ack_deadline_s": 0}, "ack_deadline_s", "1"),
            ("extend", {"ids": ["0-0"], "delay_s": 1}, "delay_s"),
        ):
            problem_of(await client.http.post(f"{SUB}/{verb}", json=body), 422, "invalid-request", *says)
        rejected = await client.http.post(f"{SUB}/nack", json={"ids": ["0-0"], "reject": True})
        problem_of(rejected, 409, "no-dead-letter-topic", "dead_letter_topic")
