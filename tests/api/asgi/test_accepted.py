"""Accept headers: which media types a client takes, and which it asks for."""

import pytest

from seaweedq.api.asgi.accepted import accepts, names
from seaweedq.api.asgi.http import Scope

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
