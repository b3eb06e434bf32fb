"""Every error of the tree has a status, and every answer to one is a problem that says what it has to."""

import json

import pytest

from seaweedq import errors
from seaweedq.api.asgi.problems import CONTENT_TYPE, STATUS, problem, responses, unexpected
from seaweedq.errors import SeaweedqError, Unavailable, by_slug

KINDS = sorted(by_slug().values(), key=lambda kind: kind.slug)


def subclasses(kind: type[SeaweedqError]) -> set[type[SeaweedqError]]:
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_no_error_is_unmapped_and_no_slug_is_taken_twice() -> None:
    here = {kind for kind in subclasses(SeaweedqError) if kind.__module__.startswith(errors.__name__)}
    assert here == set(STATUS)
    assert len({kind.slug for kind in here}) == len(here)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slug)
def test_an_error_is_a_whole_problem(kind: type[SeaweedqError]) -> None:
    status, headers, content = problem(kind("what was wrong", type="not mine to say", bound=7))
    assert headers["content-type"] == CONTENT_TYPE == "application/problem+json"
    assert json.loads(content) == {
        "type": f"/problems/{kind.slug}",
        "title": kind.title,
        "status": status,
        "detail": "what was wrong",
        "bound": 7,
    }
    expected = {"content-type": CONTENT_TYPE}
    if status == 503:
        expected["retry-after"] = "1"
    elif kind is errors.RateLimited:
        expected |= {"retry-after": "1", "ratelimit": '"requests";r=0;t=1', "ratelimit-policy": '"requests";q=0;w=1'}
    elif kind is errors.Unauthenticated:
        expected["www-authenticate"] = 'Bearer realm="seaweedq"'
    elif status == 408:
        expected["connection"] = "close"
    assert headers == expected


def test_which_errors_say_when_to_try_again() -> None:
    saying = {kind.__name__ for kind in KINDS if "retry-after" in problem(kind("what was wrong"))[1]}
    unavailable = {"CoordinationUnavailable", "Fenced", "JournalUnavailable", "NeedsNewerBroker", "NotOwner"}
    more = {"NotReady", "Overloaded", "PartlyTaken", "PeerTooOld", "StoreUnavailable", "Unavailable"}
    assert saying == unavailable | more | {"RateLimited"}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.slug)
def test_what_clients_send_is_never_a_500(kind: type[SeaweedqError]) -> None:
    if issubclass(kind, errors.BadRequest):
        assert 400 <= STATUS[kind] < 500
    elif issubclass(kind, Unavailable):
        assert STATUS[kind] == 503


def test_when_to_try_again_is_said() -> None:
    assert problem(errors.Overloaded("full", retry_after_s=7))[1]["retry-after"] == "7"


def test_a_defect_is_logged_and_not_told(caplog: pytest.LogCaptureFixture) -> None:
    status, _, content = unexpected(ValueError("a secret"))
    assert status == 500
    assert b"secret" not in content
    assert "a secret" in caplog.text


def test_openapi_says_which_errors_a_status_stands_for() -> None:
    described = responses(413)[413]
    assert described["description"] == "A message is too large; The payload is too large; The request is too large"
    assert list(described["content"]) == [CONTENT_TYPE]
