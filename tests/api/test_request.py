"""Accept headers: which media types a client takes, and which it asks for. Headers of requests, as they are read once
for all who ask.
"""

import pytest

from seaweedq.api.request import Scope, accepts, content_length, headers_of, names

EVENTS = "text/event-stream"


def scope(*stated: str) -> Scope:
    return {"headers": [(b"accept", one.encode()) for one in stated]}


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
    assert accepts(scope(*stated), EVENTS)


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
    assert not accepts(scope(*stated), EVENTS)


def test_a_type_is_asked_for_by_its_name_alone() -> None:
    assert names(scope("text/event-stream;q=0.1, */*"), EVENTS)
    for stated in ("*/*", "text/*", "text/event-stream;q=0", "application/x-text/event-stream"):
        assert not names(scope(stated), EVENTS)
    assert not names(scope(), EVENTS)


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    scope = {"headers": [(b"content-length", b"3 "), (b"host", b"localhost \t")]}
    assert headers_of(scope)[b"host"] == b"localhost"
    assert content_length(scope) == 3


def test_repeated_headers_are_joined() -> None:
    assert headers_of({"headers": [(b"host", b"a "), (b"host", b"b")]}) == {b"host": b"a, b"}
