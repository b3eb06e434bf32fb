"""A broker whose watch brings no news still publishes to successors, and reads them."""

from pathlib import Path

from in_process_cluster import in_loop, until
from reshaped import TOPIC, at, make, messages_of, records
from test_review_views import deaf


async def test_a_broker_that_hears_no_news_publishes_to_successors(tmp_path: Path) -> None:
    async with in_loop(tmp_path, publish_timeout_s=4) as together:
        one, two = together.brokers
        await make(one)
        await two.catalog.known("t")
        await until(lambda: len(records(two)) == 1)
        await deaf(two)
        async with at(together, two) as http:
            assert (await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", 0, 9)})).status_code == 200
            await one.planner.plan(one.catalog.topic("t"), [0], [1 << 30])
            await until(lambda: records(one)[0].state == "sealed")
            assert records(two)[0].state == "open"
            single = await http.post(f"{TOPIC}/messages", json={"key": "k", "value": 1})
            assert single.status_code == 200, single.text
            assert (await http.post(f"{TOPIC}/messages", json={"messages": messages_of("k", 1, 9)})).status_code == 200
            for number in (0, 1, 2):
                answer = await http.get(f"{TOPIC}/segments/{number}/messages")
                assert answer.status_code == 200, answer.text
                assert answer.json()["sealed"] == (number == 0)
