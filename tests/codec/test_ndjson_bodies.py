import pytest

from seaweedq.codec import bodies, envelopes
from seaweedq.codec import intake as intakes
from seaweedq.codec.bodies import decode_ndjson
from seaweedq.errors import InvalidMessages, InvalidRequest, MessageTooLarge
from tests.support.codec.body_samples import LIMIT, intake, reasons, values


@pytest.mark.parametrize(
    "body",
    [
        b'{"value":1}\n{"value":2}',
        b'{"value":1}\n{"value":2}\n',
        b'{"value":1}\r\n{"value":2}\r\n',
        b'\n\n{"value":1}\n \t\n{"value":2}\n\n',
        b' {"value": 1 }\t\n\t{"value": 2 } ',
    ],
)
def test_lines_are_messages(body: bytes) -> None:
    assert values(decode_ndjson(body, intake())) == ["1", "2"]


@pytest.mark.parametrize("body", [b'1\n"a"', b'1\r\n"a"\r\n', b'\n 1 \n\n\t"a"\n'])
@pytest.mark.parametrize("key_field", [None, "k"])
def test_bare_lines_are_values(body: bytes, key_field: str | None) -> None:
    assert values(decode_ndjson(body, intake(key_field=key_field), bare=True)) == ["1", '"a"']


def test_bare_lines_have_keys() -> None:
    rows = decode_ndjson(b'{"k":"a"}\n{"k":5}\n{}', intake(key_field="k"), bare=True)
    assert rows.column("_key").to_pylist() == ["a", "5", None]
    rows = decode_ndjson(b'{"small":5}\n{"small":6,"name":"a"}', intake("typed", "small"), bare=True)
    assert rows.column("_key").to_pylist() == ["5", "6"]


def test_bare_lines_are_no_bytes() -> None:
    with pytest.raises(InvalidRequest, match="value_base64"):
        decode_ndjson(b'"QQ=="', intake("bytes"), bare=True)


@pytest.mark.parametrize("body", [b"", b"\n", b"\r\n \n"])
@pytest.mark.parametrize("bare", [True, False])
def test_no_messages(body: bytes, bare: bool) -> None:
    with pytest.raises(InvalidRequest, match="has no messages"):
        decode_ndjson(body, intake(), bare)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b'{"value":1}{"value":2}\n{"value":\n3}', [0, 1, 2]),
        (b'{"value":1} {"value":2}', [0]),
        (b'{"value":1}{"value":2}\n{"value":{}\n}', [0, 1, 2]),
        (b'{"value":1}\n\n{"value"\n{"value":2}', [2]),
        (b'{"value":1}\nnot json\n[1]\n5\nnull', [1, 2, 3, 4]),
        (b'{"value":1}\n{"value":"\xff"}\n{"val":1}', [1, 2]),
        (b'{"value":1}\n{"value":1,"reference":{}}', [1]),
        (b'{"value":' + b"[" * 100_000 + b'\n{"value":1}', [0]),
        (b'{"value":1}\r{"value":2}', [0]),
        (b'\xef\xbb\xbf{"value":1}', [0]),
    ],
)
def test_bad_lines_are_named(body: bytes, lines: list[int]) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake())
    assert list(reasons(caught.value)) == lines


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        (b"1 2\n3", [0]),
        (b"1,2\n[3\n4]", [0, 1, 2]),
        (b"1\nNaN\n\n1e999\n2", [1, 3]),
        (b'{"a":1\n"b":2}\n{},{}', [0, 1, 2]),
        (b'"\xff"', [0]),
    ],
)
def test_bad_bare_lines_are_named(body: bytes, lines: list[int]) -> None:
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake(), bare=True)
    assert list(reasons(caught.value)) == lines


def test_two_objects_on_a_bare_line_are_no_two_rows() -> None:
    body = b'{"small":1},{"small":2}\n{"small":3\n"name":"a"}'
    with pytest.raises(InvalidMessages) as caught:
        decode_ndjson(body, intake("typed"), bare=True)
    assert list(reasons(caught.value)) == [0, 1, 2]


def test_a_line_over_the_limit() -> None:
    with pytest.raises(MessageTooLarge) as caught:
        decode_ndjson(b'1\n\n"' + b"x" * LIMIT + b'"', intake(), bare=True)
    assert caught.value.fields == {"limit_bytes": LIMIT, "index": 2}


def test_the_look_at_bad_lines_ends_after_ten_thousand() -> None:
    with pytest.raises(InvalidMessages, match="at least 10000") as caught:
        decode_ndjson(b"5\n" * 5_000_000, intake())
    assert caught.value.fields["invalid"] == 10_000
    assert list(reasons(caught.value)) == list(range(1_000))


def test_more_than_a_million_messages_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="1000000"):
        decode_ndjson(b'{"value":1}\n' * 1_000_001, intake())


def test_more_than_a_million_messages_are_counted_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("seaweedq.codec.messages.decode_lines")
    monkeypatch.delattr("seaweedq.codec.envelopes.row_by_row")
    with pytest.raises(InvalidRequest, match="1000002 messages, more than 1000000"):
        decode_ndjson(b'{"value":1}\n' * 1_000_001 + b'{"v":1}\n', intake())


def test_more_than_that_are_refused_one_by_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (intakes, envelopes):
        monkeypatch.setattr(module, "MAX_ROWS", 10)
    body = b'{"value":1}\n\n'
    assert decode_ndjson(body * 10, intake()).num_rows == 10
    with pytest.raises(InvalidRequest, match="11 messages, more than 10"):
        decode_ndjson(body * 20, intake())


MIXED = [
    b'{"value":1}',
    b'{"value":2,"key":"k"}',
    b'{"value":[3,"long"],"headers":{"a":"b"}}',
    b'{"value":4}',
    b'{"value":5,"timestamp":"2026-01-01T00:00:00Z","expires_in_s":5}',
    b'{"value":6,"key":"","headers":{}}',
]


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("size", [1, 12, 13, 40, 100])
def test_slices_of_a_body_give_the_same_rows(monkeypatch: pytest.MonkeyPatch, size: int, bare: bool) -> None:
    for lines in ([*MIXED], MIXED[:1], MIXED[::-1], [MIXED[0]] * 20, [MIXED[0]] * 9 + [MIXED[1]]):
        body = b"\n".join(lines)
        whole = decode_ndjson(body, intake(), bare)
        monkeypatch.setattr(bodies, "SLICE_BYTES", size)
        sliced = decode_ndjson(body, intake(), bare)
        monkeypatch.undo()
        assert sliced.equals(whole)
        assert sliced.schema == whole.schema


def test_slices_name_the_lines_of_the_whole_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "SLICE_BYTES", 30)
    with pytest.raises(InvalidMessages) as error:
        decode_ndjson(b"\n".join([*MIXED, b'{"v":1}', *MIXED, b"{"]), intake())
    assert [each["index"] for each in error.value.fields["errors"]] == [6, 13]
    with pytest.raises(InvalidMessages) as error:
        decode_ndjson(b'{"value":1}{"value":2}\n' * 5, intake())
    assert len(error.value.fields["errors"]) == 5
