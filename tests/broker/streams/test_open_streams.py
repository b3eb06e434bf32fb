"""The number of open streams in all brokers, some of which do not answer."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.rpc.client import Peers
from seaweedq.broker.streams import OpenStreams
from seaweedq.broker.topics import Topic
from seaweedq.coordination.roster import Roster
from seaweedq.errors import NotOwner, PeerTooOld, Unavailable


class KnownTopic:
    """What a call says of a topic."""

    name, record = "t", SimpleNamespace(incarnation=1)


@pytest.mark.parametrize(
    ("answers", "streams", "silent"),
    [
        ({"b2": 3, "b3": 4}, 8, 0),
        ({"b2": NotOwner("it does not know the topic"), "b3": 4}, 5, 0),
        ({"b2": Unavailable("no answer"), "b3": PeerTooOld("old")}, 1, 2),
        ({}, 1, 0),
    ],
)
async def test_brokers_that_do_not_answer_are_counted(answers: dict[str, Any], streams: int, silent: int) -> None:
    async def call(url: str, *_: Any) -> int:
        found = answers[url]
        if isinstance(found, Exception):
            raise found
        return int(found)

    named = {id: SimpleNamespace(record=SimpleNamespace(url=id)) for id in ("b1", *answers)}
    peers, roster = SimpleNamespace(call=call), SimpleNamespace(brokers=named)
    counted = OpenStreams(cast(Roster, roster), cast(Peers, peers), "b1")
    topic = cast(Topic, KnownTopic())
    with counted.counting(topic):
        assert await counted.everywhere(topic) == (streams, silent)
    assert counted.here(topic) == 0


async def test_a_thousand_who_ask_at_once_share_the_calls() -> None:
    asked: list[str] = []

    async def call(url: str, *_: Any) -> int:
        asked.append(url)
        await asyncio.sleep(0)
        return 2

    roster = SimpleNamespace(brokers={id: SimpleNamespace(record=SimpleNamespace(url=id)) for id in ("b1", "b2")})
    counted = OpenStreams(cast(Roster, roster), cast(Peers, SimpleNamespace(call=call)), "b1")
    topic = cast(Topic, KnownTopic())
    first = asyncio.create_task(counted.everywhere(topic))
    await asyncio.sleep(0)
    first.cancel()  # the others get their answers all the same
    assert await asyncio.gather(*(counted.everywhere(topic) for _ in range(1_000))) == [(2, 0)] * 1_000
    assert asked == ["b2"]
    assert await counted.everywhere(topic) == (2, 0)
    assert asked == ["b2"] * 2
