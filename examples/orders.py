"""Orders that two consumers share: each order goes to one of them, and the orders of a customer stay in their order.

    python examples/orders.py

Consumers that crash or lose their connection are no loss: what they have not acked goes to the other one.
"""

import os
import random
import threading
import time
from collections import defaultdict

from seaweedq import Client

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
TOPIC, SUBSCRIPTION = "customer-orders", "billing"
CUSTOMERS = [f"customer-{number}" for number in range(20)]
ORDERS = 300


def publish() -> None:
    """Publishes orders; the key of each is its customer."""
    with Client(URL) as client:
        client.create_topic(TOPIC, key_field="customer")
        with client.producer(TOPIC) as producer:
            for number in range(ORDERS):
                producer.send({"order": number, "customer": random.choice(CUSTOMERS), "cents": random.randint(1, 9999)})
        print(f"published {producer.acknowledged} orders")


def bill(name: str, billed: dict[str, list[tuple[str, int]]]) -> None:
    """Bills orders until none has come for a while. Delivery is at least once: real ones look up what was billed."""
    with Client(URL) as client:
        messages = client.subscribe(
            TOPIC, SUBSCRIPTION, start="earliest", mode="keyed", consumer=name, max_messages=20, idle_timeout_s=1
        )
        for message in messages:
            time.sleep(0.001)  # the work
            billed[message.key].append((name, message.value["order"]))
            message.ack()


def main() -> None:
    """Publishes, lets two consumers share the work, and shows who did what."""
    publish()
    billed: dict[str, list[tuple[str, int]]] = defaultdict(list)
    consumers = [threading.Thread(target=bill, args=(name, billed)) for name in ("anna", "ben")]
    for consumer in consumers:
        consumer.start()
    for consumer in consumers:
        consumer.join()
    for name in ("anna", "ben"):
        print(f"{name} billed {sum(one == name for orders in billed.values() for one, _ in orders)} orders")
    in_order = all([number for _, number in orders] == sorted(n for _, n in orders) for orders in billed.values())
    print(f"{len(billed)} customers, the orders of each in order: {'yes' if in_order else 'no'}")


if __name__ == "__main__":
    main()
