"""Messages in JSON: encodes rows, column by column, and reads the ids of messages in requests, all of them as one text.

Arrow joins each message from the texts of its columns. Stored JSON text is embedded as it is. JSON has no NaN and no
infinity: such floats become null. Decimals become strings, since most readers parse numbers as doubles; binary becomes
base64; times follow RFC 3339, in UTC with a `Z`, except for `timestamp` fields, which have no zone. An id is
`{segment}-{offset}`.
"""

import re
import sys
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from seaweedq.segments.layout import Format, Layout, offsets

_NO_OCTETS = np.empty(0, np.uint8)
_QUOTE, _BACKSLASH = b'"\\'
_FEW = 32
_SLICE_ROWS = 2048  # typed texts are made of so many rows at a time: names of fields make them far larger than rows
NO_LINKS: Mapping[str, str] = {}

Text = Any  # a string column, or one string for all rows
DIGITS = 18  # of a number at most: it fits into 63 bits
_ID = re.compile(rf"(0|[1-9][0-9]{{0,{DIGITS - 1}}})-(0|[1-9][0-9]{{0,{DIGITS - 1}}})")
_COMMA, _DASH, _ZERO = b",-0"
_FEW_IDS = 8  # are read one by one
Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


def encode_messages(
    pieces: Iterable[tuple[int, pa.RecordBatch]],
    segment: int,
    layout: Layout,
    links: Mapping[str, str] = NO_LINKS,
    max_bytes: int = sys.maxsize,
) -> tuple[bytes, int | None]:
    """Returns the JSON array of the messages of one segment, at most `max_bytes` but at least one message, and the
    offset of the first message that did not fit, None if all did. Other arguments are those of `message_texts`."""
    columns, left_out = fitting_texts(pieces, segment, layout, links, max_bytes - 1)  # two brackets, one comma less
    return json_array(columns), left_out


def fitting_texts(
    pieces: Iterable[tuple[int, pa.RecordBatch]],
    segment: int,
    layout: Layout,
    links: Mapping[str, str],
    left: int,
) -> tuple[list[pa.StringArray], int | None]:
    """Returns the messages of one segment as JSON texts that take at most `left` bytes, if a comma follows each, but at
    least one; and the offset of the first one that did not fit, None if all did."""
    columns: list[pa.StringArray] = []
    together = dense(pieces)
    if layout.format is Format.TYPED:
        starts = ((first, rows, at) for first, rows in together for at in range(0, rows.num_rows, _SLICE_ROWS))
        together = ((first + at, rows.slice(at, _SLICE_ROWS)) for first, rows, at in starts)
    for first, rows in together:
        count = rows.num_rows
        texts = message_texts(offsets(first, count), rows, segment, layout, None, links)
        edges = np.frombuffer(texts.buffers()[1], np.int32, count + 1, texts.offset * 4).astype(np.int64)
        ends = edges[1:] - edges[0] + np.arange(1, count + 1)  # where each text ends, if a comma follows each
        fit = max(int(np.searchsorted(ends, left, side="right")), 0 if columns else 1)
        columns.append(texts.slice(0, fit))
        if fit < len(texts):
            return columns, first + fit
        left -= int(ends[-1])
    return columns, None


