"""Times, rates and differences, as answers show them."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

LONGEST = 100  # characters of a value in an error's text
DIGITS = 3  # of a rate, behind the point: more of them are only noise


def moment(time_us: int) -> datetime:
    """Returns microseconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC)


def told(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the `current` and the `requested` value of each field; of objects, of each member that differs."""
    each = (pair for field, one in differences.items() for pair in _apart(field, one["current"], one["requested"]))
    return ", ".join(f"{field} is {_shown(old)} and the request says {_shown(new)}" for field, old, new in each)


def _apart(field: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    old, new = msgspec.to_builtins(old), msgspec.to_builtins(new)
    if not (isinstance(old, dict) and isinstance(new, dict)):
        yield field, old, new
        return
    for name in old | new:
        if old.get(name) != new.get(name):
            yield from _apart(f"{field}.{name}", old.get(name), new.get(name))


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
