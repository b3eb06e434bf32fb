"""Parameters of requests: names, texts, whole numbers, durations, times; their checks, and what OpenAPI says of them.
And values in answers.
"""

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Response
from msgspec import Meta
from starlette.requests import HTTPConnection

from seaweedq.api.request import Request
from seaweedq.errors import InvalidName, InvalidRequest
from seaweedq.segments.entry import NAME
from seaweedq.units import AGO_PATTERN, DURATION_PATTERN, MOMENT, SIZE_PATTERN, seconds_ago, seconds_of

_NAME = re.compile(NAME)
WRITER = "[A-Za-z0-9._-]{1,128}"
_WRITER = re.compile(WRITER)
_NUMBER = re.compile(r"[0-9]{1,19}")
_SECONDS = re.compile(r"[0-9]{1,6}(\.[0-9]{1,50})?(e[+-]?[0-9]{1,3})?", re.IGNORECASE)  # as JSON writes a number
# Characters that order the text around them anew, so that a reader sees other words than are there.
_DIRECTIONS = frozenset(map(chr, (*range(0x202A, 0x202F), *range(0x2066, 0x206A))))
MAX_NUMBER = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = (datetime(1, 1, 1, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_Moment = Annotated[datetime, Meta(tz=True)]
NAME_SCHEMA = {"type": "string", "pattern": f"^{NAME}$"}
TEXTS = {
    "s": {"type": "string", "pattern": DURATION_PATTERN, "description": "a duration, such as 90s, 1h30m or 7d"},
    "bytes": {"type": "string", "pattern": SIZE_PATTERN, "description": "a size, such as 10GB or 512MiB"},
}
TIME = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": AGO_PATTERN}]}


async def _request(connection: HTTPConnection) -> Request:
    found: Request = connection.state.request  # as the application has put it there
    return found


RequestDep = Annotated[Request, Depends(_request)]


def json_answer(document: Any, status: int = 200) -> Response:
    """Returns a JSON answer."""
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def check_name(name: str, what: str = "topic") -> str:
    """Returns the name, if it is valid. Raises InvalidName."""
    if not _NAME.fullmatch(name):
        raise InvalidName(
            f"invalid {what} name {name[:200]!r}: use 1 to 127 of the characters A-Z a-z 0-9 . _ "
            "-, and start with a letter or a digit",
            name=name[:200],
        )
    return name


def check_free_text(text: str, what: str) -> str:
    """Returns a text for people, which terminals show. Raises InvalidRequest for a control character in it."""
    for one in text:
        if unicodedata.category(one) == "Cc" or one in _DIRECTIONS:
            raise InvalidRequest(f"{what} contains the control character U+{ord(one):04X}", field=what, value=text)
    return text


def whole_number(text: str, what: str, low: int, high: int) -> int:
    """Returns a decimal number within [low, high], of ASCII digits alone. Raises InvalidRequest."""
    if not _NUMBER.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidRequest(
            f"{what} must be a whole number from {low} to {high}, not {text[:50]!r}", field=what, value=text[:50]
        )
    return int(text)


SCHEMA_ID = {
    "name": "Schema-Id",
    "in": "header",
    "description": "typed topics: version of the schema that the messages have; by default the newest",
    "schema": {"type": "integer", "minimum": 0},
}


def stated_version(request: Request) -> int | None:
    """Returns the version of the topic's schema that the header Schema-Id names; None without one. Raises
    InvalidRequest."""
    if b"schema-id" not in request.headers:
        return None
    return whole_number(request.header(b"schema-id") or "", "Schema-Id", 0, MAX_NUMBER)


def truth(text: str, what: str) -> bool:
    """Returns whether a text is `true` or `1`, and not `false` or `0`. Raises InvalidRequest for any other."""
    if text not in ("true", "1", "false", "0"):
        raise InvalidRequest(
            f"{what} must be true or false (or 1 or 0), not {text[:50]!r}", field=what, value=text[:50]
        )
    return text in ("true", "1")


def choice(text: str, what: str, allowed: Sequence[str]) -> str:
    """Returns a text that is one of these. Raises InvalidRequest."""
    if text not in allowed:
        raise InvalidRequest(f"{what} must be {' or '.join(allowed)}, not {text[:50]!r}", field=what, value=text[:50])
    return text


def seconds(text: str, what: str, high: float) -> float:
    """Returns a duration from 0 to `high` seconds. Raises InvalidRequest."""
    try:
        found = float(text) if _SECONDS.fullmatch(text) else seconds_of(text)
    except ValueError as error:
        raise InvalidRequest(f"{what} {error}", field=what, value=text[:50]) from None
    if found > high:
        detail = f"{what} must be from 0 to {high:g} seconds, not {text[:50]!r}"
        raise InvalidRequest(detail, field=what, value=text[:50], bound=high)
    return found


def time_us(text: str, what: str, now_us: int, forms: str = MOMENT) -> int:
    """Returns the microseconds since 1970 of a time with its offset, or of one that is told by how long ago it was.
    Raises InvalidRequest, which names the forms."""
    try:
        if (ago_s := seconds_ago(text)) is not None:
            return max(now_us - round(ago_s * 1e6), _FIRST_US)
        return (in_utc(msgspec.convert(text, _Moment), what) - _EPOCH) // timedelta(microseconds=1)
    except msgspec.ValidationError:
        detail = f"{what} must be {forms}, not {text[:50]!r}"
        raise InvalidRequest(detail, field=what, value=text[:50]) from None


def in_utc(moment: datetime, field: str) -> datetime:
    """Returns a moment in UTC. Raises InvalidRequest."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        detail = f"{field} must be in the years 1 to 9999 in UTC, not {moment.isoformat()}"
        raise InvalidRequest(detail, field=field, value=moment.isoformat()) from None


LONGEST = 100  # characters of a value in an error's text
DIGITS = 3  # of a rate, behind the point: more of them are only noise


def moment(time_us: int) -> datetime:
    """Returns microseconds since the epoch as a time in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, UTC)


def show_differences(differences: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the `current` and the `requested` value of each field; of objects, of each member that differs."""
    each = (pair for field, one in differences.items() for pair in _apart(field, one["current"], one["requested"]))
    return ", ".join(f"{field} is {_shown(old)}, but the request states {_shown(new)}" for field, old, new in each)


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


class QueryParameter:
    """A dependency of path operations on a parameter of the query, which it reads and checks. `described` is what
    OpenAPI says of it. One that is left out is as `default`, or None."""

    def __init__(self, described: Mapping[str, Any], read: Callable[[str], Any], default: str | None) -> None:
        self.described = described
        self._read = read
        self._default = default

    async def __call__(self, request: RequestDep) -> Any:
        """Returns the value. Raises InvalidRequest."""
        text = request.query.get(self.described["name"], self._default)
        return None if text is None else self._read(text)


def query(
    name: str,
    about: str,
    schema: Mapping[str, Any],
    read: Callable[[str], Any] = str,
    default: str | None = None,
    **more: Any,
) -> Any:
    """Returns the dependency on a parameter of the query, which `read` checks; `more` are members of its
    description."""
    described = {"name": name, "in": "query", "description": about, "schema": schema, **more}
    return Depends(QueryParameter(described, read, default))


def integer(name: str, low: int, high: int, about: str, default: int | None = None) -> Any:
    """Returns the dependency on a whole number of the query."""
    schema = {"type": "integer", "minimum": low, "maximum": high}
    text = None if default is None else str(default)
    schema |= {} if default is None else {"default": default}
    return query(name, about, schema, partial(whole_number, what=name, low=low, high=high), text)


async def _topic(topic: str) -> str:
    return check_name(topic)


async def _subscription(subscription: str) -> str:
    return check_name(subscription, "subscription")


async def _writer(writer: str) -> str:
    if not _WRITER.fullmatch(writer):
        raise InvalidName(
            f"invalid writer name {writer[:200]!r}: use 1 to 128 of the characters A-Z a-z 0-9 . _ -", name=writer[:200]
        )
    return writer


async def _segment(segment: str) -> int:
    return whole_number(segment, "segment", 0, MAX_NUMBER)


async def _schema(schema: str) -> int:
    return whole_number(schema, "schema", 0, MAX_NUMBER)


PathTopic = Annotated[str, Depends(_topic)]
PathSubscription = Annotated[str, Depends(_subscription)]
PathWriter = Annotated[str, Depends(_writer)]
PathSegment = Annotated[int, Depends(_segment)]
PathSchema = Annotated[int, Depends(_schema)]
PageToken = Annotated[str | None, query("page_token", "`next_page_token` of the previous page", {"type": "string"})]
