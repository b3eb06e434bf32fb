"""A producer that publishes each row of a ledger exactly once, however often it is killed and started again.

    python examples/idempotent_producer.py

A row's number is its sequence. Brokers know the newest sequence of each producer: a batch that comes again is answered
like the first time, and not stored again. `client.producer(...)` does that by itself as long as the process lives; this
is for programs that begin again where the last one may have ended. The id of the producer belongs to the ledger, and is
drawn with it: another ledger under the same id would begin below the newest sequence, which is a conflict.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import httpx

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
TOPIC, BATCH = "ledger", 100


class Killed(Exception):
    """The process has died: after a batch was published, and before it could write that down."""


def batches(ledger: list[dict[str, object]], start: int) -> Iterator[tuple[int, list[dict[str, object]]]]:
    """Yields the rows from `start` on, with the number of the first of each batch."""
    for first in range(start, len(ledger), BATCH):
        yield first, ledger[first : first + BATCH]


def publish(ledger: list[dict[str, object]], producer: str, progress: Path, dies_after: int | None = None) -> None:
    """Publishes what is not known to be published. Always the same batches: a batch begins at a multiple of BATCH."""
    start = int(progress.read_text()) if progress.exists() else 0
    with httpx.Client(base_url=URL, transport=httpx.HTTPTransport(retries=5)) as http:
        for first, rows in batches(ledger, start):
            lines = "\n".join(json.dumps({"value": row, "key": row["account"]}) for row in rows)
            headers = {"content-type": "application/x-ndjson", "Producer-Id": producer, "Producer-Sequence": str(first)}
            http.post(f"/v1/topics/{TOPIC}/messages", content=lines, headers=headers).raise_for_status()
            if first == dies_after:
                raise Killed
            progress.write_text(str(first + len(rows)))


def messages() -> int:
    """Returns how many messages the topic has; makes it if need be."""
    httpx.put(f"{URL}/v1/topics/{TOPIC}", json={}).raise_for_status()
    found: int = httpx.get(f"{URL}/v1/topics/{TOPIC}").raise_for_status().json()["messages"]
    return found


def main() -> None:
    """Publishes a ledger, dies twice on the way, and counts."""
    ledger: list[dict[str, object]] = [{"row": n, "account": f"account-{n % 7}", "cents": n} for n in range(1_000)]
    before, producer = messages(), f"ledger-{uuid4()}"
    with TemporaryDirectory() as folder:
        progress = Path(folder, "progress")
        for dies_after in (300, 700, None):
            try:
                publish(ledger, producer, progress, dies_after)
            except Killed:
                print(f"killed with row {dies_after} published, and {progress.read_text()} rows written down")
    print(f"rows in the ledger: {len(ledger)}, messages that came to the topic: {messages() - before}")


if __name__ == "__main__":
    main()
