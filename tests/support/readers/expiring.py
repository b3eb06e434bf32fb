"""Messages of which some have expired by the time they are there: a publisher of Arrow states `_expires` itself."""

from datetime import UTC, datetime

import pyarrow as pa

from seaweedq import Client

PAST, FUTURE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
EXPIRES = [None, PAST, FUTURE, PAST]  # of each four


def publish_expiring(client: Client, topic: str, start: int, end: int) -> None:
    """Publishes numbers to a topic of JSON; the odd ones have expired."""
    numbers = range(start, end)
    values = pa.array([str(n) for n in numbers], pa.string())
    expires = pa.array([EXPIRES[n % 4] for n in numbers], pa.timestamp("us", tz="UTC"))
    with client.producer(topic) as producer:
        producer.send_table(pa.table({"value": values, "_expires": expires}))
