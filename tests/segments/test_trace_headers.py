"""The header `traceparent` of rows: added where there is none, within the bounds, and found again."""

import pyarrow as pa
import pytest

from seaweedq.segments.layout import Format, Layout
from seaweedq.segments.rows import Single, rows_of_singles
from seaweedq.segments.trace_headers import LOOKED, SIZE, add_to_rows, add_to_single, traceparents
from seaweedq.traces import LINKS
from tests.support.spans import SAMPLED, UNSAMPLED

LAYOUT = Layout.from_format(Format.JSON)
MUCH = 10**9
Headers = dict[str, str] | None


def rows(*headers: Headers, key: str | None = None) -> pa.RecordBatch:
    return rows_of_singles([Single(key, b"1", one, 1, None) for one in headers], LAYOUT)


def headers_of(found: pa.RecordBatch) -> list[dict[str, str]]:
    found.validate(full=True)
    return [dict(one.as_py() or []) for one in found.column("_headers")]


def test_each_message_without_the_header_gets_it() -> None:
    given = rows(None, {"a": "b", "c": "d"}, {"traceparent": "its own", "x": "y"}, {"Traceparent": "no name of it"})
    found = add_to_rows(given, LAYOUT, SAMPLED, MUCH, MUCH)
    assert headers_of(found) == [
        {"traceparent": SAMPLED},
        {"a": "b", "c": "d", "traceparent": SAMPLED},
        {"traceparent": "its own", "x": "y"},
        {"Traceparent": "no name of it", "traceparent": SAMPLED},
    ]
    assert found.drop_columns(["_headers"]).equals(given.drop_columns(["_headers"]))
    assert found.schema.equals(LAYOUT.rows(0b10), check_metadata=True)


def test_rows_without_headers_and_with_keys_get_the_column() -> None:
    found = add_to_rows(rows(None, None, key="k"), LAYOUT, UNSAMPLED, MUCH, MUCH)
    assert headers_of(found) == [{"traceparent": UNSAMPLED}] * 2
    assert found.schema.equals(LAYOUT.rows(0b11), check_metadata=True)


def test_a_part_of_rows_gets_and_has_its_own_headers_alone() -> None:
    whole = rows({"a": "1"}, None, {"b": "2", "traceparent": UNSAMPLED}, {"c": "3"})
    found = add_to_rows(whole.slice(1, 3), LAYOUT, SAMPLED, MUCH, MUCH)
    assert headers_of(found) == [
        {"traceparent": SAMPLED},
        {"b": "2", "traceparent": UNSAMPLED},
        {"c": "3", "traceparent": SAMPLED},
    ]
    assert [traceparents(found.slice(at, 1)) for at in range(3)] == [(SAMPLED,), (UNSAMPLED,), (SAMPLED,)]
    assert traceparents(whole.slice(0, 2)) == ()


@pytest.mark.parametrize("less", [0, 1])
def test_a_message_at_its_bound_stays_as_it_is(less: int) -> None:
    given, bound = rows({"a": "é" * 50}, None, key="kk"), len("kka") + 100 + SIZE - less
    first, second = headers_of(add_to_rows(given, LAYOUT, SAMPLED, bound, MUCH))
    assert (second, "traceparent" in first) == ({"traceparent": SAMPLED}, not less)
    single = Single("kk", b"1", {"a": "é" * 50}, 1, None)
    add_to_single(single, SAMPLED, bound)
    assert single.headers == first


def test_a_request_at_its_bound_stays_as_it_is() -> None:
    given = rows(*[None] * 1_000)
    assert add_to_rows(given, LAYOUT, SAMPLED, MUCH, given.nbytes + 1_000 * SIZE - 1) is given
    assert "_headers" in add_to_rows(given, LAYOUT, SAMPLED, MUCH, given.nbytes + 1_000 * SIZE).schema.names


def test_a_message_alone_keeps_its_own_header() -> None:
    own = Single(None, b"1", {"traceparent": "mine"}, 1, None)
    add_to_single(own, SAMPLED, MUCH)
    assert own.headers == {"traceparent": "mine"}


def test_contexts_are_few_and_short_whatever_messages_say() -> None:
    assert traceparents(rows({"traceparent": "x" * 100_000}, {"traceparent": SAMPLED}, None)) == (SAMPLED,)
    many = rows(*({"traceparent": f"00-{number:032x}-{1:016x}-01"} for number in range(LOOKED + 10)))
    assert len(traceparents(many)) == LINKS
    late = rows(*[{"a": "b"}] * LOOKED, {"traceparent": SAMPLED})
    assert traceparents(late) == ()


@pytest.mark.parametrize("beside", ["", "x" * 100_000])
def test_contexts_of_few_and_of_large_headers_are_the_same(beside: str) -> None:
    odd = {"traceparent": "short"}, {"a": SAMPLED}, {"traceparent": UNSAMPLED}
    mixed = rows({"a": beside, "traceparent": SAMPLED}, None, *odd, {"traceparent": SAMPLED})
    assert traceparents(mixed) == (SAMPLED, UNSAMPLED)
    many = rows({"a": beside}, *({"traceparent": f"00-{number:032x}-{1:016x}-01"} for number in range(100)))
    assert len(traceparents(many)) == LINKS
