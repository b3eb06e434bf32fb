"""Decodes the body of a publish, by its content type, to the rows of a layout. Pure functions over hostile bytes.

The fast path decodes all messages at once into columns. Where it gives up, the slow path decodes one message after the
other, so that an answer can name all messages that are not valid; it also accepts valid messages that the fast path
cannot decode.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from seaweedq.codec import envelopes, hints, messages
from seaweedq.codec import json_text as json_texts
from seaweedq.codec.arrow_bodies import decode_arrow
from seaweedq.codec.intake import Doubt, Intake, Refused, check_count, refuse, too_large
from seaweedq.codec.messages import Envelope
from seaweedq.errors import InvalidMessages, InvalidRequest, UnreadableBody, UnsupportedContentType
from seaweedq.json_reasons import in_words
from seaweedq.segments.layout import Format, Single, binaries, rows_of_singles, together

FORM = "application/x-www-form-urlencoded"
JSON, NDJSON, ARROW = "application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream"
SUPPORTED = (JSON, NDJSON, ARROW)

SLICE_BYTES = 256 * 1024  # of lines that are decoded at a time
_NEWLINE, _OPEN, _CLOSE = b"\n{}"
_REFERENCE = b'"reference"'

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raws = msgspec.json.Decoder(list[msgspec.Raw])


def decode(
    content_type: str | None, body: bytes, intake: Intake, bare: bool | None = None, key: str | None = None
) -> pa.RecordBatch:
    """Returns the rows of a publish. With `bare`, by default the topic's, lines of NDJSON are values; `key` is the key
    of a raw body.

    Raises UnsupportedContentType, and the errors of the decoder of that type.
    """
    match media_type(content_type):
        case "application/json":
            with _explained(lambda _: hints.of_body(body, intake.layout.format)):
                return decode_json(body, intake)
        case "application/x-ndjson":
            bare = intake.bare if bare is None else bare
            with _explained(lambda line: hints.of_line(_line(body, line), bare, intake.layout.format)):
                return decode_ndjson(body, intake, bare)
        case "application/vnd.apache.arrow.stream":
            return decode_arrow(body, intake)
    if intake.layout.format is Format.BYTES:
        return decode_raw(body, key, intake)
    detail = f"the content type {content_type!r} is not one of {', '.join(SUPPORTED)}; other types need a bytes topic"
    if hint := hints.of_type(body, media_type(content_type) == FORM):
        detail += f"; {hint}"
    raise UnsupportedContentType(detail, supported=list(SUPPORTED))


@contextmanager
def _explained(hint: Callable[[int], str | None]) -> Iterator[None]:
    """Adds to an error what mends it; `hint` takes the index of the first message that is not valid."""
    try:
        yield
    except InvalidMessages as error:
        first = error.fields["errors"][0]["index"]
        if found := hint(first):
            raise InvalidMessages(f"{error.detail}; {found}", **error.fields, hint=found) from None
        raise
    except UnreadableBody as error:
        if found := hint(0):
            raise UnreadableBody(f"{error.detail}; {found}", **error.fields, hint=found) from None
        raise


def _line(body: bytes, number: int) -> bytes:
    """Returns a line of a body, from 0, without white space at its ends."""
    return bytes(body).split(b"\n", number + 1)[number].strip()


def media_type(content_type: str | None) -> str:
    """Returns the content type without its parameters, in lower case."""
    return (content_type or "").partition(";")[0].strip().lower()


def decode_single(body: bytes, intake: Intake) -> Single | None:
    """Returns the one message of a JSON body on a json or bytes topic, None where `decode_json` has to decode it.

    Raises UnreadableBody, InvalidMessages, MessageTooLarge.
    """
    if intake.layout.format is Format.TYPED:
        return None
    try:
        return envelopes.check(messages.decode_one(body, intake.layout.format), 0, intake)
    except Refused as refused:
        refuse([(0, str(refused))])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return _one_reference(body, intake) if _REFERENCE in body else None


def _one_reference(body: bytes, intake: Intake) -> Single | None:
    """Returns the one message of a body, if it has a payload; None where `decode_json` has to decode it."""
    try:
        return envelopes.read(body, 0, intake)
    except Refused:
        return None


def decode_json(body: bytes, intake: Intake) -> pa.RecordBatch:
    """Returns the rows of one message, or of `{"messages": [...]}`.

    Raises UnreadableBody, InvalidRequest, InvalidMessages, MessageTooLarge.
    """
    with suppress(*envelopes.GIVEN_UP):  # behind the block nothing of the fast path is in memory any more
        return envelopes.columns_of(messages.decode_many(body, intake.layout.format), intake)
    return envelopes.row_by_row(enumerate(_messages(body)), intake)


def decode_ndjson(body: bytes, intake: Intake, bare: bool = False) -> pa.RecordBatch:
    """Returns the rows of one message a line, or with `bare` of one value a line. Errors count empty lines too.

    Raises InvalidRequest, InvalidMessages (index: the line, from 0), MessageTooLarge.
    """
    if bare and intake.layout.format is Format.BYTES:
        raise InvalidRequest("bare lines are JSON values; a bytes topic needs messages with value_base64", field="bare")
    body = bytes(body).replace(b"\r\n", b"\n")
    with suppress(*envelopes.GIVEN_UP):  # as above
        return _bare_columns(body, intake) if bare else _line_columns(body, intake)
    lines = enumerate(line.strip(b" \t\r\n") for line in BytesIO(body))  # a list of them takes ten times the body
    return envelopes.row_by_row(((i, Envelope(msgspec.Raw(s)) if bare else s) for i, s in lines if s), intake)


def decode_raw(body: bytes, key: str | None, intake: Intake) -> pa.RecordBatch:
    """Returns the one row of a bytes topic whose value is the body. Raises MessageTooLarge."""
    for what, size in (("the value", len(body)), ("the key", len((key or "").encode()))):
        if size > intake.max_message_bytes:
            raise too_large(what, size, intake.max_message_bytes, 0)
    return rows_of_singles([Single(key, bytes(body), None, intake.now_us, None)], intake.layout)


def _messages(body: bytes) -> list[Any]:
    """Returns the messages of a JSON body, not decoded. Raises UnreadableBody, InvalidRequest."""
    try:
        fields = _fields.decode(body)
        if "messages" not in fields:
            return [body]
        if len(fields) > 1:
            raise InvalidRequest("the body has other fields beside `messages`", field="messages")
        return _raws.decode(fields["messages"])
    except msgspec.ValidationError as error:
        raise InvalidRequest(f'the body is neither a message nor {{"messages": [...]}}: {in_words(error)}') from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableBody(f"the body is {in_words(error)}") from None
    except RecursionError:
        raise InvalidRequest(f"the body is {json_texts.TOO_DEEP}", bound=json_texts.MAX_DEPTH) from None


def _line_columns(body: bytes, intake: Intake) -> pa.RecordBatch:
    """Decodes NDJSON on the fast path. msgspec ignores where lines end, so the line ends are checked first.

    Each newline has to stand between `}` and `{`. In valid JSON that is never inside of an object, so every newline
    ends a message, and with as many messages as lines each line is one message.
    """
    body = body.rstrip(b" \t\r\n")
    data = np.frombuffer(body, np.uint8)
    ends = np.flatnonzero(data == _NEWLINE)
    if len(ends) and not ((data[ends - 1] == _CLOSE).all() and (data[ends + 1] == _OPEN).all()):
        raise Doubt
    check_count(len(ends) + 1)  # none of the lines is empty
    return _by_slices(body, ends, partial(_slice_columns, intake=intake), intake)


def _slice_columns(lines: bytes, count: int, intake: Intake) -> pa.RecordBatch:
    found = messages.decode_lines(lines, intake.layout.format)
    if len(found) != count:
        raise Doubt
    return envelopes.columns_of(found, intake)


def _bare_columns(body: bytes, intake: Intake) -> pa.RecordBatch:
    """Decodes bare NDJSON on the fast path: the lines may be joined only once each is known to be one JSON text."""
    body = body.rstrip(b"\n")
    ends = np.flatnonzero(np.frombuffer(body, np.uint8) == _NEWLINE)
    check_count(len(ends) + 1)
    return _by_slices(body, ends, partial(_bare_slice_columns, intake=intake), intake)


def _bare_slice_columns(lines: bytes, count: int, intake: Intake) -> pa.RecordBatch:
    values = lines.split(b"\n")
    if not json_texts.are_json(binaries(values, pa.string())):
        raise Doubt
    return envelopes.columns_of([Envelope(value) for value in values], intake)  # type: ignore[arg-type]


def _by_slices(
    body: bytes,
    ends: "np.ndarray[Any, np.dtype[np.int64]]",
    decode_lines: Callable[[bytes, int], pa.RecordBatch],
    intake: Intake,
) -> pa.RecordBatch:
    """Decodes lines, which stop at `ends`, slice by slice: Python holds a line as 20 times as much, and Arrow does not.

    `decode_lines` takes the text of some lines, and their number.
    """
    parts: list[pa.RecordBatch] = []
    begin = line = 0
    while line <= len(ends):
        last = min(int(np.searchsorted(ends, begin + SLICE_BYTES)), len(ends))  # the one that fills the slice
        end = int(ends[last]) if last < len(ends) else len(body)
        parts.append(decode_lines(body[begin:end], last + 1 - line))
        begin, line = end + 1, last + 1
    return together(parts, intake.layout)
