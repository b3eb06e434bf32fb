"""The good path takes all messages at once, the slow path one by one: what both take they take alike."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.errors import BadRequest, InvalidMessages, MessageTooLarge
from seaweedq.rows import envelopes
from seaweedq.rows.bodies import decode_json, decode_ndjson
from seaweedq.rows.envelopes import decode_single
from seaweedq.rows.intake import Intake
from seaweedq.segments.layout import mask_of
from seaweedq.segments.rows import rows_of_singles
from tests.support.rows.body_samples import intake, reasons
from tests.support.tiers import examples

LIMIT = 400

KEYS = [b'"a"', b'"\\u00e9\\n"', b"null", b'""', b"5", b'"\xff"', b'"\\ud800"', b'"' + b"k" * 390 + b'"', b'"1"']
HEADERS = [b"{}", b'{"a":"b"}', b'{"a":"b","c":"d"}', b"null", b'{"a":1}', b"[]", b'{"h":"' + b"x" * 20 + b'"}']
TIMES = [
    b'"2024-01-01T00:00:00Z"',
    b'"2024-01-01T00:00:00.1234567+02:00"',
    b'"0001-01-01T00:00:00Z"',
    b'"0001-01-01T00:00:00+01:00"',
    b'"2026-09-21T15:13:20Z"',
    b'"2026-09-21T15:13:21Z"',
    b'"2024-01-01T00:00:00"',
    b"null",
    b"1",
]
EXPIRES = [
    b"1",
    b"0.0000015",
    b"1e-9",
    b"2.5e9",
    b"null",
    b"0",
    b"-1",
    b"1e999",
    b"3155760000",
    b'"1"',
    b'"5m"',
    b'"5x"',
    b'"0s"',
]
JSON_VALUES = [
    b"1",
    b"null",
    b'{"k":"a"}',
    b'{"k":1.50,"z":"e100"}',
    b'{"k":true, "z":[1,2]}',
    b'{"k":null}',
    b'{"k":{}}',
    b'"\xff"',
    b"1e999",
    b"-1.5e+300",
    b"NaN",
    b"[" * 129 + b"]" * 129,
    b"[" * 128 + b"]" * 128,
    b'"' + b"[" * 200 + b'"',
    b'"' + b"x" * 399 + b'"',
    b"1" * 330,
    b"",
]
BYTES_VALUES = [b'"QUJD"', b'""', b'"QQ"', b"null", b'"%b"' % (b"QUJD" * 134), b'"\\u0051Q=="']
TYPED_VALUES = [
    b'{"small":1}',
    b'{"small":1,"name":"a","price":"1.5"}',
    b'{"small":2,"price":1e2,"moment":"2024-01-01T00:00:00+01:00"}',
    b'{"small":2,"price":"1.555"}',
    b'{"small":2,"moment":"0001-01-01T00:00:00+01:00"}',
    b'{"small":2,"token":"6BA7B810-9dad-11d1-80b4-00c04fd430c8","single":0.1}',
    b'{"small":"2"}',
    b'{"small":2,"x":1}',
    b'{"small":2,"name":"\xff"}',
    b"{}",
    b"1",
]
VALUES = {"json": JSON_VALUES, "bytes": BYTES_VALUES, "typed": TYPED_VALUES}
EXTRA = [b"", b"", b"", b"", b',"x":1', b',"reference":{}', b"}", b"\n", b' "']
ENDS = [b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b" \n", b"", b" "]


@st.composite
def messages(draw: st.DrawFn, format: str) -> bytes:
    """One message, more often than not a valid one."""
    name = b"value_base64" if format == "bytes" else b"value"
    parts = [b'"%b":%b' % (name, draw(st.sampled_from(VALUES[format])))]
    for field, choices in ((b"key", KEYS), (b"headers", HEADERS), (b"timestamp", TIMES), (b"expires_in_s", EXPIRES)):
        if draw(st.integers(0, 4)) == 0:
            parts.insert(draw(st.integers(0, len(parts))), b'"%b":%b' % (field, draw(st.sampled_from(choices))))
    return b"{" + b",".join(parts) + draw(st.sampled_from(EXTRA)) + b"}"


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[bytes], list[bytes], Intake]:
    """Messages, what stands between them, and what takes them."""
    format, field = draw(
        st.sampled_from([("json", None), ("json", "k"), ("bytes", None), ("typed", None), ("typed", "small")])
    )
    found = draw(st.lists(messages(format), min_size=1, max_size=8))
    ends = [draw(st.sampled_from(ENDS)) for _ in found]
    return found, ends, intake(format, field, limit=LIMIT)


def outcome(decode: Any, *args: Any) -> Any:
    """The rows as plain data, or the error's kind with what it names."""
    try:
        rows: pa.RecordBatch = decode(*args)
    except InvalidMessages as error:
        return reasons(error)
    except BadRequest as error:
        return type(error), error.fields.get("index")
    rows.validate(full=True)
    assert rows.schema.equals(args[-1].layout.rows(mask_of(rows)))
    return rows.to_pylist()


