"""The services of a broker: one more is its class and a line; they end in the reverse order of their start."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import httpx
import pytest
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from seaweedq.api.app import Application
from seaweedq.broker.broker import Broker
from seaweedq.broker.context import Context
from seaweedq.broker.reshape.reshaping import Drain
from seaweedq.broker.service import Service, Tasks
from seaweedq.broker.topics.catalog import Topic
from seaweedq.errors import CoordinationUnavailable
from tests.support import privates
from tests.support.brokers.in_process import make_topic, running
from tests.support.brokers.in_process_cluster import in_loop


class Toy(Service):
    """Says what it is asked for."""

    def __init__(self, broker: Broker) -> None:
        self.said: list[str] = []
        self._broker = broker

    async def run(self) -> Tasks:
        """Waits for ever."""
        self.said.append("run")
        return {"playing": asyncio.Event().wait()}

    def begin_stop(self) -> None:
        """Once: the broker may be asked twice."""
        self.said += ["begin_stop"] if "begin_stop" not in self.said else []

    async def stop(self) -> None:
        """While the lease lasts."""
        self.said.append("stop with a lease" if self._broker.context.membership.valid() else "stop without a lease")

    def forget(self, topic: Topic) -> None:
        """Topics go once they are being deleted, and once more when they have gone."""
        self.said += [f"forget {topic.name}"] if f"forget {topic.name}" not in self.said else []

    def metrics(self) -> Iterable[Metric]:
        """One of its own."""
        return [GaugeMetricFamily("toy_games", "Games that are played.", value=3)]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> list[Toy]:
    """The toys of the brokers that begin: this is the one line."""
    real, found = Broker._open_services, list[Toy]()

    def with_toy(self: Broker, context: Context) -> tuple[Service, ...]:
        found.append(Toy(self))
        return (*real(self, context), found[-1])

    monkeypatch.setattr(Broker, "_open_services", with_toy)
    return found


async def test_a_service_is_its_class_and_one_line(tmp_path: Path, toys: list[Toy]) -> None:
    async with running(tmp_path) as broker:
        await broker.deletion.delete(await make_topic(broker))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(Application(broker)), base_url="http://x") as http:
            assert "\ntoy_games 3.0\n" in (await http.get("/metrics")).text
        assert [task.get_name() for task in privates.tasks(broker)][-1] == "playing"
    (toy,) = toys
    assert toy.said == ["run", "forget t", "begin_stop", "stop with a lease"]


async def test_the_life_ends_with_the_task_of_any_service(tmp_path: Path, toys: list[Toy]) -> None:
    async with running(tmp_path) as broker:
        (task,) = [task for task in privates.tasks(broker) if task.get_name() == "playing"]
        task.cancel()
        async with asyncio.timeout(30):
            await broker.lost.wait()


async def test_services_end_in_the_reverse_order_of_their_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Service] = []
    async with running(tmp_path) as broker:
        services = broker.services
        for one in services:

            async def stop(one: Service = one, real: object = one.stop) -> None:
                ended.append(one)
                await real()  # type: ignore[operator]

            monkeypatch.setattr(one, "stop", stop)
    assert ended == [*reversed(services)]


@pytest.mark.brokers
async def test_one_that_cannot_hand_over_ends_the_hand_over_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toys: list[Toy]
) -> None:
    async def refuse(self: Drain) -> None:
        raise CoordinationUnavailable("as told")

    async def slow(self: Toy) -> None:
        await asyncio.sleep(0.2)
        self.said.append("handed over")

    monkeypatch.setattr(Drain, "hand_over", refuse)
    monkeypatch.setattr(Toy, "hand_over", slow)
    async with in_loop(tmp_path, 2) as together:
        await together.brokers[0].drain()
        assert "handed over" in toys[0].said
