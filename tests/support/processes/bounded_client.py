"""What the disk tests ask of a broker: publish with everything remembered, and read back all there is."""

import os
import time
from base64 import b64decode
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pyarrow.dataset as ds

BYTES = {"content-type": "application/octet-stream"}


class Publisher:
    """Publishes unique values and remembers which were acknowledged, and which may or may not be there."""

    def __init__(self, url: str, topic: str, size: int = 50_000) -> None:
        self.http = httpx.Client(base_url=url, timeout=30, trust_env=False)
        self.path = f"/v1/topics/{topic}"
        self.acked: list[bytes] = []
        self.refused: list[bytes] = []
        self._size = size
        assert self.http.put(self.path, json={"format": "bytes"}).status_code in (200, 201)

    def send(self) -> httpx.Response:
        value = os.urandom(16).hex().encode() + os.urandom(self._size)
        answer = self.http.post(f"{self.path}/messages", content=value, headers=BYTES)
        (self.acked if answer.status_code == 200 else self.refused).append(value)
        return answer

    def until_refused(self) -> httpx.Response:
        """Publish until a publish is refused: that answer."""
        while (answer := self.send()).status_code == 200:
            assert len(self.acked) < 5_000, "the disk never got full"
        return answer

    def until_taken(self, within_s: float = 60) -> None:
        """Publish until a publish is taken."""
        wait_for(lambda: self.send().status_code == 200, within_s)

    def check(self, store: Path) -> None:
        """What was acknowledged is there once, what was refused at most once, nothing else; over HTTP and in
        Parquet."""
        over_http = self.read()
        wait_for(lambda: self.flush().status_code == 200)  # the store is tried again only now and then
        table = ds.dataset(store / self.path.removeprefix("/v1/"), format="parquet", partitioning="hive").to_table(
            columns=["value", "_offset"]
        )
        for found in (over_http, table["value"].to_pylist()):
            counts = Counter(found)
            assert all(counts[value] == 1 for value in self.acked)
            assert set(counts) <= {*self.acked, *self.refused}
            assert max(counts.values()) == 1
        assert sorted(table["_offset"].to_pylist()) == list(range(len(over_http)))

    def flush(self) -> httpx.Response:
        return self.http.post(f"{self.path}/flush")

    def create(self, topic: str) -> httpx.Response:
        """Create another topic."""
        return self.http.put(f"/v1/topics/{topic}", json={})

    def read(self) -> list[bytes]:
        """All values, in order."""
        found, offset = [], 0
        while True:
            answer = self.http.get(f"{self.path}/segments/0/messages", params={"offset": offset})
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            if not messages:
                return found
            found += [b64decode(message["value_base64"]) for message in messages]
            offset = answer.json()["next_offset"]


def wait_for(there: Callable[[], bool], within_s: float = 60) -> None:
    end = time.monotonic() + within_s
    while not there():
        assert time.monotonic() < end, f"not within {within_s} s"
        time.sleep(0.05)


def is_problem(answer: httpx.Response, *slugs: str) -> None:
    """A clear 503: which of the problems it is, and when to try again."""
    assert answer.status_code == 503, answer.text
    assert answer.json()["type"] in {f"/problems/{slug}" for slug in slugs}, answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["detail"]
