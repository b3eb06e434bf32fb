"""Segments of a topic are listed in pages: what changes between two of them keeps nobody from publishing."""

from pathlib import Path

import pytest

from seaweedq.coordination.interface import Page
from tests.support.brokers import inside
from tests.support.brokers.deaf import deaf
from tests.support.brokers.in_process_cluster import in_loop, until
from tests.support.brokers.reshaped import TOPIC, at, make, records

pytestmark = pytest.mark.brokers


async def test_a_split_between_two_pages_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with in_loop(tmp_path, publish_timeout_s=4) as together:
        one, two = together.brokers
        await make(one)
        topic, theirs = inside.topic(one, "t"), await inside.catalog(two).known("t")
        await inside.catalog(two).whole(theirs)
        await deaf(two)
        range_, split = together.coordination.range, False

        async def pages(prefix: str, after: str = "", limit: int = 500) -> Page:
            nonlocal split
            many = prefix.startswith("segments/t/") and limit > 1
            page = await range_(prefix, after, 2 if many else limit)
            if many and not split:
                split = True
                await inside.planner(one).plan(topic, [1], [1 << 29])
                await until(lambda: records(one)[1].state == "sealed")
            return page

        await inside.planner(one).plan(topic, [0], [1 << 30])
        await until(lambda: records(one)[0].state == "sealed")
        await inside.catalog(two).look("t", 1)  # as of a successor alone: the broker looks at all of them
        monkeypatch.setattr(together.coordination, "range", pages)
        async with at(together, two) as http:
            answer = await http.post(f"{TOPIC}/messages", json={"key": "k", "value": 1})
            assert answer.status_code == 200, answer.text
        assert split
