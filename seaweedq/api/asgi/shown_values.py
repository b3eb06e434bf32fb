"""Times and rates, as answers show them."""

from datetime import UTC, datetime

DIGITS = 3  # of a rate, behind the point: more of them are only noise


def moment(time_us: int) -> datetime:
    """Returns microseconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC)
