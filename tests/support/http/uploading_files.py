"""Files that are uploaded and imported over HTTP, and the messages that come of them."""

import io
import json
import time
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq

ENDED_S = 180.0


class Importer:
    """Talks to one broker about the topic `topic`."""

    def __init__(self, url: str, topic: str = "t") -> None:
        self.http = httpx.Client(base_url=url, timeout=90, trust_env=False, verify=False)
        self.topic = topic
        self.path = f"/v1/topics/{topic}"

    def make(self, **config: Any) -> None:
        """Create the topic."""
        assert self.http.put(self.path, json=config).status_code == 201

    def upload(self, data: bytes, **params: str) -> str:
        """Upload bytes: the upload's id."""
        asked = self.http.post(f"{self.path}/uploads", params=params, json={"size": len(data)})
        assert asked.status_code == 201, asked.text
        given = asked.json()
        put = httpx.request(
            given["method"],
            given["url"],
            headers=given["headers"],
            content=data,
            timeout=30,
            trust_env=False,
            verify=False,
        )
        assert put.status_code in (200, 201), put.text
        return str(given["upload_id"])

    def ask(self, upload: str, format: str = "parquet", wait_s: int = 60, **more: Any) -> httpx.Response:
        """Ask for an import; again, unless it does not wait, where a busy machine needs longer."""
        body, end = {"upload_id": upload, "format": format, **more}, time.monotonic() + ENDED_S
        while True:
            answer = self.http.post(f"{self.path}/imports", params={"wait_s": wait_s}, json=body)
            if answer.status_code != 202 or not wait_s or time.monotonic() > end:
                return answer

    def take(self, data: bytes, format: str = "parquet", **more: Any) -> httpx.Response:
        """Upload and import."""
        return self.ask(self.upload(data), format, **more)

    def flush(self) -> None:
        """Flush the topic."""
        assert self.http.post(f"{self.path}/flush").status_code == 200

    def show(self, upload: str) -> httpx.Response:
        """How far the import is."""
        return self.http.get(f"{self.path}/imports/{upload}")

    def ended(self, upload: str, within_s: float = ENDED_S) -> dict[str, Any]:
        """The import once it is over; brokers that do not answer are asked again."""
        end = time.monotonic() + within_s
        while True:
            try:
                found = self.show(upload)
                if found.status_code == 200 and found.json()["state"] in ("done", "failed"):
                    return dict(found.json())
            except httpx.TransportError:
                found = None
            assert time.monotonic() < end, found and found.text
            time.sleep(0.1)

    def messages(self) -> list[dict[str, Any]]:
        """All messages of the topic, segment by segment, each in the order of its offsets."""
        found: list[dict[str, Any]] = []
        for segment in self.http.get(f"{self.path}/segments").json()["segments"]:
            offset = 0
            while True:
                path = f"{self.path}/segments/{segment['id']}/messages"
                page = self.http.get(path, params={"offset": offset, "limit": 10_000})
                assert page.status_code == 200, page.text
                rows = page.json()["messages"]
                found += rows
                offset = page.json()["next_offset"]
                if not rows:
                    break
        return found

    def column(self) -> pa.Table:
        """`_key` and `value` of all messages, as a table in the order of segments and offsets: for many rows."""
        tables = []
        for segment in self.http.get(f"{self.path}/segments").json()["segments"]:
            offset = 0
            while True:
                path = f"{self.path}/segments/{segment['id']}/messages"
                accept = {"Accept": "application/vnd.apache.arrow.stream"}
                page = self.http.get(path, params={"offset": offset, "limit": 10_000}, headers=accept)
                rows = pa.ipc.open_stream(page.content).read_all()
                if not rows.num_rows:
                    break
                tables.append(rows.select(["_key", "value"]))
                offset += rows.num_rows
        return pa.concat_tables(tables)

    def close(self) -> None:
        """Close the connections."""
        self.http.close()


def parquet(table: pa.Table, **options: Any) -> bytes:
    """A table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def arrow(table: pa.Table, file: bool = False, **options: Any) -> bytes:
    """A table as an Arrow stream, or an Arrow file."""
    sink = io.BytesIO()
    make = pa.ipc.new_file if file else pa.ipc.new_stream
    with make(sink, table.schema, **options) as writer:
        writer.write_table(table)
    return sink.getvalue()


def numbered(count: int, keys: int = 10, first: int = 0) -> pa.Table:
    """Rows `{"n": i}` of the keys k0, k1, ... in turns."""
    numbers = range(first, first + count)
    return pa.table({"value": [f'{{"n":{i}}}' for i in numbers], "_key": [f"k{i % keys}" for i in numbers]})


def check_all_once(table: pa.Table, count: int) -> None:
    """Every row of `numbered` is there once, and each key's are in order."""
    numbers = [json.loads(text)["n"] for text in table["value"].to_pylist()]
    assert sorted(numbers) == list(range(count))
    newest: dict[str, int] = {}
    for key, number in zip(table["_key"].to_pylist(), numbers, strict=True):
        assert newest.get(key, -1) < number
        newest[key] = number
