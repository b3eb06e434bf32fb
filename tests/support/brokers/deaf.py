"""A broker that does not hear what others do, or does not do what it else does by itself."""

import asyncio

from seaweedq.broker.broker import Broker
from tests.support import privates


async def deaf(broker: Broker) -> None:
    """Its view of topics and segments gets no news any more."""
    await end_task(broker, "catalog")


async def end_task(broker: Broker, name: str) -> None:
    """Ends a task of the broker's life, which goes on without it."""
    (task,) = [task for task in privates.tasks(broker) if task.get_name() == name]
    del privates.tasks(broker)[task]
    task.cancel()
    await asyncio.wait([task])
