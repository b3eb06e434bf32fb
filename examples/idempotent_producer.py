"""A producer that publishes each row of a ledger exactly once, however often it is killed and started again.

    python examples/idempotent_producer.py

A row's number is its sequence. Brokers know the newest sequence of each producer: a batch that comes again is answered
like the first time, and not stored again. `client.producer(...)` does that by itself as long as the process lives; this
is for programs that begin again where the last one may have ended.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

URL = os.environ.get("SEAWEEDQ_URL", "http://127.0.0.1:8080")
TOPIC, PRODUCER, BATCH = "ledger", "ledger-main", 100


class Killed(Exception):
    """The process has died: after a batch was published, and before it could write that down."""


def batches(ledger: list[dict[str, object]], start: int) -> Iterator[tuple[int, list[dict[str, object]]]]:
    """Yields the rows from `start` on, with the number of the first of each batch."""
    for first in range(start, len(ledger), BATCH):
        yield first, ledger[first : first + BATCH]


def publish(ledger: list[dict[str, object]], progress: Path, dies_after: int | None = None) -> None:
    """Publishes what is not known to be published. Always the same batches: a batch begins at a multiple of BATCH."""
    start = int(progress.read_text()) if progress.exists() else 0
    with httpx.Client(base_url=URL, transport=httpx.HTTPTransport(retries=5)) as http:
        http.put(f"/v1/topics/{TOPIC}", json={}).raise_for_status()
        for first, rows in batches(ledger, start):
            lines = "\n".join(json.dumps({"value": row, "key": row["account"]}) for row in rows)
            headers = {"content-type": "application/x-ndjson", "Producer-Id": PRODUCER, "Producer-Sequence": str(first)}
            http.post(f"/v1/topics/{TOPIC}/messages", content=lines, headers=headers).raise_for_status()
            if first == dies_after:
                raise Killed
            progress.write_text(str(first + len(rows)))


def main() -> None:
    """Publishes a ledger, dies twice on the way, and counts."""
    ledger: list[dict[str, object]] = [{"row": n, "account": f"account-{n % 7}", "cents": n} for n in range(1_000)]
    with TemporaryDirectory() as folder:
        progress = Path(folder, "progress")
        for dies_after in (300, 700, None):
            try:
                publish(ledger, progress, dies_after)
            except Killed:
                print(f"killed with row {dies_after} published, and {progress.read_text()} rows written down")
    found = httpx.get(f"{URL}/v1/topics/{TOPIC}").json()
    print(f"rows in the ledger: {len(ledger)}, messages in the topic: {found['messages']}")


if __name__ == "__main__":
    main()