def by_rows(body: bytes, taken: Intake) -> pa.RecordBatch:
    lines = enumerate(line.strip(b" \t\r") for line in body.split(b"\n"))
    return envelopes.row_by_row(((index, line) for index, line in lines if line), taken)


@settings(deadline=None, max_examples=examples(600))
@given(requests())
def test_lines_at_once_and_one_by_one(request: tuple[list[bytes], list[bytes], Intake]) -> None:
    found, ends, taken = request
    body = b"".join(message + end for message, end in zip(found, ends, strict=True))
    assert outcome(decode_ndjson, body, taken) == outcome(by_rows, body, taken)


@settings(deadline=None, max_examples=examples(300))
@given(requests())
def test_a_message_stands_for_itself(request: tuple[list[bytes], list[bytes], Intake]) -> None:
    """A batch takes exactly the messages that it would take one by one, and to the same rows."""
    found, _, taken = request
    found = [message.replace(b"\n", b" ") for message in found]
    alone = [outcome(decode_ndjson, message, taken) for message in found]
    together = outcome(decode_ndjson, b"\n".join(found), taken)
    too_large = [at for at, each in enumerate(alone) if isinstance(each, tuple)]
    if too_large:
        assert together == (MessageTooLarge, too_large[0])
    elif bad := {at: each[0] for at, each in enumerate(alone) if isinstance(each, dict)}:
        assert together == bad
    else:
        assert [without_nulls(row) for row in together] == [without_nulls(each[0]) for each in alone]


def without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


@settings(deadline=None, max_examples=examples(300))
@given(requests())
def test_json_batches_and_lines(request: tuple[list[bytes], list[bytes], Intake]) -> None:
    """Both give the same rows; broken JSON, which lines name, is unreadable in a batch."""
    found, _, taken = request
    found = [message.replace(b"\n", b" ") for message in found]
    lines = outcome(decode_ndjson, b"\n".join(found), taken)
    batch = outcome(decode_json, b'{"messages":[%b]}' % b",".join(found), taken)
    assert batch == lines or (isinstance(batch, tuple) and not isinstance(lines, list))


@settings(deadline=None, max_examples=examples(300))
@given(requests())
def test_a_single_message_and_a_batch_of_one(request: tuple[list[bytes], list[bytes], Intake]) -> None:
    (message, *_), _, taken = request

    def single(body: bytes, taken: Intake) -> pa.RecordBatch:
        one = decode_single(body, taken)
        return decode_json(body, taken) if one is None else rows_of_singles([one], taken.layout)

    assert outcome(single, message, taken) == outcome(decode_json, message, taken)


BARE = [
    b"1",
    b'{"small":1}',
    b'{"small":2,"name":"a"}',
    b'{"small":2',
    b'"name":"b"}',
    b"{},{}",
    b"[1",
    b"2]",
    b"",
    b" 1 ",
]


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(st.sampled_from([*BARE, *JSON_VALUES]), min_size=1), st.sampled_from(["json", "typed"]), st.booleans())
def test_bare_lines_at_once_and_one_by_one(lines: list[bytes], format: str, keyed: bool) -> None:
    taken = intake(format, "small" if keyed else None, limit=LIMIT)

    def bare(body: bytes, taken: Intake) -> pa.RecordBatch:
        return decode_ndjson(body, taken, bare=True)

    wrapped = b"\n".join(b'{"value":%b}' % line if line.strip() else line for line in lines)
    one, other = outcome(bare, b"\n".join(lines), taken), outcome(by_rows, wrapped, taken)
    # wrapping can make one message of a line that is none: `1,"key":2`; the samples hold no such line
    assert type(one) is type(other)
    assert one == other if not isinstance(one, dict) else list(one) == list(other)


@pytest.mark.parametrize("format", ["json", "bytes", "typed"])
def test_good_messages_take_the_good_path(format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelopes, "row_by_row", None)
    name = b"value_base64" if format == "bytes" else b"value"
    message = b'{"key":"a","%b":%b,"headers":{"a":"b"},"timestamp":"2024-01-01T00:00:00Z","expires_in_s":1}'
    lines = [message % (name, VALUES[format][0])] * 3
    for end in (b"\n", b"\r\n"):
        assert decode_ndjson(end.join(lines) + end, intake(format)).num_rows == 3
    assert decode_json(b'{"messages":[%b]}' % b",".join(lines), intake(format)).num_rows == 3
