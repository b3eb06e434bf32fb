"""Accept headers: which media types a client takes, and which it asks for. Headers of requests, as they are read once
for all who ask.
"""

import pytest

from seaweedq.api.request import Request
from tests.support.http.requests import of_scope

EVENTS = "text/event-stream"


def asked(*stated: str) -> Request:
    return of_scope({"headers": [(b"accept", one.encode()) for one in stated]})


@pytest.mark.parametrize(
    "stated",
    [
        (),
        ("",),
        ("*/*",),
        ("text/*",),
        ("Text/Event-Stream; charset=utf-8",),
        ("text/html", "text/event-stream;q=0.5"),
        ("*/*;q=0, text/event-stream",),
        ("text/event-stream;q=nonsense",),
    ],
)
def test_accepted(stated: tuple[str, ...]) -> None:
    assert asked(*stated).accepts(EVENTS)


@pytest.mark.parametrize(
    "stated",
    [
        ("text/html",),
        ("text/event-stream;q=0",),
        ("text/event-stream; q=0.000, */*",),
        ("*/*, text/*;q=0",),
    ],
)
def test_not_accepted(stated: tuple[str, ...]) -> None:
    """The most exact range counts; a weight of 0 says no."""
    assert not asked(*stated).accepts(EVENTS)


def test_a_type_is_asked_for_by_its_name_alone() -> None:
    assert asked("text/event-stream;q=0.1, */*").asks_for(EVENTS)
    for stated in ("*/*", "text/*", "text/event-stream;q=0", "application/x-text/event-stream"):
        assert not asked(stated).asks_for(EVENTS)
    assert not asked().asks_for(EVENTS)


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    request = of_scope({"headers": [(b"content-length", b"3 "), (b"host", b"localhost \t")]})
    assert request.headers[b"host"] == b"localhost"
    assert request.content_length == 3


def test_repeated_headers_are_joined() -> None:
    assert of_scope({"headers": [(b"host", b"a "), (b"host", b"b")]}).headers == {b"host": b"a, b"}
