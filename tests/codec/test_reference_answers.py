"""References in JSON answers: joined by columns, and yet what a JSON encoder would have written of each."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seaweedq.codec.message_json import encode_messages, json_array, message_texts
from seaweedq.segments.layout import Format, Layout, Reference, Single, rows_of_singles
from tests.support.tiers import examples

TEXT = st.none() | st.text(max_size=8) | st.sampled_from(['"', "\\", '"},{"x":"', "\n", "\x00", "é☃", "</script>"])
REFERENCES = st.none() | st.builds(Reference, TEXT, st.none() | st.integers(0, 2**62), TEXT, TEXT)


def rows_of(format: Format, references: list[Reference | None]) -> tuple[Layout, Any]:
    layout = Layout.from_format(format)
    singles = [Single(f"k{n}", None if r else b'"v"', None, 0, None, r) for n, r in enumerate(references)]
    return layout, rows_of_singles(singles, layout)


@pytest.mark.parametrize("format", [Format.JSON, Format.BYTES])
@settings(deadline=None, max_examples=examples(150))
@given(references=st.lists(REFERENCES, min_size=1, max_size=6), cut=st.integers(0, 5), linked=st.booleans())
def test_as_an_encoder_would(format: Format, references: list[Reference | None], cut: int, linked: bool) -> None:
    layout, rows = rows_of(format, references)
    cut = min(cut, len(references) - 1)
    links = {r.uri: f'http://x/?{n}&"\\' for n, r in enumerate(references) if r and r.uri is not None} if linked else {}
    numbers, ones = pa.array(range(cut, len(references))), pa.array([1] * (len(references) - cut))
    found = json.loads(json_array([message_texts(numbers, rows.slice(cut), 3, layout, ones, links)]))
    assert [each["offset"] for each in found] == list(range(cut, len(references)))
    for message, reference in zip(found, references[cut:], strict=True):
        assert list(message)[-1] == ("reference" if reference else "attempt")
        value = message["value" if format is Format.JSON else "value_base64"]
        assert (value is None) == (reference is not None)
        if reference:
            expected: dict[str, Any] = {
                "uri": reference.uri,
                "size": reference.size,
                "content_type": reference.content_type,
                "sha256": reference.sha256,
            }
            if url := links.get(reference.uri):
                expected["url"] = url
            assert message["reference"] == expected


def test_many_messages_in_pieces() -> None:
    """More than the few that are joined one by one, in pieces with and without references."""
    layout, referring = rows_of(Format.JSON, [Reference(f"s3://b/{n}", n, "a/b", "ab") for n in range(100)])
    _, plain = rows_of(Format.JSON, [None] * 100)
    found = json.loads(
        encode_messages([(0, referring), (100, plain), (200, referring)], 0, layout, {"s3://b/7": "u"})[0]
    )
    assert [each["offset"] for each in found] == list(range(300))
    assert [each.get("reference", {}).get("size") for each in found] == [*range(100), *[None] * 100, *range(100)]
    assert [each["offset"] for each in found if "url" in each.get("reference", {})] == [7, 207]
