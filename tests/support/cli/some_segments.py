"""Segment maps as the tests of what shows them need them."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from seaweedq.cli.topic.lineage import KEY_SPACE, Segment

BEGIN = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    """A time, that many seconds after the topic's creation."""
    return BEGIN + timedelta(seconds=seconds)


def segment(id: int, low: float = 0, high: float = 1, **more: Any) -> Segment:
    """A segment of these shares of the key space; with `sealed` (seconds) it is sealed, `created` is 0 by default."""
    sealed = more.pop("sealed", None)
    facts: dict[str, Any] = {
        "is_open": sealed is None,
        "owner": "broker.aa11" if sealed is None else None,
        "end_offset": 0,
        "created_at": after(more.pop("created", 0)),
        "sealed_at": None if sealed is None else after(sealed),
        **more,
    }
    return Segment(id=id, low=round(low * KEY_SPACE), high=round(high * KEY_SPACE), **facts)


def by_id(*segments: Segment) -> Mapping[int, Segment]:
    """The map of these."""
    return {one.id: one for one in segments}


def split_and_merged() -> list[Segment]:
    """0 splits into 1, 2, 3 at 10 s; 1 and 2 merge to 4 at 20 s; 3 rolls to 5 at 30 s."""
    return [
        segment(0, sealed=10, successors=(1, 2, 3), end_offset=1000),
        segment(1, 0, 0.25, created=10, sealed=20, predecessors=(0,), successors=(4,), end_offset=50),
        segment(2, 0.25, 0.5, created=10, sealed=20, predecessors=(0,), successors=(4,), end_offset=200),
        segment(3, 0.5, 1, created=10, sealed=30, predecessors=(0,), successors=(5,), end_offset=2000),
        segment(4, 0, 0.5, created=20, predecessors=(1, 2), end_offset=0),
        segment(5, 0.5, 1, created=30, predecessors=(3,), owner="broker.bb22", end_offset=12_345),
    ]
