"""A broker whose memory is full refuses publishes, and still takes what makes room."""

from pathlib import Path

import httpx

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from tests.support.brokers import inside
from tests.support.brokers.in_process import make_topic, publish, running


def client_of(broker: Broker) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(Application(broker)), base_url="http://127.0.0.1")


async def test_a_flush_is_never_refused_for_memory(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as http:
        topic = await make_topic(broker)
        await publish(broker, topic, "1")
        inside.budget(broker).recovering += inside.budget(broker).limit_bytes
        path = f"/v1/topics/{topic.name}"
        refused = await http.post(f"{path}/messages", json={"value": 2})
        assert (refused.status_code, refused.json()["type"]) == (503, "/problems/overloaded")
        assert (await http.post(f"{path}/flush")).status_code == 200
        inside.budget(broker).recovering -= inside.budget(broker).limit_bytes
        assert (await http.post(f"{path}/messages", json={"value": 2})).status_code == 200
