"""What is read at last: all segments over HTTP, and the rows of the Parquet files as any reader finds them."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.dataset as ds

from tests.support.history.history import Letter, Row, digest, row
from tests.support.history.judged import Segment
from tests.support.history.load import TOPIC

PATIENCE_S = 30.0  # with 503s
COLUMNS = ["segment", "_offset", "_key", "value"]


def over_http(url: str) -> list[Row]:
    """Every message of every segment."""
    return [row(m["segment"], m["offset"], m["key"], m["value"]) for m in messages(url, TOPIC)]


def dead_letters(url: str, topic: str) -> list[Letter]:
    """Every dead letter of a topic for them."""
    return [letter(one) for one in messages(url, topic)]


def messages(url: str, topic: str) -> list[Any]:
    """Every message of every segment, page by page, until a page is empty."""
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        segments = _get(http, f"/v1/topics/{topic}/segments")["segments"]
        return [one for segment in segments for one in _segment(http, topic, segment["id"])]


def segments(url: str) -> dict[int, Segment]:
    """The map of segments."""
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        found = _get(http, f"/v1/topics/{TOPIC}/segments")["segments"]
    return {
        one["id"]: Segment(
            *(one["low"], one["high"], tuple(one["predecessors"]), tuple(one["successors"])),
            one["end_offset"] if one["state"] == "sealed" else None,
        )
        for one in found
    }


def _segment(http: httpx.Client, topic: str, segment: int) -> list[Any]:
    found: list[Any] = []
    offset = 0
    while True:
        path = f"/v1/topics/{topic}/segments/{segment}/messages?offset={offset}&limit=2000"
        page = _get(http, path)
        found += page["messages"]
        if not page["messages"]:
            return found
        offset = page["next_offset"]


def letter(message: Any) -> Letter:
    """A dead letter, as it was read."""
    headers = message["headers"]
    segment, offset = map(int, headers["dead-letter-id"].split("-"))
    assert headers["dead-letter-topic"] == TOPIC, headers
    return Letter(
        *(headers["dead-letter-subscription"], segment, offset, headers["dead-letter-reason"]),
        *(int(headers["dead-letter-attempts"]), digest(message["key"], message["value"])),
    )


def _get(http: httpx.Client, path: str) -> Any:
    """An answer, also of a broker that says `later` for a while, as it may with a store that is slow to answer."""
    end_s = time.monotonic() + PATIENCE_S
    while (answer := http.get(path)).status_code == 503 and time.monotonic() < end_s:
        time.sleep(float(answer.headers.get("Retry-After", 1)))
    return answer.raise_for_status().json()


def in_files(store: Path) -> list[Row]:
    """Every row of the topic's directory."""
    folder = store / "topics" / TOPIC
    if not any(folder.rglob("*.parquet")):
        return []
    table = ds.dataset(folder, format="parquet", partitioning="hive").to_table(COLUMNS)
    return rows_of(table)


def rows_of(table: pa.Table) -> list[Row]:
    """The rows of a table with `COLUMNS`."""
    return [row(r["segment"], r["_offset"], r["_key"], json.loads(r["value"])) for r in table.to_pylist()]


def flush(url: str) -> None:
    """Everything acknowledged is in files after it."""
    httpx.post(f"{url}/v1/topics/{TOPIC}/flush", timeout=60, trust_env=False).raise_for_status()
