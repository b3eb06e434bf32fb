"""A service of a broker: the face of a room, whose work begins and ends with the broker's life (broker/broker).

To add one is to write its class, and to name it in `Broker._open_services`.
"""

from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from prometheus_client import Metric

from seaweedq.broker.topics.catalog import Topic

Tasks = Mapping[str, Coroutine[Any, Any, object]]


class Service:
    """A part of a broker's life. Each service overrides the steps in which it has work."""

    async def run(self) -> Tasks:
        """Begins the work. Returns the tasks by name: none ends before the life, which else ends with it."""
        return {}

    async def hand_over(self) -> None:
        """Hands over segments and subscriptions to others that live, as far as the time for a stop allows."""

    def begin_stop(self) -> None:
        """Accepts nothing more, and ends waiting requests."""

    async def stop(self) -> None:
        """Ends the rest of the work. The tasks of `run` are cancelled by then; the lease and the journal are there."""

    def forget(self, topic: Topic) -> None:
        """Forgets a topic that is being deleted, or gone."""

    def metrics(self) -> Iterable[Metric]:
        """Returns families of metrics with their values, beside those of the catalogue (api/metrics)."""
        return ()
