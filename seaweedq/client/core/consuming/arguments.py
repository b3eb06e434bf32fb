"""The bounds of what a caller asks of a subscription. They are checked at the call, before anything is sent. Pure.

Each error names the argument, its value and the bound. A value of another type is a TypeError, one out of bounds a
ValueError. What a broker alone can judge (settings, places, names) it refuses itself.
"""

import reprlib
from math import isfinite, isnan

from seaweedq.client.core.consuming.pulling import Wanted

MAX_PULL = 10_000  # messages that a broker gives at a time
MOST_WORKERS = 10_000
CONSUMER_CHARS = 255


def check_wanted(wanted: Wanted, consumer: str | None) -> None:
    """Raises TypeError or ValueError for a subscriber's wishes that no broker could fulfil."""
    _check_whole("max_messages", wanted.max_messages, MAX_PULL)
    if wanted.idle_timeout_s is not None:
        _check_seconds("idle_timeout_s", wanted.idle_timeout_s)
    if consumer is None:
        return
    if not isinstance(consumer, str):
        raise TypeError(f"consumer is {_shown(consumer)}; it must be a str, or None for a random name")
    if not 1 <= len(consumer) <= CONSUMER_CHARS:
        raise ValueError(f"consumer is {reprlib.repr(consumer)}; it must have 1 to {CONSUMER_CHARS} characters")


def check_work(handler: object, workers: int, max_messages: int | None, max_extension_s: float) -> int:
    """Returns how many messages may wait to be handled. Raises TypeError or ValueError for a pool that cannot be."""
    if not callable(handler):
        raise TypeError(f"handler is {_shown(handler)}; it must be callable with a message")
    _check_whole("workers", workers, MOST_WORKERS)
    if isinstance(max_extension_s, bool) or not isinstance(max_extension_s, int | float):
        raise TypeError(f"max_extension_s is {_shown(max_extension_s)}; it must be a number of seconds")
    if isnan(max_extension_s) or max_extension_s < 0:
        raise ValueError(f"max_extension_s is {max_extension_s}; it must be a number of seconds from 0 on")
    return min(2 * workers, MAX_PULL) if max_messages is None else max_messages


def _check_whole(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {_shown(value)}; it must be a whole number from 1 to {most:,}")
    if not 1 <= value <= most:
        raise ValueError(f"{name} is {value}; it must be a whole number from 1 to {most:,}")


def _check_seconds(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {_shown(value)}; it must be a number of seconds, or None for no end")
    if not isfinite(value) or value < 0:
        raise ValueError(f"{name} is {value}; it must be a finite number of seconds from 0 on, or None for no end")


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"
