"""A client that reads a topic as a log: segments from the first ones on, each after all its predecessors."""

from typing import Any

import httpx

from tests.support.history.history import Row, row
from tests.support.history.lineage_rules import FOLLOWED
from tests.support.history.load import Client


class Follower(Client):
    """Reads every segment to its end, then its successors; `rows` are what it has read, in that order."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.rows: list[Row] = []
        self._next: dict[int, int] = {}  # where it is in the segments that it reads
        self._read: set[int] = set()  # to their ends
        self._begun = False

    def step(self) -> None:
        try:
            if not self._begun:
                self._begun = self._open()
            for segment in list(self._next):
                self._go_on(segment)
        except httpx.ConnectError:
            return

    def _open(self) -> bool:
        """Begin with the segments whose predecessors are read to their ends."""
        answer = self.ask("GET", "/segments")
        for one in answer.json()["segments"] if answer else ():
            if self._read.issuperset(one["predecessors"]) and one["id"] not in self._read:
                self._next.setdefault(one["id"], 0)
        return answer is not None

    def _go_on(self, segment: int) -> None:
        start = self._next[segment]
        asked = {"segment": segment, "offset": start, "note": FOLLOWED}
        call = self.history.invoke(self.name, "read", [asked])
        answer = self.ask("GET", f"/segments/{segment}/messages?offset={start}&limit=500&wait_s=0.1")
        if answer is None:
            return
        page = answer.json()
        found = [row(m["segment"], m["offset"], m["key"], m["value"]) for m in page["messages"]]
        self.history.told(self.name, "read", "ok", call, [_line(each) for each in found] or [asked])
        self.rows += found
        self._next[segment] = page["next_offset"]
        if page["sealed"] and not found:
            del self._next[segment]
            self._read.add(segment)
            self._open()


def _line(one: Row) -> dict[str, Any]:
    return {**one._asdict(), "note": FOLLOWED}
