"""Some brokers made of dictionaries: topic `t` in segments that move, split and merge, as DESIGN.md has it.

The key space is in cells, and a segment is some neighbouring cells. Producer tables go with the cells, as they go with
the sub-ranges of segments. Any broker takes any row; `forwarded` counts those that were not its own. What is for
`refused` cells is not taken, once.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

from seaweedq.segments.keyrange import hash_key, tile
from seaweedq.segments.producers import Duplicate, OutOfOrder, ProducerTable
from tests.support.client.fake_cluster import FakeCluster, lines_of, problem

CELLS = 8
URLS = ["http://b0", "http://b1", "http://b2"]
_RANGES = tile(CELLS)


def cell_of(key_hash: int) -> int:
    """The cell of a hash."""
    return next(cell for cell, each in enumerate(_RANGES) if key_hash in each)


def key_in(cell: int) -> str:
    """A key whose hash is in a cell."""
    return next(key for n in range(10_000) if cell_of(hash_key(key := f"key-{n}")) == cell)


@dataclass
class FakeBrokers(FakeCluster):
    """`owners[n]` is the number of the broker that has segment n; None: nobody has it for the moment."""

    segment_of: list[int] = field(default_factory=lambda: [0, 0, 0, 1, 1, 1, 2, 2])
    owners: dict[int, int | None] = field(default_factory=lambda: {0: 0, 1: 1, 2: 2})
    down: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    waited_s: list[float] = field(default_factory=list)  # for each request to a silent one: how long it was waited for
    taken: list[tuple[str | None, Any]] = field(default_factory=list)
    forwarded: int = 0
    tables: list[ProducerTable] = field(default_factory=lambda: [ProducerTable(0, each) for each in _RANGES])
    refused: set[int] = field(default_factory=set)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if f"http://{request.url.host}" in self.down:
            raise httpx.ConnectError("refused", request=request)
        if f"http://{request.url.host}" in self.silent:
            self.waited_s.append(request.extensions["timeout"]["read"])
            raise httpx.ReadTimeout("silent", request=request)
        return super().__call__(request)

    def segments(self) -> list[dict[str, Any]]:
        found = []
        for segment in dict.fromkeys(self.segment_of):
            cells = [cell for cell, each in enumerate(self.segment_of) if each == segment]
            owner = self.owners[segment]
            found.append(
                {
                    "id": segment,
                    "low": _RANGES[cells[0]].low,
                    "high": _RANGES[cells[-1]].high,
                    "state": "open",
                    "owner": None if owner is None else f"b{owner}.1",
                    "owner_url": None if owner is None else URLS[owner],
                }
            )
        return [
            {"id": 99, "low": 0, "high": _RANGES[-1].high, "state": "sealed", "owner": "b9", "owner_url": "x"},
            *found,
        ]

    def split(self, segment: int, at: int, owners: tuple[int | None, int | None]) -> None:
        """Replace a segment by two, the second from cell `at` on."""
        new = max(self.owners) + 1
        for cell, each in enumerate(self.segment_of):
            if each == segment:
                self.segment_of[cell] = new + (cell >= at)
        self.owners |= {new: owners[0], new + 1: owners[1]}

    def merge(self, segments: tuple[int, int], owner: int | None) -> None:
        """Replace two neighbours by one."""
        new = max(self.owners) + 1
        self.segment_of = [new if each in segments else each for each in self.segment_of]
        self.owners[new] = owner

    def _publish(self, request: httpx.Request) -> httpx.Response:
        rows = self._rows(request)
        producer = request.headers.get("producer-id", f"nobody-{len(self.requests)}")
        sequence = int(request.headers.get("producer-sequence", "0"))
        cells: dict[int, list[int]] = {}
        for n, (key, _) in enumerate(rows):
            cells.setdefault(cell_of(hash_key(f"{producer}:{sequence + n}" if key is None else key)), []).append(n)
        high = sequence + len(rows) - 1
        verdicts = {c: self.tables[c].judge(producer, sequence, high, len(cells[c])) for c in cells}
        if any(isinstance(verdict, OutOfOrder) for verdict in verdicts.values()):
            return problem(409, "sequence-out-of-order", producer=producer, sequence=sequence)
        left = False
        for cell, mine in cells.items():
            if isinstance(verdicts[cell], Duplicate):
                continue
            if cell in self.refused:
                left = True
                continue
            self.tables[cell].record(producer, sequence, high, 0, len(mine), 0)
            self.taken += [rows[n] for n in mine]
            owner = self.owners[self.segment_of[cell]]
            if owner is None or URLS[owner] != f"http://{request.url.host}":
                self.forwarded += len(mine)
        if left:
            self.refused = set()
            return problem(503, "partly-taken", retry_after="0", taken=[])
        counts: dict[int, int] = {}
        for cell, mine in cells.items():
            segment = self.segment_of[cell]
            counts[segment] = counts.get(segment, 0) + len(mine)
        parts = [{"segment": segment, "first_offset": 0, "count": count} for segment, count in counts.items()]
        named = "arrow" not in request.headers["content-type"] or request.url.params.get("ids") == "true"
        ids = {"ids": [f"0-{n}" for n in range(len(rows))]} if named else {}
        return httpx.Response(200, json={"count": len(rows), "segments": parts, **ids})

    def _rows(self, request: httpx.Request) -> list[tuple[str | None, Any]]:
        return [(line.get("key") or self._field(line["value"]), line["value"]) for line in lines_of(request)]

    def _field(self, value: Any) -> str | None:
        found = value.get(self.facts.get("key_field")) if isinstance(value, dict) else None
        if found is None:
            return None
        return found if isinstance(found, str) else json.dumps(found)

    def published(self) -> list[Any]:
        return [value for _, value in self.taken]

    def values_of(self, key: str | None) -> list[Any]:
        """The values of a key, in the order in which they were taken."""
        return [value for each, value in self.taken if each == key]
