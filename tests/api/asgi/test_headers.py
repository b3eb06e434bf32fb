"""Headers of requests, as they are read once for all who ask."""

from seaweedq.api.asgi.http import content_length, headers_of


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    scope = {"headers": [(b"content-length", b"3 "), (b"host", b"localhost \t")]}
    assert headers_of(scope)[b"host"] == b"localhost"
    assert content_length(scope) == 3


def test_repeated_headers_are_joined() -> None:
    assert headers_of({"headers": [(b"host", b"a "), (b"host", b"b")]}) == {b"host": b"a, b"}
