"""A broker that does not hear what others do."""

import asyncio

from seaweedq.broker.broker import Broker


async def deaf(broker: Broker) -> None:
    """Its view of topics and segments gets no news any more."""
    (task,) = [task for task in broker._tasks if task.get_name() == "catalog"]
    task.cancel()
    await asyncio.wait([task])
