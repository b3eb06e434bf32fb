"""The stream of a subscription in a cluster: clients that come and go at all brokers, while segments are replaced and
the dispatcher moves or dies. Each message is acked, nothing comes after its ack, and a client that goes on gets what
is unacked in the order in which it was sent."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from seaweedq.broker.broker import Broker
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import InLoop, in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, beside, change_all, make, publishing
from tests.support.http.listening import Parsed, listening

pytestmark = pytest.mark.brokers

SUB = f"{TOPIC}/subscriptions/s"
STREAM = f"{SUB}/stream"


class Coming:
    """Clients who listen for a moment, ack some of what they got, and go on elsewhere. `acked` counts the acks of each
    id, `seen` says in which order the messages of each key came first. `acked_before` are ids that were sent though
    they were acked: a client that sleeps beyond its deadline has messages that others have acked since."""

    def __init__(self, together: InLoop, seed: int, forgetting: float) -> None:
        self.acked: Counter[str] = Counter()
        self.seen: dict[str, list[int]] = {}
        self.acked_before: list[str] = []
        self._together = together
        self._random = Random(seed)
        self._forgetting = forgetting  # how often a client comes again as a new one

    async def run(self, name: str, enough: Any) -> None:
        """One client: it comes again with its last id, or as a new one, until all that was published is acked."""
        last, lives = "", 0
        while not enough():
            broker = self._random.choice(self._living())
            if self._random.random() < self._forgetting:
                last, lives = "", lives + 1
            headers = {"Last-Event-ID": last} if last else {}
            app = self._together.apps[broker.process.url]
            async with listening(app, f"{STREAM}?consumer={name}-{lives}&max_in_flight=40", headers) as one:
                if one.status != 200:
                    assert one.status == 503, one.content
                    continue
                self._hear(one.content)
                one.hear = self._hear
                await asyncio.sleep(self._random.random() * 0.05)
                found = Parsed()
                content = one.content
                cut = len(content) * self._random.choice((1, 2, 2)) // 2
                found.feed(content[: max(cut, content.find(b"\n\n") + 2)])
            events = [event for event in found.events if event.kind == "message"]
            rows = [json.loads(event.data) for event in events]
            self._note(rows)
            last = found.last_id or last
            await self._ack([row["id"] for row in rows])

    def _living(self) -> list[Broker]:
        return [one for one in self._together.brokers if one.process.url in self._together.apps]

    def _hear(self, content: bytes) -> None:
        came = Parsed()
        came.feed(content)
        ids = [json.loads(event.data)["id"] for event in came.events if event.kind == "message"]
        self.acked_before += [one for one in ids if self.acked[one]]

    def _note(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            known = self.seen.setdefault(row["key"], [])
            if row["value"] not in known:
                known.append(row["value"])

    async def _ack(self, ids: list[str]) -> None:
        """Ack most of them; what the answer calls unknown is with another one."""
        chosen = [one for one in ids if self._random.random() < 0.9]
        if not chosen:
            return
        async with at(self._together, self._random.choice(self._living())) as http:
            answer = await http.post(f"{SUB}/ack", json={"ids": chosen})
        if answer.status_code == 200:
            unknown = set(answer.json()["unknown"])
            self.acked.update(one for one in chosen if one not in unknown)


async def subscribe(together: InLoop, **settings: Any) -> None:
    async with at(together, together.brokers[0]) as http:
        answer = await http.put(SUB, json={"start": "earliest", "ack_deadline_s": 1, **settings})
        assert answer.status_code == 201, answer.text


async def left(http: httpx.AsyncClient) -> int:
    found = (await http.get(SUB)).json()
    return int(found["lag_total"]["messages"])


@pytest.mark.long
@pytest.mark.parametrize("mode", ["ordered", "keyed"])
@pytest.mark.long
async def test_each_message_is_acked_once_while_streams_come_and_go(tmp_path: Path, mode: str) -> None:
    async with in_loop(tmp_path, 2) as together:
        await make(together.brokers[0], 2)
        await subscribe(together, mode=mode)
        # In ordered a consumer keeps its segments for a second after it went: new ones all the time would get none.
        coming, changed = Coming(together, 7, 0 if mode == "ordered" else 0.2), asyncio.Event()

        def enough() -> bool:
            return changed.is_set() and len(coming.acked) >= published.total

        async with publishing(together) as published, beside(*(coming.run(f"c{n}", enough) for n in range(3))):
            await change_all(together, 1)
            published.ending = True
            changed.set()
        assert not coming.acked_before
        assert set(coming.seen) == set(published.taken)
        for key, count in published.taken.items():
            assert coming.seen[key] == list(range(count)), key
        async with at(together, together.brokers[1]) as http:
            assert await left(http) == 0


async def test_a_stream_lives_on_when_its_dispatcher_dies_and_when_it_moves(tmp_path: Path) -> None:
    async with in_loop(tmp_path, 3) as together:
        await make(together.brokers[0], 2)
        await subscribe(together, mode="shared", ack_deadline_s=600)
        living = list(together.brokers)
        topics = {broker: inside.topic(broker, "t") for broker in together.brokers}
        async with at(together, together.brokers[0]) as http:
            await http.post(f"{SUB}/pull", json={})

        def dispatching() -> Broker | None:
            return next((one for one in living if inside.dispatcher(one).has(topics[one], "s")), None)

        await until(lambda: dispatching() is not None)
        dead = dispatching()
        assert dead
        others = [one for one in together.brokers if one is not dead]
        app = together.apps[others[0].process.url]
        async with at(together, others[1]) as http, listening(app, STREAM) as one:

            async def publish(*values: int) -> None:
                body = {"messages": [{"value": value, "key": str(value)} for value in values]}
                assert (await http.post(f"{TOPIC}/messages", json=body)).status_code == 200

            await publish(1, 2)
            await one.until(2)
            living.remove(dead)
            await together.crash(dead)
            await until(lambda: dead.id not in inside.roster(others[0]).brokers)
            await publish(3)
            await until(lambda: {1, 2, 3} <= set(one.values))
            ids = {message["value"]: message["id"] for message in one.messages}
            async with asyncio.timeout(20):
                answer = await http.post(f"{SUB}/ack", json={"ids": [ids[1]]})
            assert answer.json()["acked"] == 1
            now = dispatching()
            assert now in others
            await inside.dispatcher(now).hand_over(topics[now], "s")
            await publish(4)
            await until(lambda: 4 in one.values)
            last = one.parsed.last_id
            before = Counter(one.values)
        elsewhere = together.apps[others[1].process.url]
        async with at(together, others[1]) as http, listening(elsewhere, STREAM, {"Last-Event-ID": last}) as again:
            await asyncio.sleep(0.05)
            assert again.values == [], "the new dispatcher knows the leases that were handed over"
            await http.post(f"{SUB}/ack", json={"ids": list(ids.values())})
            assert before[4] == 1
