"""Durations, sizes and times as people write them: `7d`, `1h30m`, `10GB`, `512MiB`, `-5m`. Pure.

A plain number stands for seconds or bytes. All arithmetic is of whole numbers, so that a text has one value. Bounds are
those of the field, setting or option that takes the value. Each function raises ValueError, whose text follows the
name of the value: `must be a number of bytes, ..., not '5x'`.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

DURATION = "a number of seconds, or numbers with ms, s, m, h, d or w, such as 90s, 1h30m or 7d"
SIZE = "a number of bytes, or one with B, kB, MB, GB, TB (GB is 10^9) or KiB, MiB, GiB, TiB (GiB is 2^30), such as 10GB"
MOMENT = "a time of RFC 3339 with its offset, such as 2026-01-31T12:00:00Z, or how long ago it was, such as 5m"
_SHOWN = 50
_DIGITS = 9  # behind the point
_SCALE: int = 10**_DIGITS
_NUMERAL = r"[0-9]{1,18}(\.[0-9]{1,50})?([eE][+-]?[0-9]{1,2})?"  # as JSON writes a number
_PLAIN = re.compile(_NUMERAL)
_NUMBER = rf"([0-9]{{1,18}})(?:\.([0-9]{{1,{_DIGITS}}}))?"
_PART = re.compile(rf"{_NUMBER}(ms|s|m|h|d|w)")
_WITH_UNITS = r"([0-9]{1,18}(\.[0-9]{1,9})?(ms|s|m|h|d|w))+"
DURATION_PATTERN = f"^({_NUMERAL}|{_WITH_UNITS})$"
AGO_PATTERN = f"^-?{_WITH_UNITS}$"
_AGO = re.compile(_WITH_UNITS)
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE = re.compile(rf"{_NUMBER}([kmgt]i?)?b", re.IGNORECASE)
SIZE_PATTERN = rf"^({_NUMERAL}|[0-9]{{1,18}}(\.[0-9]{{1,9}})?([kKmMgGtT][iI]?)?[bB])$"
_BYTES: dict[str, int] = (
    {"": 1} | {f"{x}i": 1024**n for n, x in enumerate("kmgt", 1)} | {x: 1000**n for n, x in enumerate("kmgt", 1)}
)


def seconds_of(text: str) -> float:
    """Returns the seconds of a duration: an int if they are whole."""
    if _PLAIN.fullmatch(text):
        return _number(text)
    at, total = 0, 0  # of a billionth of a millisecond
    while part := _PART.match(text, at):
        total += _scaled(part[1], part[2]) * _MS[part[3]]
        at = part.end()
    if not text or at < len(text):
        raise ValueError(f"must be {DURATION}, not {text[:_SHOWN]!r}")
    whole, rest = divmod(total, 1000 * _SCALE)
    return whole if not rest else total / (1000 * _SCALE)


def bytes_of(text: str) -> int:
    """Returns the bytes of a size."""
    if found := _SIZE.fullmatch(text):
        size, rest = divmod(_scaled(found[1], found[2]) * _BYTES[(found[3] or "").lower()], _SCALE)
    elif _PLAIN.fullmatch(text):
        size, rest = int(_number(text)), int(_number(text) % 1 > 0)
    else:
        raise ValueError(f"must be {SIZE}, not {text[:_SHOWN]!r}")
    if rest:
        raise ValueError(f"must be a whole number of bytes, not {text[:_SHOWN]!r}")
    return size


def seconds_ago(text: str) -> float | None:
    """Returns how long ago a time was that is told as a duration with a unit, with a minus or without: `5m` and `-5m`.
    None for any other text."""
    ago = text.removeprefix("-")
    return seconds_of(ago) if _AGO.fullmatch(ago) else None


def moment_of(text: str, now: datetime) -> datetime:
    """Returns the moment of a time, or of how long before `now` it was, in UTC."""
    try:
        if (ago_s := seconds_ago(text)) is not None:
            return now - timedelta(seconds=ago_s)
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError(f"must be a time in the years 1 to 9999, not {text[:_SHOWN]!r}") from None
    except ValueError:
        pass
    raise ValueError(f"must be {MOMENT}, not {text[:_SHOWN]!r}")


def value_of(name: str, text: str) -> float | None:
    """Returns the number that a text stands for in a field or setting of this name; None if the name has no unit."""
    unit = unit_of(name)
    return seconds_of(text) if unit == "s" else bytes_of(text) if unit == "bytes" else None


def unit_of(name: str) -> Literal["s", "bytes"] | None:
    """Returns the unit of a field or setting by the end of its name: bytes of `_bytes` and `_bytes_per_s`, else seconds
    of `_s`; None for a rate of anything else, and for any other name."""
    if name.endswith(("_bytes", "_bytes_per_s")):
        return "bytes"
    return "s" if name.endswith("_s") and not name.endswith("_per_s") else None


def _number(text: str) -> float:
    return int(text) if text.isdecimal() else float(text)


def _scaled(whole: str, fraction: str | None) -> int:
    return int(whole + (fraction or "").ljust(_DIGITS, "0"))
