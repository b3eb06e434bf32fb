"""Tables of subscriptions and their lag."""

from collections.abc import Mapping, Sequence
from typing import Any

from seaweedq.cli.shared.common import printable
from seaweedq.cli.shared.output import Column, columns, say_page, say_table

LISTED = columns(
    "name, mode, state, messages, behind, in flight, consumers", numbers="messages, behind, in flight, consumers"
)
LAG = {"messages": "messages", "bytes": "bytes", "seconds": "behind", "in_flight": "in flight", "skipped": "skipped"}
_SEGMENTS = (Column("segment"), *(Column(name, number=True) for name in ("acked to", "end", *LAG.values())))
_APART = ("lag", "lag_total", "seek_epoch")  # tables of their own, and what only programs compare


def print_list(topic: str, found: Sequence[Mapping[str, Any]], output: str) -> None:
    """Prints a row for each subscription."""
    say_table(output, LISTED, map(_listed, found), f"topic {topic} has no subscription")


def print_one(found: Mapping[str, Any], output: str) -> None:
    """Prints a subscription's configuration, and a row for each segment that has a cursor; the last is all of them."""
    say_page((name, _text(value)) for name, value in found.items() if name not in _APART)
    rows = [
        (f"{one['segment']}", f"{one['acked_to']:,}", f"{one['end_offset']:,}", *_lag_of(one)) for one in found["lag"]
    ]
    rows.append(("all", "", "", *_lag_of(found["lag_total"])))
    say_table(output, _SEGMENTS, rows)


def duration(seconds: float) -> str:
    """Returns a time for people: `0.5 s`, `3 min`, `2 h`, `4 d`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.3g} s"


def _listed(one: Mapping[str, Any]) -> tuple[str, ...]:
    lag = one["lag_total"]
    state = "paused" if one.get("paused") else lag.get("stalled") or "active"
    numbers = (f"{lag['messages']:,}", duration(lag["seconds"]), f"{lag['in_flight']:,}")
    return (one["name"], one["mode"], str(state), *numbers, f"{one.get('consumers', ''):,}")


def _lag_of(lag: Mapping[str, Any]) -> list[str]:
    return [duration(lag[name]) if name == "seconds" else f"{lag[name]:,}" for name in LAG]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(item)}" for name, item in value.items() if item)
    return "" if value is None else printable(str(value))
