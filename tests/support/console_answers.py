"""Answers of a broker whose topic has a past that a test need not wait for: segments that split and merge, rates, a hot
key; as many segments as asked for."""

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

KEY_SPACE = 2**31 - 1
OWNERS = ("b0.1f2e", "b1.77aa", "b2.9c01")
SPLIT = {"measure": "messages_per_s", "window_s": 600.0, "splits_at": 400.0}


def text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


class Past:
    """A topic `big` over one hour: every segment of `segments` equal ones is open; of the first ones some are split of
    others, and two are merged. `now` is a fixed time, so that pictures are alike."""

    def __init__(self, segments: int = 8, minutes: int = 60, step_s: int = 30) -> None:
        self.now = datetime.now(UTC)
        self.begin = self.now - timedelta(minutes=minutes)
        self.step_s = step_s
        self.segments = self._segments(segments)

    def answers(self) -> dict[str, Callable[[], Any]]:
        """What the console asks for, by path."""
        return {
            "v1/topics": lambda: {
                "topics": [{"name": "big", "state": "active", "format": "json", "created_at": text(self.begin)}]
            },
            "v1/topics/big": self.topic,
            "v1/topics/big/segments": lambda: {"segments": self.segments},
            "v1/topics/big/history": self.history,
        }

    def topic(self) -> dict[str, Any]:
        return {
            "name": "big",
            "state": "active",
            "format": "json",
            "schema": None,
            "schema_id": None,
            "key_field": None,
            "messages": 12_345_678,
            "bytes": 9_876_543_210,
            "tail_bytes": 1_234_567,
            "segments": sum(one["state"] == "open" for one in self.segments),
            "hot_segments": [0],
            "created_at": text(self.begin),
            "newest_file_at": text(self.now),
            "path": "file:///store/topics/big",
            "start_offsets": {},
        }

    def _segments(self, count: int) -> list[dict[str, Any]]:
        """Half as many, each of which split after 20 minutes or so; of eight the last two have merged, too."""
        split, merged = self.begin + timedelta(minutes=20), self.begin + timedelta(minutes=40)
        found = []
        half = max(1, count // 2)
        for n in range(half):
            low, high = KEY_SPACE * n // half, KEY_SPACE * (n + 1) // half
            middle = (low + high) // 2
            begin = split if n == 0 else split + timedelta(seconds=7 * (n % 30))
            children = [half + 2 * n, half + 2 * n + 1]
            found.append(self._one(n, low, high, self.begin, begin, children, []))
            found.append(self._one(children[0], low, middle, begin, None, [], [n]))
            found.append(self._one(children[1], middle, high, begin, None, [], [n]))
        if count == 8:  # a small one, where a merge can be seen
            one, other = found[-2:]
            for each in (one, other):
                each |= {"state": "sealed", "sealed_at": text(merged), "successors": [99], "owner": None, "rates": None}
            found.append(self._one(99, one["low"], other["high"], merged, None, [], [one["id"], other["id"]]))
        return sorted(found, key=lambda one: one["id"])

    def _one(
        self, n: int, low: int, high: int, begin: datetime, end: datetime | None, after: list[int], before: list[int]
    ) -> dict[str, Any]:
        rate = self.rate(low, high, 60.0)
        is_hot = end is None and low == 0
        return {
            "id": n,
            "low": low,
            "high": high,
            "state": "sealed" if end else "open",
            "predecessors": before,
            "successors": after,
            "owner": None if end else OWNERS[n % 3],
            "owner_url": None,
            "start_offset": 0,
            "start_file": None,
            "flushed_offset": 900,
            "end_offset": 1000 + n,
            "emptied": False,
            "rates": None if end else {"messages_per_s": [rate] * 4, "bytes_per_s": [rate * 120] * 4},
            "hot_key": {"hash": high // 3, "share": 0.75} if is_hot else None,
            "next_split": None if end else SPLIT | {"now": rate, "held_by": "hot_key" if is_hot else None},
            "created_at": text(begin),
            "sealed_at": text(end) if end else None,
        }

    def rate(self, low: int, high: int, minute: float) -> float:
        """Messages a second of a range: more in the low keys, in waves."""
        place = (low + high) / 2 / KEY_SPACE
        wave = 1 + math.sin(minute / 6 + place * 5)
        return round(40_000 * (high - low) / KEY_SPACE * math.exp(-4 * place) * (0.2 + wave), 3)

    def history(self) -> dict[str, Any]:
        cells = []
        lives = [
            (one, datetime.fromisoformat(one["created_at"]), datetime.fromisoformat(one["sealed_at"] or text(self.now)))
            for one in self.segments
        ]
        every = max(1, len(self.segments) * 120 // 8_000)  # as a leader makes cells coarser
        for step in range(0, int((self.now - self.begin).total_seconds()) // self.step_s, every):
            since = self.begin + timedelta(seconds=step * self.step_s)
            until = since + timedelta(seconds=every * self.step_s)
            for one, begin, end in lives:
                a, b = max(since, begin), min(until, end)
                rate = self.rate(one["low"], one["high"], step * self.step_s / 60)
                if a >= b or rate < 1 or len(cells) >= 8_000:
                    continue
                hot = {"hot_key": one["hot_key"]} if one["hot_key"] and step * self.step_s > 2400 else {}
                cells.append(
                    {
                        "time": text(a),
                        "seconds": (b - a).total_seconds(),
                        "low": one["low"],
                        "high": one["high"],
                        "segment": one["id"],
                        "messages_per_s": rate,
                        "bytes_per_s": rate * 120,
                        **hot,
                    }
                )
        return {"from": text(self.begin), "until": text(self.now), "leader": OWNERS[0], "cells": cells}
