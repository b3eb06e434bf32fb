"""A forward whose answer is lost, and whose segment gives way before it is tried again: each message is there once, and
the answer says where."""

from pathlib import Path
from typing import Any

import pytest

from seaweedq.errors import Unavailable
from tests.support.brokers import inside
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, messages_of, opened, records

pytestmark = pytest.mark.brokers


@pytest.mark.parametrize("producer", [None, "p"])
@pytest.mark.parametrize("change", ["split", "merge", "split and merge"])
@pytest.mark.parametrize("taken", [True, False])
async def test_each_message_is_there_once(tmp_path: Path, producer: str | None, change: str, taken: bool) -> None:
    async with in_loop(tmp_path, publish_timeout_s=60) as together:
        one, two = together.brokers
        await make(one, 2)
        topic, theirs = inside.topic(one, "t"), await inside.catalog(two).require("t")
        for number, record in inside.catalog(two).segments(theirs).items():
            if record.owner == two.id:
                assert await inside.mover(two).move(theirs, number, one.id)
        await until(lambda: {r.owner for r in records(one).values()} == {one.id})
        post, lost = two.process.peers.post, 0

        async def loses(url: str, path: str, body: bytes, timeout_s: float) -> bytes:
            nonlocal lost
            if path != "publish" or lost:
                return await post(url, path, body, timeout_s)
            lost += 1
            if taken:
                await post(url, path, body, timeout_s)
            for step in change.split(" and "):
                before = opened(one)
                if step == "split":
                    await inside.planner(one).plan(topic, before[:1], [1 << 28, 1 << 29])
                else:
                    await inside.planner(one).plan(topic, before)
                await until(lambda gone=before[0]: records(two)[gone].state == "sealed")
            raise Unavailable("the answer is lost")

        two.process.peers.post = loses  # type: ignore[method-assign]
        headers = {"Producer-Id": producer, "Producer-Sequence": "0"} if producer else {}
        body = {"messages": messages_of("k", 0, 60)}
        async with at(together, two) as http:
            answer = await http.post(f"{TOPIC}/messages", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            assert lost == 1
            there: dict[str, Any] = {}
            for number in records(one):
                page = (await http.get(f"{TOPIC}/segments/{number}/messages")).json()
                for message in page["messages"]:
                    assert message["key"] not in there, "it is there twice"
                    there[message["key"]] = message["id"]
            assert [there[message["key"]] for message in body["messages"]] == answer.json()["ids"]
            if producer:
                again = await http.post(f"{TOPIC}/messages", json=body, headers=headers)
                assert again.json()["ids"] == answer.json()["ids"]
                assert again.json()["duplicate"]