def dense(pieces: Iterable[tuple[int, pa.RecordBatch]]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yields the pieces with neighbours of one schema put together: texts take 0.2 ms a piece, however small that
    is."""
    waiting: list[pa.RecordBatch] = []
    first = end = 0
    for at, rows in pieces:
        if waiting and not (at == end and rows.schema == waiting[0].schema):
            yield first, _together(waiting)
            waiting = []
        first, end = first if waiting else at, at + rows.num_rows
        waiting.append(rows)
    if waiting:
        yield first, _together(waiting)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def json_array(columns: Sequence[pa.StringArray]) -> bytes:
    """Returns one JSON array of the texts of all columns."""
    return b"[%b]" % joined(columns, ",")


def joined(columns: Sequence[pa.StringArray], separator: str) -> bytes | pa.Buffer:
    """Returns the texts of all columns, with a separator between two."""
    if sum(map(len, columns)) <= _FEW:  # a kernel's call costs more than they do
        return separator.join(text for column in columns for text in column.to_pylist()).encode()
    texts = pa.concat_arrays(columns)
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), separator)
    return whole[0].as_buffer()


def message_texts(
    numbers: pa.Array,
    rows: pa.RecordBatch,
    segment: int,
    layout: Layout,
    attempts: pa.Array | None,
    links: Mapping[str, str] = NO_LINKS,
    separator: str = "",
) -> pa.StringArray:
    """Returns one JSON object for each row.

    `rows` have the schema `layout.rows(mask)`, or are of an earlier version, and `numbers` are their offsets (int64).
    `attempts` are their numbers of deliveries; None leaves `attempt` out. `links` are URLs of payloads by the URI of
    their reference. `separator` follows each text. Raises NotReady as `Layout.raised`.
    """
    if layout.format is Format.TYPED:
        rows = layout.raised(rows)
    offset = numbers.cast(pa.string())
    name = "value_base64" if layout.format is Format.BYTES else "value"
    names = rows.schema.names
    key = _quoted(rows.column("_key")) if "_key" in names else ["null"]
    parts: list[Text] = [f'{{"id":"{segment}-', offset, '","key":', *key, f',"{name}":', _value(rows, layout)]
    headers = _headers(rows.column("_headers")) if "_headers" in names else "{}"
    parts += [',"headers":', headers, ',"timestamp":', *_moments(rows.column("_timestamp"))]
    parts += [f',"segment":{segment},"offset":', offset]
    if attempts is not None:
        parts += [',"attempt":', str(attempts[0]) if _is_one(attempts) else attempts.cast(pa.string())]
    if "_reference" in names:
        parts.append(_references(rows.column("_reference"), links))
    return _join([*parts, "}" + separator])


def separated(columns: Sequence[pa.StringArray]) -> list[memoryview]:
    """Returns the octets of texts that a separator of one octet follows, without the last one: the texts lie in memory
    as they go out, so nothing is copied."""
    found: list[memoryview] = []
    for texts in columns:
        _, ends, data = texts.buffers()
        edges = np.frombuffer(ends, np.int32, len(texts) + 1, texts.offset * 4)
        found.append(memoryview(data)[int(edges[0]) : int(edges[-1])])
    return [*found[:-1], found[-1][:-1]] if found else []


def _references(column: pa.Array, links: Mapping[str, str]) -> Text:
    """Returns `,"reference":{...}` for rows with a reference, else an empty text; `url` is there if a link is."""
    uri, size, content_type, sha256 = column.flatten()
    urls = [links.get(each) for each in uri.to_pylist()]
    text = _join(
        [
            ',"reference":{"uri":',
            *_quoted(uri),
            ',"size":',
            size.cast(pa.string()).fill_null("null"),
            ',"content_type":',
            *_quoted(content_type),
            ',"sha256":',
            *_quoted(sha256),
            pa.array([f',"url":{msgspec.json.encode(url).decode()}' if url else "" for url in urls], pa.string()),
            "}",
        ]
    )
    return pc.if_else(column.is_valid(), text, "") if column.null_count else text


def _join(parts: Sequence[Text]) -> Text:
    """Joins columns and texts; neighbours that are one text for all rows become one first."""
    merged: list[Text] = []
    for part in parts:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return pc.binary_join_element_wise(*merged, "") if len(merged) > 1 else merged[0]


def _is_one(column: pa.Array) -> bool:
    """Tells whether all values of a column of numbers are the same; mostly the first two differ otherwise."""
    if column.null_count or not len(column):
        return False
    kind = column.type
    values = np.asarray(column.view(pa.int64()) if types.is_timestamp(kind) else column)
    return bool(values[0] == values[-1] and (values == values[0]).all())


@lru_cache(maxsize=256)
def _moment(time: pa.TimestampScalar) -> str:
    """Returns a time as `_moments` does. Many pulls have rows of the same publish."""
    text = str(time.cast(pa.timestamp("us")).cast(pa.string()))
    return f"{text[:10]}T{text[11:]}"


def _headers(column: pa.Array) -> pa.StringArray:
    texts = [msgspec.json.encode(dict(each)).decode() if each else "{}" for each in column.to_pylist()]
    return pa.array(texts, pa.string())


def _value(rows: pa.RecordBatch, layout: Layout) -> Text:
    if layout.format is Format.JSON:
        column = rows.column("value")
        return column.fill_null("null") if column.null_count else column
    if layout.format is Format.BYTES:
        return _base64(rows.column("value"))
    parts: list[Text] = []
    for at, name in enumerate(layout.values.names):
        parts += [f"{',' if at else '{'}{msgspec.json.encode(name).decode()}:", _field(rows.column(name))]
    return _join([*parts, "}"])


def _field(column: pa.Array) -> Text:
    """Returns a typed column as JSON texts, `null` for nulls."""
    kind = column.type
    if types.is_string(kind):
        return _join(_quoted(column))
    if types.is_binary(kind) or types.is_fixed_size_binary(kind):
        return _base64(column)
    if types.is_timestamp(kind):
        return _join(_moments(column))
    if types.is_floating(kind):
        column = pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind))
    text = column.cast(pa.string())
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        text = _join(['"', text, '"'])
    return text.fill_null("null")


def _moments(column: pa.Array) -> list[Text]:
    end = '"' if column.type.tz is None else 'Z"'
    if _is_one(column):  # the rows of one publish often have one time
        return [f'"{_moment(column[0])}{end}']
    text = column.cast(pa.timestamp("us")).cast(pa.string())
    return _or_null(['"', pc.binary_replace_slice(text, 10, 11, "T"), end], column.null_count)


def _or_null(parts: list[Text], nulls: int) -> list[Text]:
    """Returns texts to join, `null` if one of them is null. They are joined already only if that is needed."""
    return [_join(parts).fill_null("null")] if nulls else parts


def _quoted(column: pa.StringArray) -> list[Text]:
    """Returns a column of text as JSON strings. Each is escaped on its own only if some character needs it."""
    _, ends, data = column.buffers()
    octets = _NO_OCTETS
    if data and len(column):  # a slice shares them with the column that it is cut from
        first, last = np.frombuffer(ends, np.int32, len(column) + 1, column.offset * 4)[[0, -1]].tolist()
        octets = np.frombuffer(data, np.uint8, last - first, first)
    if ((octets < 32) | (octets == _QUOTE) | (octets == _BACKSLASH)).any():
        return [pa.array([msgspec.json.encode(text).decode() for text in column.to_pylist()], pa.string())]
    return _or_null(['"', column, '"'], column.null_count)


def _base64(column: pa.Array) -> pa.StringArray:
    texts = [None if octets is None else b2a_base64(octets, newline=False).decode() for octets in column.to_pylist()]
    return _join(['"', pa.array(texts, pa.string()), '"']).fill_null("null")


def read_ids(ids: Sequence[str]) -> tuple[dict[int, Numbers], list[str]]:
    """Returns the offsets by segment, sorted, and the texts that are no ids."""
    strange: list[str] = []
    numbers = _numbers(ids) if len(ids) > _FEW_IDS else None
    if numbers is None:
        found: list[int] = []
        for text in ids:
            if parts := _ID.fullmatch(text):
                found += (int(parts[1]), int(parts[2]))
            else:
                strange.append(text)
        numbers = np.array(found, np.int64)
    segments, offsets = numbers[0::2], numbers[1::2]
    order = np.lexsort((offsets, segments))
    segments, offsets = segments[order], offsets[order]
    cuts = [0, *(np.flatnonzero(segments[1:] != segments[:-1]) + 1).tolist(), len(segments)]
    return {int(segments[low]): offsets[low:high] for low, high in pairwise(cuts) if low < high}, strange


def _numbers(ids: Sequence[str]) -> Numbers | None:
    """Returns segment and offset of each id in turn; None if one of the texts is no id."""
    joined = ",".join(ids)
    if not joined.isascii():
        return None
    octets = np.frombuffer(joined.encode(), np.uint8)
    cuts = np.flatnonzero((octets < _ZERO) | (octets > _ZERO + 9))
    if len(cuts) != 2 * len(ids) - 1 or (octets[cuts[0::2]] != _DASH).any() or (octets[cuts[1::2]] != _COMMA).any():
        return None
    begins = np.concatenate([[0], cuts + 1])
    lengths = np.append(cuts, len(octets)) - begins
    if lengths.min() < 1 or lengths.max() > DIGITS or ((octets[begins] == _ZERO) & (lengths > 1)).any():
        return None
    return np.fromstring(joined.replace("-", ","), np.int64, sep=",")
